// 8-bit Adam moments. Each block of 128 values shares a scale: the biased exponent of its absmax.
// A value is a small float relative to that scale:
//
//   kSigned    sign, 4 exponent bits, 3 mantissa bits: 15 powers of two and 8 subnormal steps
//   kPositive  5 exponent bits, 3 mantissa bits: 31 powers of two; a positive value never rounds to
//              0, because the update is divided by its root
//
// Rounding is stochastic or to nearest. The significand is rounded first and the largest rounded
// value sets the scale, so that values read from a block are packed into the same bytes again,
// whatever the noise. They have four significant bits, so bf16 represents each of them exactly.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "base/divide.h"
#include "tensor/view.h"

namespace bev {

enum class MomentFormat : std::uint8_t { kSigned, kPositive };

inline constexpr std::int64_t kMomentBlock = 128;
constexpr std::int64_t moment_blocks(std::int64_t elements) {
  return ceil_div(elements, kMomentBlock);
}

// Smallest scale: small enough to lose nothing, large enough that every value is a normal float.
// kBadMomentScale marks a block with an infinity or NaN, all of which reads as NaN.
inline constexpr std::uint8_t kLeastMomentScale = 40;
inline constexpr std::uint8_t kBadMomentScale = 255;
// Rounding noise is 16 random bits; this constant rounds to nearest.
inline constexpr std::uint32_t kNearestNoise = 0x8000;
// Multiplier that derives the first moment's noise from the shared random word; see AdamRange.
inline constexpr std::uint32_t kMomentNoise = 0x9E3779B9u;

// Highest exponent code of a format.
constexpr std::uint32_t top_of(MomentFormat format) {
  return format == MomentFormat::kSigned ? 15 : 31;
}

// Bits of |x| rounded to four significant bits.
inline std::uint32_t moment_digits(float x, std::uint32_t noise) {
  return ((std::bit_cast<std::uint32_t>(x) & 0x7fffffffu) + (noise << 4)) & 0xfff00000u;
}
// Scale of a block from the largest rounded value of its elements.
inline std::uint8_t moment_scale(std::uint32_t largest_digits) {
  const std::uint32_t exponent = largest_digits >> 23;
  return static_cast<std::uint8_t>(exponent < kLeastMomentScale ? kLeastMomentScale
                                   : exponent > kBadMomentScale ? kBadMomentScale
                                                                : exponent);
}

inline std::uint8_t pack_moment(MomentFormat format, float x, std::uint32_t noise,
                                std::uint32_t scale) {
  const std::uint32_t digits = moment_digits(x, noise), top = top_of(format);
  const auto word = std::bit_cast<std::uint32_t>(x);
  // Subnormals: below the smallest power of two, codes are multiples of the smallest value.
  const float steps =
      std::bit_cast<float>(word & 0x7fffffffu) * std::bit_cast<float>((256 + top - scale) << 23);
  const auto small =
      static_cast<std::uint32_t>((steps < 8 ? steps : 8) + static_cast<float>(noise) * 0x1p-16f);
  std::uint32_t code = (digits >> 23) + top > scale ? (digits >> 20) - ((scale - top) << 3) : small;
  if (format == MomentFormat::kSigned) {
    code |= (word >> 24) & 0x80u;
  } else if (code == 0 && x > 0) {
    code = 1;
  }
  return static_cast<std::uint8_t>(code);
}

inline float unpack_moment(MomentFormat format, std::uint8_t code, std::uint32_t scale) {
  const bool is_signed = format == MomentFormat::kSigned;
  const std::uint32_t top = top_of(format), size = is_signed ? code & 0x7fu : code;
  const float small = static_cast<float>(size) * std::bit_cast<float>((scale - top - 2) << 23);
  const float value = size < 8 ? small : std::bit_cast<float>((size + ((scale - top) << 3)) << 20);
  if (scale == kBadMomentScale) return std::numeric_limits<float>::quiet_NaN();
  return is_signed && code >= 0x80u ? -value : value;
}

// Convert the values [0, count) of consecutive blocks. `noise` has one word per value; null: round
// to nearest.
void pack_moments(MomentFormat format, const float* from, const std::uint32_t* noise,
                  std::int64_t count, std::uint8_t* codes, std::uint8_t* scales);
void unpack_moments(MomentFormat format, const std::uint8_t* codes, const std::uint8_t* scales,
                    std::int64_t count, float* to);

}  // namespace bev
