// Philox over a run of counter blocks, eight at a time in vectors.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "backend/cpu/kernels/math.h"

namespace bev::cpu::BEV_CPU_LEVEL {

// Blocks drawn by one call of philox_blocks.
constexpr int kPhiloxBlocks = 16;

// words[4 i + w] = word w of philox({first + i, c1, c2, c3}, key) for i in [0, kPhiloxBlocks).
BEV_INLINE void philox_blocks(std::uint32_t first, std::uint32_t c1, std::uint32_t c2,
                              std::uint32_t c3, std::uint64_t key, std::uint32_t* words) {
  typedef std::uint64_t Vector __attribute__((vector_size(64)));  // 32-bit words, upper halves zero
  constexpr std::uint64_t kLow = 0xffffffffu;
  constexpr std::uint32_t kLanes = 8;
  for (std::uint32_t begin = 0; begin < kPhiloxBlocks; begin += kLanes) {
    Vector x0 = {0, 1, 2, 3, 4, 5, 6, 7}, x1 = {}, x2 = {}, x3 = {};
    x0 = (x0 + (first + begin)) & kLow;
    x1 += c1;
    x2 += c2;
    x3 += c3;
    auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const Vector product0 = x0 * 0xD2511F53ull, product1 = x2 * 0xCD9E8D57ull;
      x0 = (product1 >> 32) ^ x1 ^ std::uint64_t{key0};
      x1 = product1 & kLow;
      x2 = (product0 >> 32) ^ x3 ^ std::uint64_t{key1};
      x3 = product0 & kLow;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    const Vector front = x0 | (x1 << 32), back = x2 | (x3 << 32);
    std::uint64_t pairs[2 * kLanes];
    for (std::uint32_t i = 0; i < kLanes; ++i) {
      pairs[2 * i] = front[i];
      pairs[2 * i + 1] = back[i];
    }
    std::memcpy(words + 4 * begin, pairs, sizeof pairs);
  }
}

// An element is kept if uniform_of(word) >= p, which equals (word >> 9) >= keep_threshold(p).
BEV_INLINE std::uint32_t keep_threshold(double p) {
  double bound = std::ceil(p * 0x1p23 - 0.5);
  return bound <= 0 ? 0u : static_cast<std::uint32_t>(bound);
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
