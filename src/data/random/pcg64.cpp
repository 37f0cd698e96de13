#include "data/random/pcg64.h"

#include <array>
#include <bit>

namespace bev {

namespace {

// numpy's SeedSequence(seed).generate_state(4, uint64), as eight 32-bit words.
std::array<std::uint32_t, 8> seed_words(std::uint32_t seed) {
  std::array<std::uint32_t, 4> pool{};
  std::uint32_t multiplier = 0x43b0d7e5u;
  auto hash = [&](std::uint32_t value) {
    value ^= multiplier;
    multiplier *= 0x931e8875u;
    value *= multiplier;
    return value ^ (value >> 16);
  };
  auto mix = [](std::uint32_t x, std::uint32_t y) {
    std::uint32_t result = 0xca01f9ddu * x - 0x4973f715u * y;
    return result ^ (result >> 16);
  };
  for (std::size_t i = 0; i < pool.size(); ++i) pool[i] = hash(i == 0 ? seed : 0);
  for (std::size_t from = 0; from < pool.size(); ++from) {
    for (std::size_t to = 0; to < pool.size(); ++to) {
      if (from != to) pool[to] = mix(pool[to], hash(pool[from]));
    }
  }
  std::array<std::uint32_t, 8> words{};
  std::uint32_t factor = 0x8b51f9ddu;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::uint32_t value = pool[i % pool.size()] ^ factor;
    factor *= 0x58f38dedu;
    value *= factor;
    words[i] = value ^ (value >> 16);
  }
  return words;
}

}  // namespace

Pcg64::Pcg64(std::uint32_t seed) {
  std::array<std::uint32_t, 8> words = seed_words(seed);
  auto wide = [&](std::size_t i) {
    Wide high = std::uint64_t{words[i + 1]} << 32 | words[i];
    return high << 64 | (std::uint64_t{words[i + 3]} << 32 | words[i + 2]);
  };
  increment_ = wide(4) << 1 | 1;
  next64();
  state_ += wide(0);
  next64();
}

std::uint64_t Pcg64::next64() {
  constexpr Wide kMultiplier = Wide{2549297995355413924u} << 64 | 4865540595714422341u;
  state_ = state_ * kMultiplier + increment_;
  auto high = static_cast<std::uint64_t>(state_ >> 64), low = static_cast<std::uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

std::uint32_t Pcg64::next32() {
  if (has_kept_) {
    has_kept_ = false;
    return kept_;
  }
  std::uint64_t word = next64();
  kept_ = static_cast<std::uint32_t>(word >> 32);
  has_kept_ = true;
  return static_cast<std::uint32_t>(word);
}

std::int32_t Pcg64::integer(std::int32_t low, std::int32_t high) {
  auto count = static_cast<std::uint32_t>(high) - static_cast<std::uint32_t>(low);
  std::uint64_t product = std::uint64_t{next32()} * count;
  if (static_cast<std::uint32_t>(product) < count) {
    std::uint32_t least = (0u - count) % count;
    while (static_cast<std::uint32_t>(product) < least) product = std::uint64_t{next32()} * count;
  }
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(low) +
                                   static_cast<std::uint32_t>(product >> 32));
}

}  // namespace bev
