#include "tensor/dtype.h"

#include <array>
#include <utility>

#include "base/error.h"

namespace bev {

std::string_view name_of(Dtype dtype) {
  constexpr std::array<std::string_view, 7> kNames = {"f64", "f32", "bf16", "f16",
                                                      "i64", "i32", "u8"};
  return kNames[static_cast<std::size_t>(dtype)];
}

std::optional<Dtype> parse_dtype(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Dtype>, 20> kNames = {{
      {"f64", Dtype::kF64},       {"float64", Dtype::kF64}, {"fp64", Dtype::kF64},
      {"double", Dtype::kF64},    {"f32", Dtype::kF32},     {"float32", Dtype::kF32},
      {"fp32", Dtype::kF32},      {"float", Dtype::kF32},   {"bf16", Dtype::kBf16},
      {"bfloat16", Dtype::kBf16}, {"f16", Dtype::kF16},     {"float16", Dtype::kF16},
      {"fp16", Dtype::kF16},      {"half", Dtype::kF16},    {"i64", Dtype::kI64},
      {"int64", Dtype::kI64},     {"i32", Dtype::kI32},     {"int32", Dtype::kI32},
      {"u8", Dtype::kU8},         {"uint8", Dtype::kU8},
  }};
  for (auto [known, dtype] : kNames) {
    if (known == name) return dtype;
  }
  return std::nullopt;
}

void fail_not_float(Dtype dtype) {
  BEV_FAIL(ErrorKind::kInternal, "a floating dtype is needed, got ", name_of(dtype));
}

}  // namespace bev
