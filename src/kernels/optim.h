// Optimizer kernels over flat ranges, and the sums that clipping and reports need.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/step_state.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// How Adam changes parameters. g = grad * state->grad_multiplier. Nothing is written when
// state->skip is set.
struct AdamRule {
  const StepState* state = nullptr;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  // Decoupled: main -= lr * (m^ / (sqrt(v^) + eps) + wd * main). Otherwise wd * main is added to g
  // first.
  bool decoupled = true;
};

// One flat range. main, m, v: f32 or bf16 each (all f64 for f64 models), m and v also in 8 bits,
// u8 with scales (tensor/moment8.h), m signed and v positive; grad: f32, bf16 or f64; values: the
// model's copy in its own dtype, written from main (it may be the same memory as main).
//
// Computed in f32 whatever is stored. A bf16 main and a bf16 v change by less than their last digit
// in most steps, so they are rounded at random, up or down with the mean kept: else they would not
// move at all. So are moments in 8 bits. A bf16 m moves by 1 - beta1 of the gradient and is rounded
// to nearest. The noise of element i is word i % 4 of the generator's block i / 4, its low half for
// main, its high half for v, and the high half of its product with kMomentNoise for m, with i
// counted from `first` and the key mix_bits(state->random_key, random_stream).
struct AdamRange {
  View main, grad, m, v, values;
  View m_scales = {}, v_scales = {};  // u8, one for each block of a moment in 8 bits; else empty
  double lr_mult = 1, wd_mult = 1;
  std::uint64_t random_stream = 0;  // hash of the parameter's name
  std::int64_t first = 0;           // the range's first element in the flattened local parameter
};

// Torch's SGD over f32 or f64 main and m, grad also bf16: g += wd * main; m = momentum * m + g (m =
// g in update 1); main -= lr * m.
struct SgdArgs {
  View main, grad, m, values;
  const StepState* state = nullptr;
  double lr_mult = 1, wd_mult = 1;
  double momentum = 0.9;
};

// main -= rate * sign(grad), of any floating dtypes; nothing when state->skip is set.
struct SignArgs {
  View main, grad, values;
  const StepState* state = nullptr;
  double rate = 0;
};

// Elements [first, first + numel) of an endless normal(mean, std) sequence named by key: element i
// is Box-Muller of the generator's block i / 4. Drawn in f32 (the same numbers for every dtype).
struct NormalArgs {
  View x;
  std::uint64_t key = 0;
  std::int64_t first = 0;
  double mean = 0, std = 1;
};

// What the norm of the gradient decides. norm = sqrt(*square_sum) / loss_scale, the scale being the
// state's; where it or the loss is not finite, or rows were lost (FitRowsArgs), state->failed is
// set. state->skip becomes what state->failed is; where it is 0, state->update counts on and
// state->grad_multiplier = min(1, max_norm / (norm + 1e-6)) / loss_scale (max_norm 0: no clipping).
struct ClipArgs {
  const double* square_sum = nullptr;  // device
  const double* loss = nullptr;        // device
  StepState* state = nullptr;          // device
  double max_norm = 0;
  const double* lost_rows = nullptr;  // device; null: none were
};

struct OptimKernels {
  void (*adam)(const Stream&, const AdamRule&, std::span<const AdamRange>);
  void (*sgd)(const Stream&, const SgdArgs&);
  void (*sign)(const Stream&, const SignArgs&);
  // *sum (f64, device) += sum of squares of all tensors, which are of one dtype, in f64, in an
  // order that depends on their lengths only. A NaN or infinity anywhere makes the sum non-finite.
  void (*sum_squares)(const Stream&, std::span<const View> tensors, double* sum);
  // *count (f64, device) += how many elements of all tensors, which are of one dtype, are 0.
  void (*count_zeros)(const Stream&, std::span<const View> tensors, double* count);
  void (*clip)(const Stream&, const ClipArgs&);
  void (*normal)(const Stream&, const NormalArgs&);
};

}  // namespace bev
