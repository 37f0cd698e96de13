// Element types, the 16-bit float scalars, and the dtype dispatch visit_float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace bev {

enum class Dtype : std::uint8_t { kF64, kF32, kBf16, kF16, kI64, kI32, kU8 };

constexpr std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
    case Dtype::kI64:
      return 8;
    case Dtype::kF32:
    case Dtype::kI32:
      return 4;
    case Dtype::kBf16:
    case Dtype::kF16:
      return 2;
    case Dtype::kU8:
      return 1;
  }
  return 0;
}
// Dtype of statistics, logits and gradients in a model of type `dtype`.
constexpr Dtype wide_of(Dtype dtype) { return dtype == Dtype::kF64 ? Dtype::kF64 : Dtype::kF32; }
constexpr bool is_float(Dtype dtype) { return dtype <= Dtype::kF16; }
// "f32", "bf16", ...
std::string_view name_of(Dtype dtype);
// Accepts these names and the usual long ones ("float32", "bfloat16", "fp16", ...).
std::optional<Dtype> parse_dtype(std::string_view name);

// bfloat16: upper half of a float, rounded to nearest even; NaN stays NaN.
struct Bf16 {
  std::uint16_t bits = 0;
  Bf16() = default;
  explicit Bf16(float value) {
    auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<std::uint16_t>((word >> 16) | 0x40u);
    } else {
      bits = static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    }
  }
  operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

// IEEE binary16, rounded to nearest even; overflow gives infinity, subnormals are kept.
struct F16 {
  std::uint16_t bits = 0;
  F16() = default;
  explicit F16(float value);
  operator float() const;
};

inline F16::F16(float value) {
  auto word = std::bit_cast<std::uint32_t>(value);
  std::uint32_t sign = (word >> 16) & 0x8000u;
  word &= 0x7fffffffu;
  if (word >= 0x47800000u) {  // 65536 and above, infinity, NaN
    bits = static_cast<std::uint16_t>(sign | (word > 0x7f800000u ? 0x7e00u : 0x7c00u));
  } else if (word < 0x38800000u) {  // below the smallest normal: let the FPU round at 2^-24
    float shifted = std::bit_cast<float>(word) + 0.5f;
    bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  } else {
    std::uint32_t rounded = word + 0x0fffu + ((word >> 13) & 1u) - 0x38000000u;
    bits = static_cast<std::uint16_t>(sign | (rounded >> 13));
  }
}

inline F16::operator float() const {
  std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude >= 0x0400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  float value = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

template <class T>
struct DtypeOf;
template <>
struct DtypeOf<double> {
  static constexpr Dtype value = Dtype::kF64;
};
template <>
struct DtypeOf<float> {
  static constexpr Dtype value = Dtype::kF32;
};
template <>
struct DtypeOf<Bf16> {
  static constexpr Dtype value = Dtype::kBf16;
};
template <>
struct DtypeOf<F16> {
  static constexpr Dtype value = Dtype::kF16;
};
template <>
struct DtypeOf<std::int64_t> {
  static constexpr Dtype value = Dtype::kI64;
};
template <>
struct DtypeOf<std::int32_t> {
  static constexpr Dtype value = Dtype::kI32;
};
template <>
struct DtypeOf<std::uint8_t> {
  static constexpr Dtype value = Dtype::kU8;
};

[[noreturn]] void fail_not_float(Dtype dtype);

// Calls f(T{}) with T the scalar type of a floating-point dtype; throws for any other dtype.
template <class F>
decltype(auto) visit_float(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::kF64:
      return f(double{});
    case Dtype::kF32:
      return f(float{});
    case Dtype::kBf16:
      return f(Bf16{});
    case Dtype::kF16:
      return f(F16{});
    default:
      fail_not_float(dtype);
  }
}

// Accumulation type of T: values are computed and summed in it.
template <class T>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};
template <class T>
using accumulate_t = typename Accumulate<T>::type;

}  // namespace bev
