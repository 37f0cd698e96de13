// Optimizer kernels over flat ranges with master weights, gradient norm and gradient clipping, and
// normal initialisation.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/step_state.h"
#include "tensor/stream.h"
#include "tensor/view.h"

namespace bev {

// Adam with hyperparameters common to all ranges. g = grad * state->grad_multiplier. Nothing is
// written if state->skip is set.
struct AdamRule {
  const StepState* state = nullptr;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  // AdamW (decoupled): main -= lr * (m^ / (sqrt(v^) + eps) + wd * main). Otherwise L2
  // regularisation: wd * main is added to g first.
  bool decoupled = true;
};

// One flat range. main are the master weights. main, m, v: f32 or bf16 each (all f64 for f64
// models); m and v also in 8 bits: u8 with block scales (tensor/moment8.h), m signed and v
// positive. grad: f32, bf16 or f64. values: the copy of the model in its own dtype, written from
// main (it may alias main).
//
// Computes in f32 whatever is stored. Most steps change a bf16 main or v by less than one ulp, so
// both use stochastic rounding, without which they would not move at all; so do 8-bit moments. A
// bf16 m moves by 1 - beta1 of the gradient and is rounded to nearest. The noise of element i is
// word i % 4 of the Philox block i / 4: the low half for main, the high half for v, and for m the
// high half of the word times kMomentNoise; i counts from `first`, the key is
// mix_bits(state->random_key, random_stream).
struct AdamRange {
  View main, grad, m, v, values;
  View m_scales = {}, v_scales = {};  // u8, one scale per block of an 8-bit moment; else empty
  double lr_mult = 1, wd_mult = 1, eps_mult = 1;
  int lr_index = 0;                 // of state->lr
  std::int64_t updates_before = 0;  // which bias correction leaves out: m and v began after them
  std::uint64_t random_stream = 0;  // hash of the parameter's name
  std::int64_t first = 0;           // index of the first element in the flattened local parameter
};

// SGD with momentum as in PyTorch, for f32 or f64 main and m, grad also bf16: g += wd * main; m =
// momentum * m + g (m = g in update 1); main -= lr * m.
struct SgdArgs {
  View main, grad, m, values;
  const StepState* state = nullptr;
  double lr_mult = 1, wd_mult = 1;
  int lr_index = 0;  // of state->lr
  double momentum = 0.9;
};

// Lion (Chen et al., 2023), for f32 or f64 main and m, grad also bf16: main -= lr (sign(beta1 m +
// (1 - beta1) g) + wd main), then m = beta2 m + (1 - beta2) g.
struct LionArgs {
  View main, grad, m, values;
  const StepState* state = nullptr;
  double lr_mult = 1, wd_mult = 1;
  int lr_index = 0;  // of state->lr
  double beta1 = 0.95, beta2 = 0.98;
};

// The direction in which an optimizer of whole matrices moves a weight. m += (1 - momentum)(g - m);
// out = m, with Nesterov's momentum g + momentum (m - g). m empty: out = g. m is f32 or f64, grad
// also bf16, out any floating dtype.
struct DirectionArgs {
  View grad, m, out;
  const StepState* state = nullptr;
  double momentum = 0;
  bool nesterov = false;
};

// main -= lr (factor update + wd main), for f32 or f64 main and any floating update. If
// update_has_lr, the update is not multiplied by lr.
struct MatrixUpdateArgs {
  View main, update, values;
  const StepState* state = nullptr;
  double lr_mult = 1, wd_mult = 1;
  int lr_index = 0;  // of state->lr
  double factor = 1;
  bool update_has_lr = false;
};

// main -= rate * sign(grad) in any floating dtypes, for expert biases; nothing is written if
// state->skip is set.
struct SignArgs {
  View main, grad, values;
  const StepState* state = nullptr;
  double rate = 0;
};

// Elements [first, first + numel) of an endless normal(mean, std) sequence identified by key:
// element i is Box-Muller of the Philox block i / 4. Drawn in f32, so all dtypes get the same
// numbers. uniform: of uniform numbers in (mean - std, mean + std), number i from word i % 4 of the
// Philox block i / 4.
struct NormalArgs {
  View x;
  std::uint64_t key = 0;
  std::int64_t first = 0;
  double mean = 0, std = 1;
  bool uniform = false;
};

// Gradient clipping and the decision to skip a step. norm = sqrt(*square_sum) / state->loss_scale.
// If the norm or the loss is not finite, or rows were dropped (FitRowsArgs), state->failed is set.
// state->skip becomes state->failed; if it is 0, state->update is incremented and
// state->grad_multiplier = min(1, max_norm / (norm + 1e-6)) / loss_scale (max_norm 0: no clipping).
struct ClipArgs {
  const double* square_sum = nullptr;  // device
  const double* loss = nullptr;        // device
  StepState* state = nullptr;          // device
  double max_norm = 0;
  const double* lost_rows = nullptr;  // device; null: no rows can be dropped
};

// QK-clip (MuonClip, arXiv 2507.20534): row r of a query or key weight, and of its copy in the
// model, is multiplied by min(1, threshold / m)^powers[r], where m is the largest of max_logits
// over the heads of group groups[r]. Any floating dtypes; nothing is written if state->skip is set.
struct QkClipArgs {
  View main, values;                     // a flat range; values may alias main
  std::int64_t first = 0;                // index of its first element in the flattened weight
  std::int64_t columns = 0;              // of the weight
  const std::int32_t* groups = nullptr;  // [rows of the weight], device; -1: not scaled
  const double* powers = nullptr;        // [rows of the weight], device
  View max_logits;                       // [N], f32 or f64, of the weight's layer
  std::int64_t group_heads = 0;
  double threshold = 0;
  const StepState* state = nullptr;
};

struct OptimKernels {
  void (*adam)(const Stream&, const AdamRule&, std::span<const AdamRange>);
  void (*sgd)(const Stream&, const SgdArgs&);
  void (*lion)(const Stream&, const LionArgs&);
  void (*direction)(const Stream&, const DirectionArgs&);
  void (*matrix_update)(const Stream&, const MatrixUpdateArgs&);
  // factor[0] = 1 / max(sqrt(*square_sum), least), in f32 or f64.
  void (*inverse_norm)(const Stream&, const double* square_sum, double least, const View& factor);
  void (*sign)(const Stream&, const SignArgs&);
  // *sum (f64, device) += sum of squares of all tensors, which have one dtype, in f64 and in an
  // order that depends only on their lengths. A NaN or infinity anywhere makes the sum non-finite.
  void (*sum_squares)(const Stream&, std::span<const View> tensors, double* sum);
  // *count (f64, device) += number of zero elements in all tensors, which have one dtype.
  void (*count_zeros)(const Stream&, std::span<const View> tensors, double* count);
  void (*clip)(const Stream&, const ClipArgs&);
  void (*qk_clip)(const Stream&, const QkClipArgs&);
  void (*normal)(const Stream&, const NormalArgs&);
};

}  // namespace bev
