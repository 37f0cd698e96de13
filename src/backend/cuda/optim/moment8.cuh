// 8-bit Adam moments, bit-equal to tensor/moment8.h.
#pragma once

#include <cstdint>

#include "tensor/moment8.h"

namespace bev::cuda {

__device__ inline std::uint32_t moment_digits(float x, std::uint32_t noise) {
  return ((__float_as_uint(x) & 0x7fffffffu) + (noise << 4)) & 0xfff00000u;
}
__device__ inline std::uint32_t moment_scale(std::uint32_t largest_digits) {
  const std::uint32_t exponent = largest_digits >> 23;
  return min(max(exponent, std::uint32_t{kLeastMomentScale}), std::uint32_t{kBadMomentScale});
}

template <MomentFormat kFormat>
inline constexpr std::uint32_t kMomentTop = top_of(kFormat);

template <MomentFormat kFormat>
__device__ std::uint8_t pack_moment(float x, std::uint32_t noise, std::uint32_t scale) {
  constexpr std::uint32_t kTop = kMomentTop<kFormat>;
  const std::uint32_t digits = moment_digits(x, noise), word = __float_as_uint(x);
  const float steps =
      __uint_as_float(word & 0x7fffffffu) * __uint_as_float((256 + kTop - scale) << 23);
  const auto small =
      static_cast<std::uint32_t>((steps < 8 ? steps : 8.0f) + static_cast<float>(noise) * 0x1p-16f);
  std::uint32_t code =
      (digits >> 23) + kTop > scale ? (digits >> 20) - ((scale - kTop) << 3) : small;
  if constexpr (kFormat == MomentFormat::kSigned) {
    code |= (word >> 24) & 0x80u;
  } else if (code == 0 && x > 0) {
    code = 1;
  }
  return static_cast<std::uint8_t>(code);
}

template <MomentFormat kFormat>
__device__ float unpack_moment(std::uint8_t code, std::uint32_t scale) {
  constexpr std::uint32_t kTop = kMomentTop<kFormat>;
  constexpr bool kSigned = kFormat == MomentFormat::kSigned;
  const std::uint32_t size = kSigned ? code & 0x7fu : code;
  const float small = static_cast<float>(size) * __uint_as_float((scale - kTop - 2) << 23);
  const float value = size < 8 ? small : __uint_as_float((size + ((scale - kTop) << 3)) << 20);
  if (scale == kBadMomentScale) return __uint_as_float(0x7fc00000u);
  return kSigned && code >= 0x80u ? -value : value;
}

}  // namespace bev::cuda
