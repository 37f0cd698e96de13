#include "ops/linear_gemms.h"

#include "autograd/quantize.h"
#include "kernels/gemm.h"
#include "kernels/quantize.h"

namespace bev {

namespace {

bool is_cut(PlaceState state) {
  return state == PlaceState::kShard0 || state == PlaceState::kShard1;
}

}  // namespace

TensorScale tensor_scale(Context& ctx, const Param& weight, Fp8Role role, const Value& part,
                         const Placement& placement) {
  switch (weight.fp8.scaling) {
    case Fp8Scaling::kNone:
    case Fp8Scaling::kBlockwise:
    case Fp8Scaling::kMxfp4:
      return {};
    case Fp8Scaling::kDelayed: {
      AmaxSlot slot = ctx.weights.amax(weight, role);
      // Evaluation must not enter the amax history.
      return {{}, slot.used, ctx.training ? slot.seen : nullptr};
    }
    case Fp8Scaling::kTensorwise:
    case Fp8Scaling::kNvfp4:
      break;
  }
  Tensor amax = part.amax;
  if (amax.empty()) {
    amax = ctx.allocate(Dtype::kF32, {1}, "scales");
    ctx.kernels.quantize.amax(ctx.stream, part.get(ctx), amax.as<float>());
  }
  if (is_cut(placement[Axis::kTp])) {
    ctx.mesh.tp().all_reduce(amax, Reduction::kMax, "largest number").wait();
  }
  // Context-parallel ranks hold other tokens of the same micro-batch.
  ctx.mesh.cp().all_reduce(amax, Reduction::kMax, "largest number").wait();
  const float* address = amax.as<float>();
  return {std::move(amax), address, nullptr};
}

GemmOperand make_operand(Context& ctx, const Param& weight, Fp8Role role, const TensorScale& scale,
                         const Value& x, const OperandUse& use) {
  const Fp8Recipe& recipe = weight.fp8;
  if (!recipe.used()) return {x.get(ctx), {}};
  GemmOperand out;
  bool transpose = use.wgrad && recipe.wgrad;
  if (use.wgrad && !transpose) out.plain = x.get(ctx);
  if (!use.gemm && !transpose) return out;
  QuantizeRequest request{{}, recipe, role, scale.amax, scale.seen, use.gemm, transpose};
  request.groups = use.groups;
  out.quantized = x.quantize(ctx, request);
  return out;
}

bool has_one_scale(const Param& weight) {
  return weight.fp8.used() && block_of(weight.fp8, Fp8Role::kInput) == ScaleBlock::kTensor;
}

GemmOperand with_rows(const GemmOperand& like, Tensor rows) {
  GemmOperand out = like;
  out.quantized.rows = std::move(rows);
  return out;
}

GemmOperand with_transpose(Context& ctx, const GemmOperand& like, const Tensor& rows) {
  GemmOperand out = with_rows(like, Tensor());
  std::int64_t padded = padded_rows(ScaleBlock::kTensor, rows.shape()[0]);
  out.quantized.columns = ctx.allocate(rows.dtype(), {rows.shape()[1], padded}, "quantized");
  out.quantized.column_scales = like.quantized.row_scales;
  ctx.kernels.quantize.transpose(ctx.stream, rows, out.quantized.columns);
  return out;
}

void weight_gemm(Context& ctx, const Param& weight, GemmArgs gemm, std::int64_t uses) {
  gemm.packed_b = ctx.weights.packed(weight, gemm, uses);
  ctx.kernels.gemm.gemm(ctx.stream, gemm);
}

namespace {
// Computes the GEMM from a weight in NF4 if there is a kernel for it; false: it is to be
// dequantised.
bool gemm_of_nf4(Context& ctx, const Param& weight, Nf4GemmArgs gemm) {
  const QuantizeKernels& kernels = ctx.kernels.quantize;
  if (weight.format != ParamFormat::kNf4 || kernels.takes_nf4 == nullptr) return false;
  gemm.w = {nullptr, weight.nf4_layout, weight.nf4.dtype};
  gemm.w_shape = weight.local;
  if (!kernels.takes_nf4(gemm)) return false;
  Nf4Lease lease = ctx.weights.nf4(weight);
  gemm.w = lease.view;
  kernels.nf4_gemm(ctx.stream, gemm);
  return true;
}
}  // namespace

void forward_gemm(Context& ctx, const Param& weight, const Param* bias, const GemmOperand& x,
                  const View& y) {
  WeightLease b = bias ? ctx.weights.use(*bias) : WeightLease{};
  if (weight.fp8.used()) {
    Quantized w = ctx.weights.quantized(weight);
    ctx.kernels.quantize.scaled_gemm(
        ctx.stream,
        {.a = x.quantized.by_rows(), .b = w.by_rows(), .c = y, .bias = b.view, .fast = true});
  } else if (!gemm_of_nf4(ctx, weight, {.a = x.plain, .c = y, .bias = b.view})) {
    WeightLease w = ctx.weights.use(weight);
    weight_gemm(ctx, weight, {x.plain, w.view, y, false, true, 1, 0, b.view});
  }
}

void dgrad_gemm(Context& ctx, const Param& weight, const GemmOperand& dy, const View& dx) {
  if (weight.fp8.used()) {
    Quantized w = ctx.weights.quantized(weight);
    ctx.kernels.quantize.scaled_gemm(ctx.stream,
                                     {.a = dy.quantized.by_rows(), .b = w.by_columns(), .c = dx});
  } else if (!gemm_of_nf4(ctx, weight, {.a = dy.plain, .c = dx, .transpose_w = false})) {
    WeightLease w = ctx.weights.use(weight);
    weight_gemm(ctx, weight, {dy.plain, w.view, dx, false, false, 1, 0, {}});
  }
}

void add_wgrad(Context& ctx, const Param& weight, const Placement& placement, const GemmOperand& dy,
               const GemmOperand& x) {
  GradSink sink = ctx.grads.sink(weight, placement);
  if (weight.fp8.used() && weight.fp8.wgrad) {
    ctx.kernels.quantize.scaled_gemm(ctx.stream, {.a = dy.quantized.by_columns(),
                                                  .b = x.quantized.by_columns(),
                                                  .c = sink.view,
                                                  .beta = sink.beta});
  } else {
    ctx.kernels.gemm.gemm(
        ctx.stream,
        {.a = dy.plain, .b = x.plain, .c = sink.view, .transpose_a = true, .beta = sink.beta});
  }
  ctx.grads.done(weight, std::move(sink));
}

bool KeptInput::transposed(const Param& weight, const Var& x) {
  return weight.fp8.used() && weight.fp8.wgrad && !x.recipe;
}

bool KeptInput::in_rows(const Param& weight) { return has_one_scale(weight) && weight.fp8.wgrad; }

KeptInput::KeptInput(const Quantized& forms) {
  transpose_ = forms;
  transpose_.rows = transpose_.row_scales = Tensor();
}

KeptInput::KeptInput(const Var& x, TensorScale scale, const Quantized& rows)
    : scale_(std::move(scale)), rows_(rows) {
  if (!x.recipe) return;
  source_ = Saved(x);
  rows_.rows = Tensor();
}

Tensor KeptInput::part(Context& ctx, const Param& weight) const {
  if (!rows_.rows.empty()) return rows_.rows;
  if (!in_rows(weight)) return source_.get(ctx);
  return make_operand(ctx, weight, Fp8Role::kInput, scale_, source_.value(), {true, false})
      .quantized.rows;
}

GemmOperand KeptInput::get(Context& ctx, const Param& weight, const Tensor& whole) const {
  if (!transpose_.columns.empty()) return {{}, transpose_};
  if (!rows_.row_scales.empty()) return with_transpose(ctx, {{}, rows_}, whole);
  Value x = whole.empty() ? source_.value() : Value(whole);
  return make_operand(ctx, weight, Fp8Role::kInput, scale_, x, {false, true});
}

KeptInput forward_and_keep(Context& ctx, const Var& x, const Param& weight, const Param* bias,
                           const View& y) {
  TensorScale scale = tensor_scale(ctx, weight, Fp8Role::kInput, x, x.placement);
  bool keeps = ctx.tape != nullptr && weight.trains;
  bool transposes = keeps && KeptInput::transposed(weight, x);
  GemmOperand operand = make_operand(ctx, weight, Fp8Role::kInput, scale, x, {true, transposes});
  forward_gemm(ctx, weight, bias, operand, y);
  if (transposes) return KeptInput(operand.quantized);
  return keeps ? KeptInput(x, std::move(scale)) : KeptInput();
}

}  // namespace bev
