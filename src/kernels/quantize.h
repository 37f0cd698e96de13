// FP8: amax of tensors, quantisation with scales, scaled GEMMs, and emulated 4-bit formats.
#pragma once

#include <cstdint>

#include "tensor/nf4.h"
#include "tensor/quantized.h"
#include "tensor/step_state.h"
#include "tensor/stream.h"

namespace bev {

struct ActivationBackwardArgs;
struct ActivationForwardArgs;
struct NormForwardArgs;

// Fused quantisation: the op whose output is quantised as it is computed and never written in its
// own dtype; at most one is set. The values are those that the op's own kernel would have written.
struct QuantizeMaker {
  const NormForwardArgs* norm = nullptr;  // y of x without a residual; mean and rstd are inputs
  const ActivationForwardArgs* activation = nullptr;            // y
  const ActivationBackwardArgs* activation_gradient = nullptr;  // dx

  bool used() const {
    return norm != nullptr || activation != nullptr || activation_gradient != nullptr;
  }
};

// Quantises x [R, C] of f32, bf16 or f16 to FP8; C is a multiple of 16 (of 128 for grouped rows).
// With block scales the last blocks of rows and columns may be ragged.
// An element is x * scale, rounded to nearest even and clamped to the largest finite value of the
// format. Non-finite elements become NaN.
//
// scale = largest_of(format) / amax / 2^margin, where amax is the maximum |x| of the scale's block
// or, for ScaleBlock::kTensor, *amax; it is 1 if amax is 0, and FLT_MAX if it would overflow. The
// inverse scale is stored, for kTensor even if x has no rows; it is NaN if amax is not finite, so
// that a bad step is detected.
//
// Emulated 4-bit formats: rows and columns keep the dtype of x and there are no scales; C is a
// multiple of the run. A run of NVFP4 has the scale E4M3(amax of the run / 6 / t) t with t = *amax
// / (6 * 448), a run of MXFP4 2^(floor(log2(amax of the run)) - 2).
struct QuantizeArgs {
  View x;               // without memory if a maker is used
  QuantizeMaker maker;  // not for kSquare and emulated formats
  QuantizeGroups groups;
  Fp8Format format = Fp8Format::kE4m3;
  ScaleBlock block = ScaleBlock::kTensor;
  const float* amax = nullptr;  // device; for kTensor and kNvfp4
  int margin = 0;
  float* seen = nullptr;        // device: becomes max(*seen, max |x|); null: not wanted
  View rows, row_scales;        // [R, C]; empty: not wanted
  View columns, column_scales;  // [C, padded_rows]; kTensor may use one scale for both
};

// FP8 GEMM: c = a b^T + beta c (+ bias on every row) with a [M, K], b [N, K]; accumulates in f32. c
// [M, N] is f32, bf16 or f16. bias [N] has the dtype of c, or is empty. K and N are multiples of
// 16.
// linear forward:            y[T,O]  = x[T,I] w[O,I]^T
// dgrad (input gradient):    dx[T,I] = dy[T,O] (w^T)[I,O]^T
// wgrad (weight gradient):   dw[O,I] = (dy^T)[O,T] (x^T)[I,T]^T
struct ScaledGemmArgs {
  ScaledView a, b;
  View c;
  double beta = 0;
  View bias = {};
  bool fast = false;  // fast accumulation: sums may lose a few bits, fit for a forward
};

// Grouped FP8 GEMM: c = a b^T (+ bias[e]) for the rows [offsets[e], offsets[e + 1]) of each expert
// with its own weight. Rows past the last offset become zeros.
struct GroupedScaledGemmArgs {
  ScaledView a;  // [R, K], block kRun
  // Weights of all experts with block kSquare, K and N multiples of 128: stacked [E N, K], or for
  // dgrad transposed and side by side [N, E K].
  ScaledView b;
  View c;                                 // [R, N]
  View bias = {};                         // [E, N] of c's dtype, or empty
  const std::int32_t* offsets = nullptr;  // [E + 1], device
  std::int64_t experts = 0;

  bool side_by_side() const { return b.payload.shape[0] == c.shape[1]; }
};

// Grouped FP8 wgrad: w[e] = beta w[e] + dy^T x over the rows of each expert; dy and x are in the
// column form that QuantizeGroups pads per expert. An expert without rows contributes zeros.
struct GroupedScaledWgradArgs {
  ScaledView dy, x;                       // [O, columns], [I, columns]
  View w;                                 // [E, O, I]: f32, bf16 or f16
  const std::int32_t* offsets = nullptr;  // [E + 1], device
  double beta = 0;
  double* squares = nullptr;  // f64, device: += sum of squares of w; null: not wanted
};

// GEMM whose operand b is a weight [O, I] in NF4, dequantised tile by tile; a and c have the
// model's dtype, sums are f32. bias [O] is for the forward, or empty. linear forward: c[T,O] =
// a[T,I] w^T (+ bias) dgrad (input gradient):   c[T,I] = a[T,O] w
struct Nf4GemmArgs {
  View a;
  Nf4View w = {};
  Shape w_shape = {};  // [O, I]
  View c;
  bool transpose_w = true;  // forward
  View bias = {};
};

// Delayed scaling, at the end of a step. Unless state->skip is set, `seen` becomes the newest entry
// of each tensor's amax history of `steps` entries. In every `interval`th update the amax in use
// becomes the newest entry or, with `largest`, the maximum of the history, unless that is 0 or
// infinite.
struct AmaxUpdateArgs {
  View seen;     // f32 [N]
  View history;  // f32 [N, steps], the entry of update u at u % steps
  View used;     // f32 [N]
  const StepState* state = nullptr;
  bool largest = false;
  std::int64_t interval = 1;
};

struct QuantizeKernels {
  // *amax (f32, device) = max |x|; NaN is ignored.
  void (*amax)(const Stream&, const View& x, float* amax);
  void (*quantize)(const Stream&, const QuantizeArgs&);
  // Transposes an FP8 payload u8 [R, C] into the column form; both have one scale.
  void (*transpose)(const Stream&, const View& x, const View& columns);
  void (*scaled_gemm)(const Stream&, const ScaledGemmArgs&);
  void (*grouped_gemm)(const Stream&, const GroupedScaledGemmArgs&);
  void (*grouped_wgrad)(const Stream&, const GroupedScaledWgradArgs&);
  void (*update_amax)(const Stream&, const AmaxUpdateArgs&);
  // to, flat and of any floating dtype, = the values of the part.
  void (*dequantize_nf4)(const Stream&, const Nf4View& from, const View& to);
  // Whether nf4_gemm is the better choice; otherwise the caller dequantises the weight first. Null:
  // there is no such kernel.
  bool (*takes_nf4)(const Nf4GemmArgs&);
  void (*nf4_gemm)(const Stream&, const Nf4GemmArgs&);
};

}  // namespace bev
