#include "tensor/quantized.h"

#include "base/divide.h"

namespace bev {

namespace {
constexpr std::int64_t kProductAlignment = 16;  // bytes of a row that a tensor core reads at once
constexpr std::int64_t kScaleAlignment = 4;

}  // namespace

Shape scale_shape(ScaleBlock block, std::int64_t rows, std::int64_t columns) {
  switch (block) {
    case ScaleBlock::kTensor:
    case ScaleBlock::kNvfp4:
    case ScaleBlock::kMxfp4:
      return {1};
    case ScaleBlock::kRun:
      return {ceil_div(columns, kScaleBlock), round_up(rows, kScaleAlignment)};
    case ScaleBlock::kSquare:
      return {ceil_div(rows, kScaleBlock),
              round_up(ceil_div(columns, kScaleBlock), kScaleAlignment)};
  }
  return {1};
}

std::int64_t padded_rows(ScaleBlock block, std::int64_t rows) {
  if (is_emulated(block)) return round_up(rows, emulated_run(block));
  return round_up(rows, block == ScaleBlock::kRun ? kScaleBlock : kProductAlignment);
}

Fp8Format format_of(const Fp8Recipe& recipe, Fp8Role role) {
  return role == Fp8Role::kGradient ? recipe.gradient_format : Fp8Format::kE4m3;
}

ScaleBlock block_of(const Fp8Recipe& recipe, Fp8Role role) {
  if (recipe.scaling == Fp8Scaling::kNvfp4) return ScaleBlock::kNvfp4;
  if (recipe.scaling == Fp8Scaling::kMxfp4) return ScaleBlock::kMxfp4;
  if (recipe.scaling != Fp8Scaling::kBlockwise) return ScaleBlock::kTensor;
  return role == Fp8Role::kWeight ? ScaleBlock::kSquare : ScaleBlock::kRun;
}

std::int64_t alignment_of(const Fp8Recipe& recipe, std::int64_t parts) {
  ScaleBlock block = block_of(recipe, Fp8Role::kInput);
  if (is_emulated(block)) return parts * emulated_run(block);
  bool whole = recipe.scaling == Fp8Scaling::kBlockwise && parts > 1;
  return parts * (whole ? kScaleBlock : kProductAlignment);
}

}  // namespace bev
