// Reductions with a fixed number of lanes: 64 bytes on every instruction level, so that the order
// of summation is the same on all of them. The compiler splits a vector if registers are narrower.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/kernels/math.h"

namespace bev::cpu::BEV_CPU_LEVEL {

template <class A>
struct Lanes {
  typedef A type __attribute__((vector_size(64)));
  static constexpr std::int64_t kCount = 64 / sizeof(A);
};

// Elements x[0..kCount) in the accumulate type.
template <class A>
BEV_INLINE void load_lanes(const A* x, typename Lanes<A>::type& lanes) {
  std::memcpy(&lanes, x, sizeof lanes);
}
BEV_INLINE void load_words(const void* x, typename Lanes<std::uint32_t>::type& words) {
  typedef std::uint16_t Halves __attribute__((vector_size(32)));
  Halves halves;
  std::memcpy(&halves, x, sizeof halves);
  words = __builtin_convertvector(halves, typename Lanes<std::uint32_t>::type);
}
BEV_INLINE void load_lanes(const Bf16* x, typename Lanes<float>::type& lanes) {
  typename Lanes<std::uint32_t>::type words;
  load_words(x, words);
  words <<= 16;
  std::memcpy(&lanes, &words, sizeof lanes);
}
BEV_INLINE void load_lanes(const F16* x, typename Lanes<float>::type& lanes) {
  typename Lanes<std::uint32_t>::type words;
  load_words(x, words);
  const auto shifted = (words & 0x7fffu) << 13;
  std::memcpy(&lanes, &shifted, sizeof lanes);
  lanes *= 0x1p112f;
  auto finite = shifted;
  std::memcpy(&finite, &lanes, sizeof lanes);
  const auto all =
      (shifted >= 0x0f800000u ? (shifted | 0x7f800000u) : finite) | ((words & 0x8000u) << 16);
  std::memcpy(&lanes, &all, sizeof lanes);
}

// Vectors stay local variables: passing them by value has no ABI common to all levels.
template <class A>
BEV_INLINE A add_lanes(const typename Lanes<A>::type& lanes) {
  A values[Lanes<A>::kCount];
  std::memcpy(values, &lanes, sizeof values);
  for (std::int64_t width = Lanes<A>::kCount / 2; width > 0; width /= 2) {
    for (std::int64_t i = 0; i < width; ++i) values[i] += values[i + width];
  }
  return values[0];
}

// Sum of term(i) for i in [0, count): four vectors of lanes, then the tail one by one.
template <class A, class Term>
BEV_INLINE A sum_of(std::int64_t count, const Term& term) {
  using Vector = typename Lanes<A>::type;
  constexpr std::int64_t kCount = Lanes<A>::kCount;
  Vector sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * kCount <= count; i += 4 * kCount) {
    for (int v = 0; v < 4; ++v) {
      A buffer[kCount];
      for (std::int64_t l = 0; l < kCount; ++l) buffer[l] = term(i + v * kCount + l);
      Vector terms;
      std::memcpy(&terms, buffer, sizeof terms);
      sums[v] += terms;
    }
  }
  A rest = 0;
  for (; i < count; ++i) rest += term(i);
  Vector total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return add_lanes<A>(total) + rest;
}

// Maximum of x[0..count), -infinity for none; NaN is ignored.
template <class A>
BEV_INLINE A max_of(const A* x, std::int64_t count) {
  using Vector = typename Lanes<A>::type;
  constexpr std::int64_t kCount = Lanes<A>::kCount;
  const A lowest = -static_cast<A>(__builtin_inf());
  Vector most = {};
  most += lowest;
  std::int64_t i = 0;
  for (; i + kCount <= count; i += kCount) {
    Vector next;
    std::memcpy(&next, x + i, sizeof next);
    most = next > most ? next : most;
  }
  A values[kCount], result = lowest;
  std::memcpy(values, &most, sizeof values);
  for (A value : values) result = value > result ? value : result;
  for (; i < count; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
