// FP8 tensors with their scales, and the recipes that choose the scales. Hopper's FP8 GEMM wants
// both operands K-major (inner dim last), so a tensor used in two GEMMs is kept twice: row-wise,
// and transposed with its own scales.
#pragma once

#include <cstdint>

#include "tensor/fp8.h"
#include "tensor/tensor.h"

namespace bev {

// How many elements share a scale: the whole tensor; 1 x 128 runs of a row; 128 x 128 squares.
//
// The FP4 formats are emulated: the payload holds the dequantised values in the source's dtype, and
// there are no scales. NVFP4 has runs of 16 with an E4M3 scale on top of one scale for the tensor,
// MXFP4 runs of 32 whose scale is a power of two.
enum class ScaleBlock : std::uint8_t { kTensor, kRun, kSquare, kNvfp4, kMxfp4 };
inline constexpr std::int64_t kScaleBlock = 128;
constexpr bool is_emulated(ScaleBlock block) { return block >= ScaleBlock::kNvfp4; }
constexpr std::int64_t emulated_run(ScaleBlock block) {
  return block == ScaleBlock::kNvfp4 ? 16 : 32;
}

// Shape of the f32 scales for a payload [R, K], in the layout of cuBLASLt: [1] for a tensor, [K /
// 128, R rounded up to 4] for runs, [R / 128, K / 128 rounded up to 4] for squares. The last block
// of a dim may be ragged: quotients are rounded up.
Shape scale_shape(ScaleBlock block, std::int64_t rows, std::int64_t columns);
// Columns of the transpose of `rows` rows, padded with zeros to whole runs or, for squares and one
// scale, to the GEMM's alignment.
std::int64_t padded_rows(ScaleBlock block, std::int64_t rows);

// First column of expert e in the transpose of grouped rows, given that the experts before it have
// `before` rows. Every expert starts a new run, and the bound depends on no count but `before`.
// run_begin(rows, experts) is the number of columns for all experts.
constexpr std::int64_t run_begin(std::int64_t before, std::int64_t e) {
  return (before / kScaleBlock + e) * kScaleBlock;
}

// An operand of a scaled GEMM.
struct ScaledView {
  View payload;  // u8 [R, K]; floats if emulated
  View scales;   // dequantisation scales: multiply the payload by them
  Fp8Format format = Fp8Format::kE4m3;
  ScaleBlock block = ScaleBlock::kTensor;
};

struct Quantized {
  Fp8Format format = Fp8Format::kE4m3;
  ScaleBlock block = ScaleBlock::kTensor;
  Tensor rows, row_scales;        // [R, C], or empty
  Tensor columns, column_scales;  // transpose [C, padded R], or empty

  ScaledView by_rows() const { return {rows, row_scales, format, block}; }
  ScaledView by_columns() const { return {columns, column_scales, format, block}; }
};

// How scales are chosen: from the current amax (tensorwise), from the amax history (delayed), per
// block, or FP4.
enum class Fp8Scaling : std::uint8_t { kNone, kTensorwise, kDelayed, kBlockwise, kNvfp4, kMxfp4 };

// Precision recipe of the three GEMMs of a linear layer.
struct Fp8Recipe {
  Fp8Scaling scaling = Fp8Scaling::kNone;
  Fp8Format gradient_format = Fp8Format::kE4m3;  // of output gradients; all other tensors are E4M3
  int margin = 0;                                // headroom above the amax, in powers of two
  bool wgrad = true;  // wgrad in FP8 as well; otherwise in the model's dtype

  bool used() const { return scaling != Fp8Scaling::kNone; }
  // True if the scale depends on the tensor's own amax.
  bool needs_amax() const {
    return scaling == Fp8Scaling::kTensorwise || scaling == Fp8Scaling::kNvfp4;
  }
};

// The tensors of a linear layer that are quantised.
enum class Fp8Role : std::uint8_t { kInput, kWeight, kGradient };
inline constexpr int kFp8Roles = 3;

Fp8Format format_of(const Fp8Recipe& recipe, Fp8Role role);
ScaleBlock block_of(const Fp8Recipe& recipe, Fp8Role role);
// A dim of a weight that `parts` ranks split must be a multiple of this. The last block may be
// ragged, but none lies across ranks.
std::int64_t alignment_of(const Fp8Recipe& recipe, std::int64_t parts);

// Grouped rows (MoE): those of expert e are [offsets[e], offsets[e + 1]). Row r is x[order[r] /
// topk], or x[r] without an order. Rows past the last expert's are not quantised. In the transpose
// each expert's columns begin at run_begin(offsets[e], e) and are padded with zeros to whole runs.
struct QuantizeGroups {
  const std::int32_t* offsets = nullptr;  // [experts + 1], device; null: a single matrix
  std::int64_t experts = 0, rows = 0;
  // Permutation on the device: [rows], and its inverse [tokens topk], the row of each slot or -1;
  // see SortRowsArgs. Kernels that iterate by row use the first, those by token the second.
  const std::int32_t *order = nullptr, *place = nullptr;
  std::int64_t topk = 1;

  bool used() const { return offsets != nullptr; }
  // Rows of the quantised tensor made from x, without and with the padding of its groups.
  std::int64_t rows_of(const View& x) const { return used() ? rows : x.shape[0]; }
  std::int64_t padded_of(const View& x, ScaleBlock block) const {
    return used() ? run_begin(rows, experts) : padded_rows(block, x.shape[0]);
  }
};

}  // namespace bev
