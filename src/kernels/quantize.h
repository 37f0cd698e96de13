// 8-bit floats: the largest numbers of tensors, rounding with scales, and products of the result.
#pragma once

#include <cstdint>

#include "tensor/quantized.h"
#include "tensor/step_state.h"
#include "tensor/stream.h"

namespace bev {

struct ActivationBackwardArgs;
struct ActivationForwardArgs;
struct NormForwardArgs;

// An op whose result is rounded while it is made, and never written: one of these, or none. The
// numbers are those that its own kernel would have written.
struct QuantizeMaker {
  const NormForwardArgs* norm = nullptr;  // y of x, without a residual; mean and rstd are given
  const ActivationForwardArgs* activation = nullptr;            // y
  const ActivationBackwardArgs* activation_gradient = nullptr;  // dx

  bool used() const {
    return norm != nullptr || activation != nullptr || activation_gradient != nullptr;
  }
};

// x [R, C] of f32, bf16 or f16, C a multiple of 16 (of 128 where scales are of blocks), to 8-bit
// floats: x times a scale, rounded to nearest even, kept below the largest number of the format.
// What is not finite in x is NaN afterwards.
//
// The scale is largest_of(format) / amax / 2^margin, where amax is the largest |x| of the scale's
// block or, for ScaleBlock::kTensor, *amax; 1 where amax is 0, the largest float where it would be
// infinite. Its inverse goes to the scales, for kTensor even where x has no rows; that is NaN where
// amax is not finite, so that a bad step is seen.
//
// Emulated blocks: rows and columns have x's dtype and there are no scales; C is a multiple of the
// run. NVFP4's runs have the scale E4M3(amax of the run / 6 / t) t with t = *amax / (6 * 448),
// MXFP4's 2^(floor(log2(amax of the run)) - 2).
struct QuantizeArgs {
  View x;               // without memory where a maker is used
  QuantizeMaker maker;  // not for squares and emulated blocks
  QuantizeGroups groups;
  Fp8Format format = Fp8Format::kE4m3;
  ScaleBlock block = ScaleBlock::kTensor;
  const float* amax = nullptr;  // device; for kTensor and kNvfp4
  int margin = 0;
  float* seen = nullptr;        // device: becomes max(*seen, |x|); null: not wanted
  View rows, row_scales;        // [R, C]; empty: not wanted
  View columns, column_scales;  // [C, padded_rows]; for kTensor both scales may be one
};

// c = a b^T + beta c (+ bias on every row), of a [M, K] and b [N, K]; sums in f32.
// c [M, N]: f32, bf16 or f16. bias [N] of c's dtype, or empty. K and N are multiples of 16.
// linear forward:   y[T,O]  = x[T,I] w[O,I]^T
// input gradient:   dx[T,I] = dy[T,O] (w^T)[I,O]^T
// weight gradient:  dw[O,I] = (dy^T)[O,T] (x^T)[I,T]^T
struct ScaledProductArgs {
  ScaledView a, b;
  View c;
  double beta = 0;
  View bias;
  bool fast = false;  // sums may lose a few bits, as they may in a forward pass
};

// The same of each expert's rows [offsets[e], offsets[e + 1]) with its own weight: c = a b^T
// (+ bias[e]). Rows past the last one's become zeros.
struct GroupedScaledArgs {
  ScaledView a;  // [R, K], runs
  // Squares of all experts' weights, K and N multiples of 128: above each other [E N, K], or for
  // the input gradient transposed and side by side [N, E K].
  ScaledView b;
  View c;                                 // [R, N]
  View bias;                              // [E, N] of c's dtype, or empty
  const std::int32_t* offsets = nullptr;  // [E + 1], device
  std::int64_t experts = 0;

  bool side_by_side() const { return b.payload.shape[0] == c.shape[1]; }
};

// w[e] = beta w[e] + dy^T x over each expert's rows, of which both have the columns that
// QuantizeGroups makes. An expert without rows gives zeros.
struct GroupedScaledWeightArgs {
  ScaledView dy, x;                       // [O, columns], [I, columns]
  View w;                                 // [E, O, I]: f32, bf16 or f16
  const std::int32_t* offsets = nullptr;  // [E + 1], device
  double beta = 0;
  double* squares = nullptr;  // f64, device: grows by the squares of w; null: not wanted
};

// Delayed scaling, at the end of a step: unless state->skip, what was seen becomes the newest of
// the last `steps` entries of each tensor's history, and what its scale follows from: the newest,
// or the largest of them, where that is neither 0 nor infinite. That only in every `interval`th
// update.
struct AmaxUpdateArgs {
  View seen;     // f32 [N]
  View history;  // f32 [N, steps], the entry of update u at u % steps
  View used;     // f32 [N]
  const StepState* state = nullptr;
  bool largest = false;
  std::int64_t interval = 1;
};

struct QuantizeKernels {
  // *amax (f32, device) = the largest |x|; NaN is passed over.
  void (*amax)(const Stream&, const View& x, float* amax);
  void (*quantize)(const Stream&, const QuantizeArgs&);
  // The form by columns of a payload by rows, where both have one scale. x: u8 [R, C].
  void (*transpose)(const Stream&, const View& x, const View& columns);
  void (*product)(const Stream&, const ScaledProductArgs&);
  void (*grouped)(const Stream&, const GroupedScaledArgs&);
  void (*grouped_weight)(const Stream&, const GroupedScaledWeightArgs&);
  void (*update_amax)(const Stream&, const AmaxUpdateArgs&);
};

}  // namespace bev
