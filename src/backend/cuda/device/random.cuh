// Philox, bit-equal to base/philox.h, and stochastic rounding and dropout thresholds based on it.
#pragma once

#include <cmath>
#include <cstdint>

namespace bev::cuda {

__device__ inline uint4 philox(uint4 counter, std::uint64_t key) {
  std::uint32_t key0 = static_cast<std::uint32_t>(key),
                key1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter.x;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter.z;
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter.y ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter.w ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}
// Block of a sequence with a 64-bit counter.
__device__ inline uint4 philox_block(std::uint64_t block, std::uint64_t key) {
  return philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0},
                key);
}

__device__ inline std::uint32_t word_of(uint4 words, int i) {
  return i < 2 ? (i == 0 ? words.x : words.y) : (i == 2 ? words.z : words.w);
}

__device__ inline float uniform_of(std::uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;
}

// Stochastic rounding of x to bf16 with 16 random bits: rounds up in magnitude with the probability
// of the truncated fraction, so the expectation is x.
__device__ inline float round_stochastic(float x, std::uint32_t noise) {
  const std::uint32_t word = __float_as_uint(x);
  const bool finite = (word & 0x7f800000u) != 0x7f800000u;
  return finite ? __uint_as_float((word + noise) & 0xffff0000u) : x;
}

// An element is kept if uniform_of(word) >= p, which equals (word >> 9) >= keep_threshold(p).
inline std::uint32_t keep_threshold(double p) {
  const double bound = std::ceil(p * 0x1p23 - 0.5);
  return bound <= 0 ? 0u : static_cast<std::uint32_t>(bound);
}

}  // namespace bev::cuda
