// The three GEMMs of a linear layer (forward, dgrad, wgrad), in the model dtype or in FP8 if the
// weight has a recipe. The ops that call them need not distinguish.
#pragma once

#include "autograd/tape.h"
#include "tensor/quantized.h"

namespace bev {

struct GemmArgs;

// The amax that determines the FP8 scale of a tensor. Empty in the model dtype and with blockwise
// scales.
struct TensorScale {
  Tensor hold;
  const float* amax = nullptr;
  float* seen = nullptr;
};
// Scale of a tensor of which this rank has `part`, whose producer may have computed its amax. With
// tensorwise scaling the amax covers the whole tensor, so the call is collective over the ranks
// that share a micro-batch. With delayed scaling it comes from the history.
TensorScale tensor_scale(Context& ctx, const Param& weight, Fp8Role role, const Value& part,
                         const Placement& placement);

// x or dy as a GEMM operand.
struct GemmOperand {
  Tensor plain;
  Quantized quantized;
};
struct OperandUse {
  bool gemm = true;            // operand of the forward (x) or of dgrad (dy)
  bool wgrad = true;           // operand of wgrad, dW = dy^T x
  QuantizeGroups groups = {};  // rows grouped by expert
};
// Prepares `x`, rows of the tensor that `scale` belongs to, for the given uses.
GemmOperand make_operand(Context& ctx, const Param& weight, Fp8Role role, const TensorScale& scale,
                         const Value& x, const OperandUse& use);
// True if the tensor has a single scale. Then any subset of its quantised rows is a valid operand,
// and the transpose of all quantised rows is the wgrad operand.
bool has_one_scale(const Param& weight);
// Operands from other rows of the same tensor as `like`: as they are, or transposed for wgrad.
GemmOperand with_rows(const GemmOperand& like, Tensor rows);
GemmOperand with_transpose(Context& ctx, const GemmOperand& like, const Tensor& rows);

// GEMM whose operand b is the weight. `uses` is the number of such GEMMs per micro-batch, which
// decides if packing the weight pays.
void weight_gemm(Context& ctx, const Param& weight, GemmArgs gemm, std::int64_t uses = 1);
// Forward: y [T, O] = x W^T (+ b).
void forward_gemm(Context& ctx, const Param& weight, const Param* bias, const GemmOperand& x,
                  const View& y);
// dgrad: dx [T, I] = dy W.
void dgrad_gemm(Context& ctx, const Param& weight, const GemmOperand& dy, const View& dx);
// wgrad: accumulates dW = dy^T x into the sink of the weight.
void add_wgrad(Context& ctx, const Param& weight, const Placement& placement, const GemmOperand& dy,
               const GemmOperand& x);

// Input saved for wgrad. In FP8 it is the quantised transpose, half the bytes of x; if x is
// recomputed in the backward, so is the transpose. Under sequence parallelism it is this rank's
// quantised rows, if gathering them gives the transpose.
class KeptInput {
 public:
  KeptInput() = default;
  KeptInput(const Var& x, TensorScale scale) : source_(x), scale_(std::move(scale)) {}
  // Saves the quantised transpose.
  explicit KeptInput(const Quantized& forms);
  // Saves quantised rows of this rank's tokens; they are recomputed if x is.
  KeptInput(const Var& x, TensorScale scale, const Quantized& rows);

  // True if `x` is saved as the transpose that its forward GEMM produces.
  static bool transposed(const Param& weight, const Var& x);
  // True if this rank's tokens are saved, and all-gathered, as quantised rows.
  static bool in_rows(const Param& weight);
  // Under sequence parallelism, this rank's input to the all-gather: x, or its FP8 rows.
  Tensor part(Context& ctx, const Param& weight) const;
  // `whole` is the all-gathered input; empty if this rank has all tokens.
  GemmOperand get(Context& ctx, const Param& weight, const Tensor& whole = {}) const;

 private:
  Saved source_;
  TensorScale scale_;
  Quantized transpose_, rows_;
};

// Forward GEMM of all of x; returns the input saved for wgrad.
KeptInput forward_and_keep(Context& ctx, const Var& x, const Param& weight, const Param* bias,
                           const View& y);

}  // namespace bev
