// Scalar functions that the compiler vectorises: conversions of 16-bit floats, and exp, tanh, log,
// erf for float (about 2 ulp, infinities and NaN as in <cmath>; std:: for double). Everything is in
// the namespace of the level, so that no level calls instructions of another.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "tensor/dtype.h"

#define BEV_INLINE [[gnu::always_inline]] inline

namespace bev::cpu::BEV_CPU_LEVEL {

// An element in its accumulate type.
BEV_INLINE double widen(double x) { return x; }
BEV_INLINE float widen(float x) { return x; }
BEV_INLINE float widen(Bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}
BEV_INLINE float widen(F16 x) {
  std::uint32_t bits = x.bits, shifted = (bits & 0x7fffu) << 13;
  std::uint32_t finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(shifted) * 0x1p112f);
  std::uint32_t magnitude = shifted >= 0x0f800000u ? (shifted | 0x7f800000u) : finite;
  return std::bit_cast<float>(((bits & 0x8000u) << 16) | magnitude);
}

BEV_INLINE std::uint16_t bf16_bits(float value) {
  auto word = std::bit_cast<std::uint32_t>(value);
  std::uint32_t rounded = word + 0x7fffu + ((word >> 16) & 1u);
  std::uint32_t result = (word & 0x7fffffffu) > 0x7f800000u ? (word | 0x400000u) : rounded;
  return static_cast<std::uint16_t>(result >> 16);
}
BEV_INLINE std::uint16_t f16_bits(float value) {
  auto word = std::bit_cast<std::uint32_t>(value);
  std::uint32_t sign = (word >> 16) & 0x8000u;
  word &= 0x7fffffffu;
  // Below the smallest normal, the addition rounds at 2^-24.
  std::uint32_t small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(word) + 0.5f) - 0x3f000000u;
  std::uint32_t normal = (word + 0x0fffu + ((word >> 13) & 1u) - 0x38000000u) >> 13;
  std::uint32_t large = word > 0x7f800000u ? 0x7e00u : 0x7c00u;
  std::uint32_t result = word < 0x38800000u ? small : normal;
  result = word >= 0x47800000u ? large : result;
  return static_cast<std::uint16_t>(sign | result);
}

// Rounds a value of the accumulate type to T, to nearest even.
template <class T>
BEV_INLINE T narrow(accumulate_t<T> value) {
  if constexpr (sizeof(T) == 2) {
    T result;
    if constexpr (DtypeOf<T>::value == Dtype::kBf16) {
      result.bits = bf16_bits(value);
    } else {
      result.bits = f16_bits(value);
    }
    return result;
  } else {
    return value;
  }
}

BEV_INLINE double exp_of(double x) { return std::exp(x); }
BEV_INLINE double tanh_of(double x) { return std::tanh(x); }
BEV_INLINE double log_of(double x) { return std::log(x); }
BEV_INLINE double erf_of(double x) { return std::erf(x); }

// 2^n for n in [-126, 127].
BEV_INLINE float power_of_two(std::int32_t n) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23);
}

// exp: x = n ln2 + r, a polynomial in r, then two factors so that subnormal results are correct.
BEV_INLINE float exp_of(float x) {
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  float shifted = x * 1.44269504f + kRound;
  float n = shifted - kRound;
  auto exponent = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) - 0x4b400000u);
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // For NaN the exponent is meaningless, but p stays NaN.
  exponent = exponent < -160 ? -160 : exponent;
  exponent = exponent > 160 ? 160 : exponent;
  std::int32_t half = exponent >> 1;
  return p * power_of_two(half) * power_of_two(exponent - half);
}

BEV_INLINE float tanh_of(float x) {
  float square = x * x;
  float p = -5.70498872745e-3f;
  p = p * square + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  float small = p * square * x + x;
  float magnitude = std::fabs(x);
  float large = 1.0f - 2.0f / (exp_of(2.0f * magnitude) + 1.0f);
  large = std::copysign(large, x);
  return magnitude < 0.625f ? small : large;
}

// log: x = m 2^e with m in [sqrt(1/2), sqrt(2)), the Cephes polynomial in m - 1.
BEV_INLINE float log_of(float x) {
  constexpr float kInfinity = std::bit_cast<float>(0x7f800000u);
  constexpr float kNan = std::bit_cast<float>(0x7fc00000u);
  float scaled = x < 0x1p-126f ? x * 0x1p24f : x;
  float offset = x < 0x1p-126f ? -24.0f : 0.0f;
  std::uint32_t word = std::bit_cast<std::uint32_t>(scaled) - 0x3f3504f3u;
  float e = static_cast<float>(static_cast<std::int32_t>(word) >> 23) + offset;
  float m = std::bit_cast<float>((word & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  float square = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  float y = p * (m * square);
  y = y + e * -2.12194440e-4f - 0.5f * square;
  float result = m + y + e * 0.693359375f;
  result = x == 0.0f ? -kInfinity : result;
  result = x == kInfinity ? kInfinity : result;
  return x >= 0.0f ? result : kNan;
}

// erf: an odd polynomial near 0, else 1 - exp(polynomial).
BEV_INLINE float erf_of(float x) {
  float t = std::fabs(x), square = x * x;
  float p = -5.96761703e-4f;
  p = p * square + 4.99119423e-3f;
  p = p * square - 2.67681349e-2f;
  p = p * square + 1.12819925e-1f;
  p = p * square - 3.76125336e-1f;
  p = p * square + 1.28379166e-1f;
  float small = p * x + x;
  float u = t > 4.0f ? 4.0f : t;
  float r = -1.72853470e-5f * u + 3.83197126e-4f;
  float s = -3.88396438e-3f * u + 2.42546219e-2f;
  r = r * (u * u) + s;
  r = r * u - 1.06777877e-1f;
  r = r * u - 6.34846687e-1f;
  r = r * u - 1.28717512e-1f;
  r = r * u - u;
  float large = std::copysign(1.0f - exp_of(r), x);
  return t > 0.927734375f ? large : small;
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
