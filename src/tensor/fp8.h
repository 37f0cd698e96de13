// The FP8 formats E4M3 and E5M2 and the FP4 format E2M1: rounding and conversion back to float.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace bev {

// E4M3: 4 exponent and 3 mantissa bits, up to 448, no infinity. E5M2: 5 and 2 bits, up to 57344.
enum class Fp8Format : std::uint8_t { kE4m3, kE5m2 };

constexpr float largest_of(Fp8Format format) { return format == Fp8Format::kE4m3 ? 448 : 57344; }

// The NaN code that to_fp8 writes.
inline constexpr std::uint8_t kFp8Nan = 0x7f;

// Rounds to nearest even and saturates: larger values and infinity become the largest finite value.
// NaN stays NaN.
template <Fp8Format kFormat>
inline std::uint8_t to_fp8(float value) {
  constexpr std::uint32_t kMantissa = kFormat == Fp8Format::kE4m3 ? 3 : 2;
  constexpr std::uint32_t kBias = kFormat == Fp8Format::kE4m3 ? 7 : 15;
  constexpr std::uint32_t kDropped = 23 - kMantissa;
  constexpr std::uint32_t kLeastNormal = (128 - kBias) << 23;
  // Adding this power of two makes the FPU round to multiples of the smallest subnormal, which end
  // up in the low mantissa bits.
  constexpr float kShift = kFormat == Fp8Format::kE4m3 ? 0x1p14f : 0x1p7f;
  const auto word = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t whole = word & 0x7fffffffu;
  const auto most = std::bit_cast<std::uint32_t>(largest_of(kFormat));
  const std::uint32_t size = whole < most ? whole : most;
  const std::uint32_t normal =
      ((size + ((1u << (kDropped - 1)) - 1) + ((size >> kDropped) & 1u)) >> kDropped) -
      ((127 - kBias) << kMantissa);
  const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + kShift) -
                              std::bit_cast<std::uint32_t>(kShift);
  const std::uint32_t bits = (size < kLeastNormal ? small : normal) | ((word >> 24) & 0x80u);
  return static_cast<std::uint8_t>(whole > 0x7f800000u ? kFp8Nan : bits);
}

inline float from_fp8(Fp8Format format, std::uint8_t bits) {
  const bool wide = format == Fp8Format::kE5m2;
  const std::uint32_t mantissa = wide ? 2 : 3, bias = wide ? 15 : 7, size = bits & 0x7fu;
  const bool nan = wide ? size > 0x7c : size == 0x7f;
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80u) << 24;
  if (nan) return std::numeric_limits<float>::quiet_NaN();
  if (wide && size == 0x7c) return std::bit_cast<float>(sign | 0x7f800000u);
  if (size >> mantissa == 0) {
    float value = static_cast<float>(size) * (wide ? 0x1p-16f : 0x1p-9f);
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((size << (23 - mantissa)) + ((127 - bias) << 23)));
}

// FP4 E2M1: rounds to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with either sign, ties to the even
// code, and saturates at 6. NaN stays NaN.
inline constexpr float kLargestFp4 = 6;
inline float round_to_fp4(float value) {
  const float size = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
  // Spacing of the codes: 0.5 below 2, 1 below 4, then 2.
  const float step = size < 2 ? 0.5f : size < 4 ? 1.0f : 2.0f;
  const float shift = step * 0x1.8p23f;
  const float rounded = size < kLargestFp4 ? (size + shift) - shift : kLargestFp4;
  return size == size ? (value < 0 ? -rounded : rounded) : value;
}

}  // namespace bev
