// The three products of a linear layer, y = x W^T, in the model's dtype, or in 8-bit floats where
// the weight's recipe says so. The ops around them see no difference.
#pragma once

#include "autograd/tape.h"
#include "tensor/quantized.h"

namespace bev {

struct GemmArgs;

// What the scale of a layer's tensor follows from. Empty where it needs nothing: in the model's
// dtype, and where scales are of blocks.
struct TensorScale {
  Tensor hold;
  const float* amax = nullptr;
  float* seen = nullptr;
};
// Of a tensor of which this rank has `part`, whose largest number its producer may have found.
// Tensorwise: the largest number of the whole tensor, so this is collective over the ranks that
// share a micro-batch.
TensorScale tensor_scale(Context& ctx, const Param& weight, Fp8Role role, const Value& part,
                         const Placement& placement);

// x or dy as the products take it.
struct Factor {
  Tensor plain;
  Quantized quantized;
};
struct FactorUse {
  bool product = true;          // y = x W^T of x, dx = dy W of dy
  bool weight_gradient = true;  // dW = dy^T x
  QuantizeGroups groups = {};   // of rows of experts
};
// `x`, rows of the tensor that `scale` is of, for some of its uses.
Factor make_factor(Context& ctx, const Param& weight, Fp8Role role, const TensorScale& scale,
                   const Value& x, const FactorUse& use);
// Whether a tensor has one scale. Then any of its quantised rows are a factor, and all of them,
// turned, are its transpose.
bool has_one_scale(const Param& weight);
// Other rows of the tensor that `like` is rows of.
Factor with_rows(const Factor& like, Tensor rows);
Factor with_transpose(Context& ctx, const Factor& like, const Tensor& rows);

// A product whose factor b is the weight, so many times in a micro-batch.
void weight_product(Context& ctx, const Param& weight, GemmArgs product, std::int64_t uses = 1);
// y [T, O] = x W^T (+ b).
void forward_product(Context& ctx, const Param& weight, const Param* bias, const Factor& x,
                     const View& y);
// dx [T, I] = dy W.
void input_gradient_product(Context& ctx, const Param& weight, const Factor& dy, const View& dx);
// dW = dy^T x goes to the weight's sink.
void add_weight_gradient(Context& ctx, const Param& weight, const Placement& placement,
                         const Factor& dy, const Factor& x);

// What the weight gradient needs of x. In 8-bit floats that is the quantised transpose, half of x's
// bytes; where x is made again in the backward, so is the transpose. Of a part of the tokens it is
// the quantised rows, if those of all ranks together give the transpose.
class KeptInput {
 public:
  KeptInput() = default;
  KeptInput(const Var& x, TensorScale scale) : source_(x), scale_(std::move(scale)) {}
  // The transpose.
  explicit KeptInput(const Quantized& forms);
  // Rows of this rank's part; they are made again where x is.
  KeptInput(const Var& x, TensorScale scale, const Quantized& rows);

  // Whether `x` is to be kept as the transpose that its forward product makes on the way.
  static bool transposed(const Param& weight, const Var& x);
  // Whether a part of the tokens is to be kept, and to travel, as quantised rows.
  static bool in_rows(const Param& weight);
  // Of a part of the tokens: what all ranks' are gathered of, x or its quantised rows.
  Tensor part(Context& ctx, const Param& weight) const;
  // `whole` is what the parts of all ranks make up; empty where this rank's is all of it.
  Factor get(Context& ctx, const Param& weight, const Tensor& whole = {}) const;

 private:
  Saved source_;
  TensorScale scale_;
  Quantized transpose_, rows_;
};

// The forward product of all of x, and what is to be kept of it.
KeptInput forward_and_keep(Context& ctx, const Var& x, const Param& weight, const Param* bias,
                           const View& y);

}  // namespace bev
