// Moments of Adam in 8 bits. Each block of 128 numbers shares a scale: the exponent of its largest,
// as a float's bits have it. A number is a small float below that:
//
//   kSigned    sign, 4 bits of exponent, 3 of mantissa: 15 powers of two and 8 steps below them
//   kPositive  5 bits of exponent, 3 of mantissa: 31 powers of two; what is above 0 stays so, since
//              an update is divided by its root
//
// Rounding is at random or to nearest, of the significand first, whose largest result gives the
// scale: numbers that were read from a block are packed into the same bytes again, whatever the
// noise. They have four digits, so bf16 holds each of them exactly.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "tensor/view.h"

namespace bev {

enum class MomentFormat : std::uint8_t { kSigned, kPositive };

inline constexpr std::int64_t kMomentBlock = 128;
constexpr std::int64_t moment_blocks(std::int64_t elements) {
  return (elements + kMomentBlock - 1) / kMomentBlock;
}

// Of scales: so small that nothing is lost, so large that every number is a normal float. The
// largest is that of a block with an infinity or NaN, all of which is read as NaN.
inline constexpr std::uint8_t kLeastMomentScale = 40;
inline constexpr std::uint8_t kBadMomentScale = 255;
// Noise is 16 random bits; this much rounds to nearest.
inline constexpr std::uint32_t kNearestNoise = 0x8000;
// See AdamRange.
inline constexpr std::uint32_t kMomentNoise = 0x9E3779B9u;

// The highest exponent of a format.
constexpr std::uint32_t top_of(MomentFormat format) {
  return format == MomentFormat::kSigned ? 15 : 31;
}

// Bits of |x| rounded to four digits.
inline std::uint32_t moment_digits(float x, std::uint32_t noise) {
  return ((std::bit_cast<std::uint32_t>(x) & 0x7fffffffu) + (noise << 4)) & 0xfff00000u;
}
// Of a block whose largest digits are these.
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
  // Below the least power of two come multiples of the smallest number.
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

// Numbers [0, count) of some blocks. `noise` has a word for each; null: to nearest.
void pack_moments(MomentFormat format, const float* from, const std::uint32_t* noise,
                  std::int64_t count, std::uint8_t* codes, std::uint8_t* scales);
void unpack_moments(MomentFormat format, const std::uint8_t* codes, const std::uint8_t* scales,
                    std::int64_t count, float* to);

}  // namespace bev
