#include "nn/gated_delta_net.h"

#include <array>
#include <cmath>

#include "base/error.h"
#include "ops/recurrent/columns.h"

namespace bev {

namespace {

// A number per head, in at least f32: what is exponentiated loses too much in 16 bits.
Param head_param(std::string name, std::int64_t heads, const InitRule& init) {
  Param param;
  param.name = std::move(name);
  param.shape = {heads};
  param.split = {Axis::kTp, 0, {}};
  param.init = init;
  param.wd_mult = 0;
  param.format = ParamFormat::kF32;
  return param;
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(const std::string& name, const GatedDeltaOptions& o)
    : options(o),
      in_proj(column_linear(
          {name + ".in_proj", o.conv_columns() + o.value_columns() + 2 * o.value_heads,
           o.hidden_size, false, o.init_std},
          {o.key_columns(), o.key_columns(), o.value_columns(), o.value_columns(), o.value_heads,
           o.value_heads})),
      out_proj(row_linear(
          {name + ".out_proj", o.hidden_size, o.value_columns(), false, o.out_init_std})) {
  in_proj.weight.fused = true;
  conv_weight.name = name + ".conv1d.weight";
  conv_weight.shape = {o.conv_columns(), 1, o.conv_width};
  conv_weight.split = {Axis::kTp, 0, {o.key_columns(), o.key_columns(), o.value_columns()}};
  conv_weight.init = {InitKind::kUniform, 1 / std::sqrt(static_cast<double>(o.conv_width))};
  dt_bias = head_param(name + ".dt_bias", o.value_heads, {InitKind::kConstant, 1});
  a_log = head_param(name + ".A_log", o.value_heads, {InitKind::kLogUniform, 16, 1});
  norm_weight.name = name + ".out_norm.weight";
  norm_weight.shape = {o.value_size};
  norm_weight.split = {Axis::kTp, -1, {}};
  norm_weight.init = {InitKind::kConstant, 1};
  norm_weight.wd_mult = 0;
}

void GatedDeltaNet::params(std::vector<Param*>& list) {
  in_proj.params(list);
  list.insert(list.end(), {&conv_weight, &dt_bias, &a_log, &norm_weight});
  out_proj.params(list);
}

void GatedDeltaNet::linears(std::vector<Linear*>& list) {
  list.insert(list.end(), {&in_proj, &out_proj});
}

DeltaRuleSpec GatedDeltaNet::rule(const Context& ctx) const {
  const std::int64_t tp = ctx.mesh.tp().size();
  BEV_CHECK(options.key_heads % tp == 0, in_proj.weight.name, ": ", options.key_heads,
            " key heads over ", tp, " tensor-parallel ranks");
  return {.key_heads = options.key_heads / tp,
          .value_heads = options.value_heads / tp,
          .key_size = options.key_size,
          .value_size = options.value_size,
          .chunk = options.chunk};
}

std::int64_t GatedDeltaNet::state_elements(const Context& ctx) const {
  return options.key_size * options.value_columns() / ctx.mesh.tp().size();
}

StateSpec GatedDeltaNet::state(const Context& ctx) const {
  const std::int64_t channels = options.conv_columns() / ctx.mesh.tp().size();
  return {0, 0, state_elements(ctx) + channels * (options.conv_width - 1)};
}

Var GatedDeltaNet::forward(Context& ctx, const Var& x, const LayerInput& input) const {
  const std::int64_t tp = ctx.mesh.tp().size();
  RecurrentRows rows{input.layout, input.decode, {}};
  if (input.decode != nullptr) rows.states = input.state->sequences;
  Var projected = in_proj.enter(ctx, x, input.layout->tokens, options.tensor_parallel);
  const std::array<std::int64_t, 3> parts = {
      options.conv_columns() / tp, options.value_columns() / tp, 2 * options.value_heads / tp};
  std::vector<Var> split = split_columns(ctx, projected, parts);
  projected = {};
  Var qkv = causal_conv(ctx, split[0], {.weight = &conv_weight}, rows, state_elements(ctx));
  DeltaGates gates = delta_gates(ctx, split[2], a_log, dt_bias);
  Var y = delta_rule(ctx, {qkv, gates.g, gates.beta}, rows, rule(ctx));
  qkv = {};
  y = gated_norm(ctx, y, split[1],
                 {.weight = &norm_weight,
                  .group_width = options.value_size,
                  .gate_first = false,
                  .epsilon = options.epsilon});
  return out_proj.leave(ctx, y, options.tensor_parallel);
}

}  // namespace bev
