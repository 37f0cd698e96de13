// Optimizer kernels over flat ranges, and the sums that clipping needs.
#pragma once

#include <cstdint>

#include "tensor/step_state.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// One flat range. main, m, v: f32 (f64 for f64 models); grad: f32 or f64; values: the model's copy
// in its own dtype, written from main (it may be the same memory as main). g = grad *
// state->grad_multiplier. Nothing is written when state->skip is set.
struct AdamArgs {
  View main, grad, m, v, values;
  const StepState* state = nullptr;
  double lr_mult = 1, wd_mult = 1;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  // Decoupled: main -= lr * (m^ / (sqrt(v^) + eps) + wd * main). Otherwise wd * main is added to g
  // first.
  bool decoupled = true;
};

// Torch's SGD: g += wd * main; m = momentum * m + g (m = g in update 1); main -= lr * m.
struct SgdArgs {
  View main, grad, m, values;
  const StepState* state = nullptr;
  double lr_mult = 1, wd_mult = 1;
  double momentum = 0.9;
};

// Elements [first, first + numel) of an endless normal(mean, std) sequence named by key: element i
// is Box-Muller of the generator's block i / 4. Drawn in f32 (the same numbers for every dtype).
struct NormalArgs {
  View x;
  std::uint64_t key = 0;
  std::int64_t first = 0;
  double mean = 0, std = 1;
};

// What the norm of the gradient decides. norm = sqrt(*square_sum) / loss_scale; a norm or a loss that
// is not finite sets state->skip, otherwise state->update counts on and state->grad_multiplier =
// min(1, max_norm / (norm + 1e-6)) / loss_scale (max_norm 0: no clipping).
struct ClipArgs {
  const double* square_sum = nullptr;  // device
  const double* loss = nullptr;        // device
  StepState* state = nullptr;          // device
  double max_norm = 0, loss_scale = 1;
};

struct OptimKernels {
  void (*adam)(const Stream&, const AdamArgs&);
  void (*sgd)(const Stream&, const SgdArgs&);
  // *sum (f64, device) += sum of squares, in f64, in an order that depends on the length only. A
  // NaN or infinity anywhere makes the sum non-finite.
  void (*sum_squares)(const Stream&, const View& x, double* sum);
  void (*clip)(const Stream&, const ClipArgs&);
  void (*normal)(const Stream&, const NormalArgs&);
};

}  // namespace bev
