// Tensors in 8-bit floats with the scales to read them by, and the recipes by which scales are
// chosen. A product wants both factors with the inner dim last, so a tensor that takes part in two
// products is kept twice: by rows, and transposed, quantised by itself.
#pragma once

#include <cstdint>

#include "tensor/fp8.h"
#include "tensor/tensor.h"

namespace bev {

// How many elements share a scale: all of them; runs of 128 in a row; squares of 128 x 128.
//
// The 4-bit formats are emulated, for study: what stands for a payload are the numbers that it
// would be read as, in the source's dtype, and there are no scales. NVFP4: runs of 16 with a scale
// in E4M3 on top of one for the tensor. MXFP4: runs of 32 whose scale is a power of two.
enum class ScaleBlock : std::uint8_t { kTensor, kRun, kSquare, kNvfp4, kMxfp4 };
inline constexpr std::int64_t kScaleBlock = 128;
constexpr bool is_emulated(ScaleBlock block) { return block >= ScaleBlock::kNvfp4; }
constexpr std::int64_t emulated_run(ScaleBlock block) {
  return block == ScaleBlock::kNvfp4 ? 16 : 32;
}

// f32 [1]; [K / 128, R rounded up to 4] for runs; [R / 128, K / 128 rounded up to 4] for squares,
// of a payload [R, K]. These are the orders that cuBLASLt reads.
Shape scale_shape(ScaleBlock block, std::int64_t rows, std::int64_t columns);
// Columns of the transpose of `rows` rows: whole runs, or what a product needs at least. The ones
// added are zero.
std::int64_t padded_rows(ScaleBlock block, std::int64_t rows);

// Rows of experts have runs of their own in the transpose. Those of expert e, which come after
// `before` rows of others, have their columns from here on: whole runs, whatever the numbers of
// rows are. So many columns has the transpose of all rows of e experts.
constexpr std::int64_t run_begin(std::int64_t before, std::int64_t e) {
  return (before / kScaleBlock + e) * kScaleBlock;
}

// A factor of a scaled product.
struct ScaledView {
  View payload;  // u8 [R, K]; floats where emulated
  View scales;   // what the payload's numbers are to be multiplied by
  Fp8Format format = Fp8Format::kE4m3;
  ScaleBlock block = ScaleBlock::kTensor;
};

struct Quantized {
  Fp8Format format = Fp8Format::kE4m3;
  ScaleBlock block = ScaleBlock::kTensor;
  Tensor rows, row_scales;        // [R, C], or empty
  Tensor columns, column_scales;  // the transpose [C, padded R], or empty

  ScaledView by_rows() const { return {rows, row_scales, format, block}; }
  ScaledView by_columns() const { return {columns, column_scales, format, block}; }
};

// How scales are chosen: by the tensor's largest number now, by its largest in the steps before, or
// block by block; or in 4 bits.
enum class Fp8Scaling : std::uint8_t { kNone, kTensorwise, kDelayed, kBlockwise, kNvfp4, kMxfp4 };

// How the products of a linear layer are computed.
struct Fp8Recipe {
  Fp8Scaling scaling = Fp8Scaling::kNone;
  Fp8Format gradient_format = Fp8Format::kE4m3;  // of what comes back; all else is E4M3
  int margin = 0;                                // powers of two left above the largest number
  bool weight_gradient = true;                   // its product too; otherwise in the model's dtype

  bool used() const { return scaling != Fp8Scaling::kNone; }
  // Whether scales follow from the largest number of the tensor itself.
  bool needs_amax() const {
    return scaling == Fp8Scaling::kTensorwise || scaling == Fp8Scaling::kNvfp4;
  }
};

// Of the three tensors of a linear layer.
enum class Fp8Role : std::uint8_t { kInput, kWeight, kGradient };
inline constexpr int kFp8Roles = 3;

Fp8Format format_of(const Fp8Recipe& recipe, Fp8Role role);
ScaleBlock block_of(const Fp8Recipe& recipe, Fp8Role role);
// What dims of weights must be multiples of.
std::int64_t alignment_of(const Fp8Recipe& recipe);

// Rows of experts, in runs: those of expert e are [offsets[e], offsets[e + 1]). Row r is
// x[order[r] / topk], or without an order x[r]. Rows past the last expert's are not quantised. Runs
// of the columns are of one expert's rows each: they begin at run_begin(offsets[e], e), and zeros
// fill up the last.
struct QuantizeGroups {
  const std::int32_t* offsets = nullptr;  // [experts + 1], device; null: rows of one matrix
  std::int64_t experts = 0, rows = 0;
  // Device: [rows], and [tokens topk] with the row of each slot or -1. They say the same, as in
  // SortRowsArgs, for those who walk by row or by token.
  const std::int32_t *order = nullptr, *place = nullptr;
  std::int64_t topk = 1;

  bool used() const { return offsets != nullptr; }
  // Rows of the quantised tensor that is made of x, without and with the padding of its groups.
  std::int64_t rows_of(const View& x) const { return used() ? rows : x.shape[0]; }
  std::int64_t padded_of(const View& x, ScaleBlock block) const {
    return used() ? run_begin(rows, experts) : padded_rows(block, x.shape[0]);
  }
};

}  // namespace bev
