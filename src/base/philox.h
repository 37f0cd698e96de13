// Philox4x32-10 (Salmon et al., SC11): a counter-based, stateless random number generator. A draw
// is keyed by what it is for (seed, iteration, sample, layer, use, position), never by when it
// happens.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace bev {

using PhiloxCounter = std::array<std::uint32_t, 4>;

inline PhiloxCounter philox(PhiloxCounter counter, std::uint64_t key) {
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Uniform in the open interval (0, 1).
inline float uniform_of(std::uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;
}

// splitmix64 finaliser, for deriving keys.
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}
constexpr std::uint64_t mix_bits(std::uint64_t a, std::uint64_t b) {
  return mix_bits(mix_bits(a) ^ b);
}

// FNV-1a hash of a name, used as part of a key.
constexpr std::uint64_t hash_name(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace bev
