#include "nn/mamba.h"

#include <array>
#include <cmath>
#include <limits>

#include "ops/elementwise.h"
#include "ops/recurrent/columns.h"

namespace bev {

namespace {

Param make_param(std::string name, const Shape& shape, std::vector<std::int64_t> segments,
                 const InitRule& init) {
  Param param;
  param.name = std::move(name);
  param.shape = shape;
  param.split = {Axis::kTp, 0, std::move(segments)};
  param.init = init;
  param.wd_mult = shape.ndim() > 1 ? 1 : 0;
  return param;
}

// A number per head, in at least f32: what is exponentiated loses too much in 16 bits.
Param head_param(std::string name, std::int64_t heads, const InitRule& init) {
  Param param = make_param(std::move(name), {heads}, {}, init);
  param.format = ParamFormat::kF32;
  return param;
}

}  // namespace

MambaMixer::MambaMixer(const std::string& name, const MambaOptions& o)
    : options(o),
      in_proj(column_linear({name + ".in_proj", 2 * o.width() + 2 * o.group_columns() + o.heads,
                             o.hidden_size, o.in_bias, o.init_std},
                            {o.width(), o.width(), o.group_columns(), o.group_columns(), o.heads})),
      out_proj(
          row_linear({name + ".out_proj", o.hidden_size, o.width(), o.out_bias, o.out_init_std})) {
  in_proj.weight.fused = true;
  const std::vector<std::int64_t> parts = {o.width(), o.group_columns(), o.group_columns()};
  const std::int64_t channels = o.width() + 2 * o.group_columns();
  const InitRule uniform{InitKind::kUniform, 1 / std::sqrt(static_cast<double>(o.conv_width))};
  conv_weight = make_param(name + ".conv1d.weight", {channels, 1, o.conv_width}, parts, uniform);
  if (o.conv_bias) conv_bias = make_param(name + ".conv1d.bias", {channels}, parts, uniform);
  dt_bias = head_param(name + ".dt_bias", o.heads, {InitKind::kSoftplusUnder, 0.1, 0.001});
  a_log = head_param(name + ".A_log", o.heads, {InitKind::kLogUniform, 16, 1});
  d = head_param(name + ".D", o.heads, {InitKind::kConstant, 1});
  if (o.norm == RecurrentNorm::kNone) return;
  norm_weight = make_param(name + ".norm.weight", {o.width()}, {}, {InitKind::kConstant, 1});
}

void MambaMixer::params(std::vector<Param*>& list) {
  in_proj.params(list);
  list.push_back(&conv_weight);
  if (conv_bias) list.push_back(&*conv_bias);
  list.insert(list.end(), {&dt_bias, &a_log, &d});
  if (norm_weight) list.push_back(&*norm_weight);
  out_proj.params(list);
}

void MambaMixer::linears(std::vector<Linear*>& list) {
  list.insert(list.end(), {&in_proj, &out_proj});
}

MambaMixer::Cut MambaMixer::cut(const Context& ctx) const {
  const std::int64_t tp = ctx.mesh.tp().size();
  Cut cut;
  cut.heads = options.heads / tp;
  cut.width = options.width() / tp;
  cut.columns = shard_range(options.group_columns(), tp, ctx.mesh.tp().rank()).size();
  cut.shares = options.groups % tp != 0;
  return cut;
}

SsdSpec MambaMixer::scan(const Context& ctx) const {
  const MambaOptions& o = options;
  const Cut here = cut(ctx);
  const std::int64_t tp = ctx.mesh.tp().size();
  SsdSpec spec{&dt_bias, &a_log, &d, {}};
  spec.shape.chunk = o.chunk;
  spec.shape.heads = here.heads;
  spec.shape.head_size = o.head_size;
  spec.shape.state_size = o.state_size;
  spec.shape.groups = here.shares ? o.groups : o.groups / tp;
  spec.shape.first_head = here.shares ? here.heads * ctx.mesh.tp().rank() : 0;
  spec.shape.heads_per_group = o.heads / o.groups;
  spec.shape.dt_min = o.dt_min;
  if (o.dt_max > 0) spec.shape.dt_max = o.dt_max;
  return spec;
}

GatedNormSpec MambaMixer::gated() const {
  GatedNormSpec spec;
  spec.gate_first = !options.norm_before_gate;
  spec.epsilon = options.epsilon;
  if (!norm_weight) return spec;
  spec.weight = &*norm_weight;
  const bool whole = options.norm == RecurrentNorm::kWidth;
  spec.group_width = whole ? options.width() : options.width() / options.groups;
  return spec;
}

StateSpec MambaMixer::state(const Context& ctx) const {
  const Cut here = cut(ctx);
  const std::int64_t scanned = here.heads * options.head_size * options.state_size;
  return {0, 0, scanned + (here.width + 2 * here.columns) * (options.conv_width - 1)};
}

Var MambaMixer::forward(Context& ctx, const Var& x, const LayerInput& input) const {
  const MambaOptions& o = options;
  const Cut here = cut(ctx);
  const SsdSpec spec = scan(ctx);
  const std::array<std::int64_t, 5> parts = {here.width, here.width, here.columns, here.columns,
                                             here.heads};
  RecurrentRows rows{input.layout, input.decode, {}};
  if (input.decode != nullptr) rows.states = input.state->sequences;
  Var in = o.in_multiplier != 1 ? scaled(ctx, x, o.in_multiplier) : x;
  Var projected = in_proj.enter(ctx, in, input.layout->tokens, o.tensor_parallel);
  if (!o.part_multipliers.empty()) {
    projected = scale_column_parts(ctx, projected, parts, o.part_multipliers);
  }
  const std::array<std::int64_t, 3> uses = {here.width, here.width + 2 * here.columns, here.heads};
  std::vector<Var> split = split_columns(ctx, projected, uses);
  projected = {};
  Var xbc = causal_conv(ctx, split[1],
                        {.weight = &conv_weight, .bias = conv_bias ? &*conv_bias : nullptr}, rows,
                        spec.shape.state_elements());
  if (here.shares) {
    const std::array<std::int64_t, 2> shared = {o.group_columns(), o.group_columns()};
    xbc = share_columns(ctx, xbc, here.width, shared);
  }
  Var y = ssd(ctx, xbc, split[2], spec, rows, 0);
  xbc = {};
  y = gated_norm(ctx, y, split[0], gated());
  Var out = out_proj.leave(ctx, y, o.tensor_parallel);
  return o.out_multiplier != 1 ? scaled(ctx, out, o.out_multiplier) : out;
}

}  // namespace bev
