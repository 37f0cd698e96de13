// Mamba-2 mixer: one projection to z | x | B | C | dt, a causal convolution of x | B | C, the SSD
// recurrence, a gated norm, and the output projection. Heads are cut over tp; B and C too, by
// groups or, where ranks have parts of groups, by columns that all ranks gather.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/mixer.h"
#include "nn/recurrent_norm.h"
#include "ops/recurrent/causal_conv.h"
#include "ops/recurrent/gated_norm.h"
#include "ops/recurrent/ssd.h"

namespace bev {

struct MambaOptions {
  std::int64_t hidden_size = 0;
  std::int64_t heads = 0, head_size = 64, state_size = 128, groups = 8, conv_width = 4;
  bool conv_bias = true, in_bias = false, out_bias = false;
  RecurrentNorm norm = RecurrentNorm::kGroup;
  bool norm_before_gate = false;
  double epsilon = 1e-5;
  double dt_min = 0, dt_max = 0;  // dt_max 0: no limit
  double in_multiplier = 1, out_multiplier = 1;
  std::vector<double> part_multipliers = {};  // of z | x | B | C | dt; empty: none
  double init_std = 0.02, out_init_std = 0.02;
  std::int64_t chunk = 64;  // tokens of a chunk; changes rounding only
  TensorParallel tensor_parallel = {};

  std::int64_t width() const { return heads * head_size; }
  std::int64_t group_columns() const { return groups * state_size; }  // of B or C
};

class MambaMixer final : public Mixer {
 public:
  MambaMixer(const std::string& name, const MambaOptions& options);

  MambaOptions options;
  Linear in_proj, out_proj;
  Param conv_weight;
  std::optional<Param> conv_bias, norm_weight;
  Param dt_bias, a_log, d;

  void params(std::vector<Param*>& list) override;
  void linears(std::vector<Linear*>& list) override;
  Var forward(Context& ctx, const Var& x, const LayerInput& input) const override;
  StateSpec state(const Context& ctx) const override;

 private:
  // Columns of this rank: heads, and what it has of B and C.
  struct Cut {
    std::int64_t heads = 0, width = 0, columns = 0;
    bool shares = false;  // B and C are gathered
  };
  Cut cut(const Context& ctx) const;
  SsdSpec scan(const Context& ctx) const;
  GatedNormSpec gated() const;
};

}  // namespace bev
