// Fast 64-bit content hash, for cache names and corruption checks; not cryptographic.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/philox.h"

namespace bev {

// Four lanes of eight bytes, mixed at the end. The tail is padded with zeros; the length is hashed
// too, so padding is unambiguous.
inline std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed) {
  constexpr std::size_t kBlock = 32;
  std::array<std::uint64_t, 4> lanes{seed, seed + 1, seed + 2, seed + 3}, words;
  auto absorb = [&](const std::byte* from, std::size_t count) {
    words = {};
    std::memcpy(words.data(), from, count);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      lanes[i] = std::rotl((lanes[i] ^ words[i]) * 0x9E3779B97F4A7C15ull, 29);
    }
  };
  std::size_t at = 0;
  for (; at + kBlock <= bytes.size(); at += kBlock) absorb(bytes.data() + at, kBlock);
  if (at < bytes.size()) absorb(bytes.data() + at, bytes.size() - at);
  std::uint64_t hash = mix_bits(seed, bytes.size());
  for (std::uint64_t lane : lanes) hash = mix_bits(hash, lane);
  return hash;
}

}  // namespace bev
