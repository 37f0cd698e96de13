#include "nn/linear.h"

#include <array>

#include "base/error.h"
#include "ops/collective.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/low_rank.h"
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
  for (LowRank& adapter : adapters) adapter.params(list);
}

namespace {

bool any_applies(const Context& ctx, const Linear& layer) {
  return ctx.adapters && !layer.adapters.empty();
}

// DoRA multiplies what comes before the bias.
bool has_magnitudes(const Context& ctx, const Linear& layer) {
  return any_applies(ctx, layer) && layer.adapters.front().magnitude.has_value();
}

bool drops_out(const Context& ctx, const Linear& layer) {
  return ctx.training && layer.adapters.front().dropout > 0;
}

// The input of the adapters, with dropout. `first`: the first of this rank's columns.
Var adapter_input(Context& ctx, const Linear& layer, const Var& x, std::int64_t first) {
  const LowRank& adapter = layer.adapters.front();
  if (!drops_out(ctx, layer)) return x;
  BEV_CHECK(ctx.layout != nullptr, ErrorKind::kInternal, "adapter ", adapter.a.name,
            ": dropout outside of a layer");
  return dropout_copy(ctx, x, *ctx.layout,
                      {adapter.dropout, RandomUse::kAdapterDropout, adapter.stream, first});
}

Var scale_by_magnitudes(Context& ctx, const Linear& layer, const Var& y) {
  std::array<MagnitudeColumns, kMostMagnitudes> parts;
  BEV_CHECK(layer.adapters.size() <= parts.size(), ErrorKind::kInternal, layer.weight.name, ": ",
            layer.adapters.size(), " magnitudes");
  for (std::size_t i = 0; i < layer.adapters.size(); ++i) {
    const LowRank& adapter = layer.adapters[i];
    std::int64_t first = adapter.first_column(layer.weight, ctx.mesh);
    parts[i] = {first, &*adapter.magnitude,
                row_squares(ctx, {&layer.weight, first, &adapter.a, &adapter.b, adapter.scale})};
  }
  return scale_columns(ctx, y, parts);
}

// A layer with its adapters; base(x) is W x, and low_rank(x, adapter) A x, placed so that B gives
// the placement of W x. This rank has columns of x from `first`. As in peft, dropout with DoRA
// leaves inputs of both W and A out: y = W (x - x') + magnitude / norm * (W + B A) x'.
template <class Base, class Inner>
Var adapted(Context& ctx, const Linear& layer, const Var& x, std::int64_t first, const Base& base,
            const Inner& low_rank) {
  if (!any_applies(ctx, layer)) return base(x);
  Var in = adapter_input(ctx, layer, x, first);
  const bool decomposed = has_magnitudes(ctx, layer);
  const bool split = decomposed && drops_out(ctx, layer);
  Var y = base(split ? in : x);
  for (const LowRank& adapter : layer.adapters) {
    if (!has_rows(ctx, adapter)) continue;
    Var inner = in_own_rows(ctx, adapter, low_rank(adapter.dropout > 0 ? in : x, adapter));
    y = add_linear(ctx, y, inner, adapter.b,
                   {adapter.scale, adapter.first_column(layer.weight, ctx.mesh)});
  }
  if (decomposed) y = scale_by_magnitudes(ctx, layer, y);
  return split ? add(ctx, base(add(ctx, x, scaled(ctx, in, -1))), y) : y;
}

}  // namespace

Var Linear::forward(Context& ctx, const Var& x) const {
  const bool late = has_magnitudes(ctx, *this);
  Var y = adapted(
      ctx, *this, x, 0,
      [&](const Var& in) { return linear(ctx, in, weight, bias && !late ? &*bias : nullptr); },
      [&](const Var& in, const LowRank& adapter) { return linear(ctx, in, adapter.a, nullptr); });
  return bias && late ? add_bias(ctx, y, *bias) : y;
}

// The low-rank A x enters the region instead of x: B is column parallel like the weight.
Var Linear::enter(Context& ctx, const Var& x, std::int64_t tokens, const TensorParallel& tp) const {
  const bool late = has_magnitudes(ctx, *this);
  const Param* early = bias && !late ? &*bias : nullptr;
  Var y = adapted(
      ctx, *this, x, 0,
      [&](const Var& in) { return column_parallel(ctx, in, tokens, weight, early, tp.overlap); },
      [&](const Var& in, const LowRank& adapter) {
        return enter_tensor_parallel(ctx, linear(ctx, in, adapter.a, nullptr), tokens);
      });
  return bias && late ? add_bias(ctx, y, *bias) : y;
}

// A is row parallel like the weight: its low-rank output is reduced before B is applied.
Var Linear::leave(Context& ctx, const Var& x, const TensorParallel& tp) const {
  const std::int64_t first =
      shard_range(weight.shape[1], ctx.mesh.tp().size(), ctx.mesh.tp().rank()).begin;
  auto times = [&](const Var& in, const Param& matrix) {
    return row_parallel(ctx, in, matrix, tp.sequence_parallel, tp.overlap);
  };
  Var y = adapted(
      ctx, *this, x, first, [&](const Var& in) { return times(in, weight); },
      [&](const Var& in, const LowRank& adapter) { return times(in, adapter.a); });
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
  if (options.center && options.bias) norm.bias = norm_param(name + ".bias", size, 0);
  norm.center = options.center;
  norm.epsilon = options.epsilon;
  norm.offset = options.plus_one ? 1 : 0;
  return norm;
}

}  // namespace bev
