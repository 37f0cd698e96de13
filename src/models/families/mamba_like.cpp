#include "models/families/mamba_like.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "models/families/llama_like.h"

namespace bev {

void read_mamba(const HfConfig& hf, const MambaKeys& keys, const MambaDefaults& defaults,
                std::int64_t width, ModelConfig& config) {
  MambaConfig& mamba = config.mamba;
  mamba.num_heads = hf.positive_integer(keys.heads, defaults.heads);
  const bool automatic =
      hf.is(keys.head_dim, "auto") || (defaults.head_dim == 0 && !hf.has(keys.head_dim));
  mamba.head_dim = automatic ? std::max<std::int64_t>(width / mamba.num_heads, 1)
                             : hf.positive_integer(keys.head_dim, defaults.head_dim);
  if (width > 0 && mamba.num_heads * mamba.head_dim != width) {
    hf.reject(keys.heads, concat(mamba.num_heads, " heads of ", mamba.head_dim,
                                 " must be the width of the mixer, ", width));
  }
  mamba.num_groups = hf.positive_integer(keys.groups, defaults.groups);
  if (mamba.num_heads % mamba.num_groups != 0) {
    hf.reject(keys.groups, concat("it must divide the ", mamba.num_heads, " heads"));
  }
  mamba.state_dim = hf.positive_integer(keys.state, defaults.state);
  mamba.conv_kernel = hf.positive_integer(keys.conv, 4);
  if (mamba.conv_kernel > 16) hf.reject(keys.conv, "at most 16 tokens are supported");
  mamba.conv_bias = hf.boolean(keys.conv_bias, true);
  mamba.in_bias = hf.boolean(keys.in_bias, false);
  mamba.out_bias = hf.boolean(keys.out_bias, false);
  static_cast<void>(hf.positive_integer(keys.chunk, defaults.chunk));  // changes rounding only
}

void write_mamba(const ModelConfig& config, const MambaKeys& keys, const MambaDefaults& defaults,
                 HfConfig& hf) {
  const MambaConfig& mamba = config.mamba;
  hf.set(keys.heads, mamba.heads(config.hidden_size));
  hf.set(keys.head_dim, mamba.head_dim);
  hf.set(keys.groups, mamba.num_groups);
  hf.set(keys.state, mamba.state_dim);
  hf.set(keys.conv, mamba.conv_kernel);
  hf.set(keys.conv_bias, mamba.conv_bias);
  hf.set(keys.in_bias, mamba.in_bias);
  hf.set(keys.out_bias, mamba.out_bias);
  hf.set(keys.chunk, defaults.chunk);
}

void read_step_limits(const HfConfig& hf, ModelConfig& config) {
  const std::vector<double> limits = hf.limits("time_step_limit");
  if (limits.empty()) return;
  if (limits.size() != 2 || std::isinf(limits[0]) || limits[1] < limits[0] || limits[1] == 0) {
    hf.reject("time_step_limit", "it must be a least and a larger most step");
  }
  config.mamba.dt_min = limits[0];
  config.mamba.dt_max = std::isinf(limits[1]) ? 0 : limits[1];
}

void write_step_limits(const ModelConfig& config, HfConfig& hf) {
  const MambaConfig& mamba = config.mamba;
  hf.set("time_step_limit",
         std::vector<double>{mamba.dt_min, mamba.dt_max > 0 ? mamba.dt_max : HUGE_VAL});
}

void add_mamba_weights(std::vector<WeightRule>& rules, const std::string& ours,
                       const std::string& theirs) {
  for (const char* part : {"in_proj", "conv1d", "dt_bias", "A_log", "D", "norm", "out_proj"}) {
    rules.push_back({concat(ours, ".", part), {concat(theirs, ".", part)}});
  }
}

std::vector<WeightRule> hybrid_weights(const HybridNames& names) {
  std::vector<WeightRule> rules = llama_weights();
  set_sources(rules, "pre_mlp_layernorm", {std::string(names.mlp_norm)});
  set_sources(rules, "mlp.linear_fc1",
              {concat(names.mlp, ".gate_proj"), concat(names.mlp, ".up_proj")},
              WeightKind::kGateUpRows);
  set_sources(rules, "mlp.linear_fc2", {concat(names.mlp, ".down_proj")});
  for (WeightRule& rule : rules) {
    if (rule.name == "decoder.final_layernorm") rule.sources = {concat("model.", names.final_norm)};
  }
  add_mamba_weights(rules, "decoder.layers.{}.mixer", "model.layers.{}.mamba");
  return rules;
}

}  // namespace bev
