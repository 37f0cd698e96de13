// Tensors in 8-bit floats with the scales to read them by, and the recipes by which scales are
// chosen. A product wants both factors with the inner dim last, so a tensor that takes part in two
// products is kept twice: by rows, and transposed, quantised by itself.
#pragma once

#include <cstdint>

#include "tensor/fp8.h"
#include "tensor/tensor.h"

namespace bev {

// How many elements share a scale: all of them; runs of 128 in a row; squares of 128 x 128.
enum class ScaleBlock : std::uint8_t { kTensor, kRun, kSquare };
inline constexpr std::int64_t kScaleBlock = 128;

// f32 [1]; [K / 128, R rounded up to 4] for runs; [R / 128, K / 128 rounded up to 4] for squares,
// of a payload [R, K]. These are the orders that cuBLASLt reads.
Shape scale_shape(ScaleBlock block, std::int64_t rows, std::int64_t columns);
// Columns of the transpose of `rows` rows: whole runs, or what a product needs at least. The ones
// added are zero.
std::int64_t padded_rows(ScaleBlock block, std::int64_t rows);

// A factor of a scaled product.
struct ScaledView {
  View payload;  // u8 [R, K]
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
// block by block.
enum class Fp8Scaling : std::uint8_t { kNone, kTensorwise, kDelayed, kBlockwise };

// How the products of a linear layer are computed.
struct Fp8Recipe {
  Fp8Scaling scaling = Fp8Scaling::kNone;
  Fp8Format gradient_format = Fp8Format::kE4m3;  // of what comes back; all else is E4M3
  int margin = 0;                                // powers of two left above the largest number
  bool weight_gradient = true;                   // its product too; otherwise in the model's dtype

  bool used() const { return scaling != Fp8Scaling::kNone; }
};

// Of the three tensors of a linear layer.
enum class Fp8Role : std::uint8_t { kInput, kWeight, kGradient };
inline constexpr int kFp8Roles = 3;

Fp8Format format_of(const Fp8Recipe& recipe, Fp8Role role);
ScaleBlock block_of(const Fp8Recipe& recipe, Fp8Role role);
// What dims of weights must be multiples of.
std::int64_t alignment_of(const Fp8Recipe& recipe);

}  // namespace bev
