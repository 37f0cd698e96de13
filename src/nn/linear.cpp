#include "nn/linear.h"

#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/parallel_linear.h"

namespace bev {

namespace {
Linear make_linear(const LinearSpec& spec, Split weight_split, Split bias_split) {
  Linear linear;
  linear.weight.name = spec.name + ".weight";
  linear.weight.shape = {spec.out, spec.in};
  linear.weight.split = std::move(weight_split);
  linear.weight.init = {InitKind::kNormal, spec.std};
  if (spec.bias) {
    Param& bias = linear.bias.emplace();
    bias.name = spec.name + ".bias";
    bias.shape = {spec.out};
    bias.split = std::move(bias_split);
    bias.init = {InitKind::kConstant, 0};
    bias.wd_mult = 0;
  }
  return linear;
}

Param norm_param(std::string name, std::int64_t size, double value) {
  Param param;
  param.name = std::move(name);
  param.shape = {size};
  param.init = {InitKind::kConstant, value};
  param.wd_mult = 0;
  return param;
}
}  // namespace

Linear column_linear(const LinearSpec& spec, std::vector<std::int64_t> segments) {
  Split split{Axis::kTp, 0, std::move(segments)};
  return make_linear(spec, split, split);
}

Linear row_linear(const LinearSpec& spec) { return make_linear(spec, {Axis::kTp, 1, {}}, {}); }

Linear whole_linear(const LinearSpec& spec) { return make_linear(spec, {}, {}); }

void Linear::params(std::vector<Param*>& list) {
  list.push_back(&weight);
  if (bias) list.push_back(&*bias);
  if (adapter) adapter->params(list);
}

Var Linear::forward(Context& ctx, const Var& x) const {
  Var y = linear(ctx, x, weight, bias ? &*bias : nullptr);
  if (!adapter) return y;
  Var inner = scaled(ctx, linear(ctx, x, adapter->a, nullptr), adapter->scale);
  return add(ctx, y, linear(ctx, inner, adapter->b, nullptr));
}

// The low-rank A x enters the region instead of x: B is column parallel like the weight.
Var Linear::enter(Context& ctx, const Var& x, std::int64_t tokens, const TensorParallel& tp) const {
  Var y = column_parallel(ctx, x, tokens, weight, bias ? &*bias : nullptr, tp.overlap);
  if (!adapter) return y;
  Var inner = scaled(ctx, linear(ctx, x, adapter->a, nullptr), adapter->scale);
  return add(ctx, y, column_parallel(ctx, inner, tokens, adapter->b, nullptr, tp.overlap));
}

// A is row parallel like the weight: its low-rank output is reduced before B is applied.
Var Linear::leave(Context& ctx, const Var& x, const TensorParallel& tp) const {
  Var y = row_parallel(ctx, x, weight, tp.sequence_parallel, tp.overlap);
  if (adapter) {
    Var inner = row_parallel(ctx, x, adapter->a, tp.sequence_parallel, tp.overlap);
    inner = scaled(ctx, inner, adapter->scale);
    y = add(ctx, y, linear(ctx, inner, adapter->b, nullptr));
  }
  return bias ? add_bias(ctx, y, *bias) : y;
}

void Norm::params(std::vector<Param*>& list) {
  list.push_back(&weight);
  if (bias) list.push_back(&*bias);
}

NormSpec Norm::spec(bool regenerate) const {
  return {&weight, bias ? &*bias : nullptr, center, epsilon, offset, regenerate, amax, unwritten};
}

Norm make_norm(const std::string& name, std::int64_t size, const NormOptions& options) {
  Norm norm;
  norm.weight = norm_param(name + ".weight", size, options.plus_one ? 0.0 : 1.0);
  if (options.center) norm.bias = norm_param(name + ".bias", size, 0);
  norm.center = options.center;
  norm.epsilon = options.epsilon;
  norm.offset = options.plus_one ? 1 : 0;
  return norm;
}

}  // namespace bev
