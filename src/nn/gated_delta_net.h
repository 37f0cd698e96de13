// Gated DeltaNet mixer: one projection to q | k | v | z | b | a, a causal convolution of q | k | v,
// the gated delta rule with decays and strengths from a and b, an RMSNorm of each head times
// silu(z), and the output projection. Key and value heads are cut over tp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nn/mixer.h"
#include "ops/recurrent/causal_conv.h"
#include "ops/recurrent/delta_rule.h"
#include "ops/recurrent/gated_norm.h"

namespace bev {

struct GatedDeltaOptions {
  std::int64_t hidden_size = 0;
  std::int64_t key_heads = 16, value_heads = 32, key_size = 128, value_size = 128, conv_width = 4;
  double epsilon = 1e-6;  // of the norm
  double init_std = 0.02, out_init_std = 0.02;
  std::int64_t chunk = 64;  // tokens of a chunk; changes rounding only
  TensorParallel tensor_parallel = {};

  std::int64_t key_columns() const { return key_heads * key_size; }
  std::int64_t value_columns() const { return value_heads * value_size; }
  std::int64_t conv_columns() const { return 2 * key_columns() + value_columns(); }
};

class GatedDeltaNet final : public Mixer {
 public:
  GatedDeltaNet(const std::string& name, const GatedDeltaOptions& options);

  GatedDeltaOptions options;
  Linear in_proj, out_proj;
  Param conv_weight, dt_bias, a_log, norm_weight;

  void params(std::vector<Param*>& list) override;
  void linears(std::vector<Linear*>& list) override;
  Var forward(Context& ctx, const Var& x, const LayerInput& input) const override;
  StateSpec state(const Context& ctx) const override;

 private:
  DeltaRuleSpec rule(const Context& ctx) const;
  std::int64_t state_elements(const Context& ctx) const;  // of the rule alone
};

}  // namespace bev
