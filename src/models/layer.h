// One transformer layer, built from its LayerSpec.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/build_options.h"
#include "models/config.h"
#include "models/layer_spec.h"
#include "nn/mlp.h"
#include "nn/moe.h"

namespace bev {

class DecoderLayer {
 public:
  // `number` is the layer index in the model (for Philox streams and the FP8 recipe); `name` is the
  // prefix of its parameter names and its FSDP unit.
  DecoderLayer(const ModelConfig& config, const LayerSpec& spec, std::int64_t number,
               const BuildOptions& options, const std::string& name);

  void params(std::vector<Param*>& list);
  std::int64_t number() const { return number_; }
  const Mixer& mixer() const { return *mixer_; }
  // x [T, H] -> [T, H]
  Var forward(Context& ctx, const Var& x, const LayerInput& input) const;

 private:
  void linears(std::vector<Linear*>& list);
  void mark_linear_weights();
  void add_adapters(const ModelConfig& config);
  void set_recipe(const Fp8Recipe& recipe, bool adapted);
  Var mix(Context& ctx, const Var& normalised, const LayerInput& input) const;
  Var feed_forward(Context& ctx, const Var& normalised, const LayerInput& input) const;
  // The layer with a norm after each residual sum.
  Var forward_normed_sums(Context& ctx, const Var& x, const LayerInput& input) const;

  std::int64_t number_;
  bool parallel_residual_;
  bool norms_residual_;  // post_attention_norm_ and post_mlp_norm_ are of the residual sums
  double residual_multiplier_;
  double hidden_dropout_;
  RecomputePolicy recompute_;
  std::optional<Norm> input_norm_;
  std::unique_ptr<Mixer> mixer_;
  std::optional<Norm> mlp_norm_;  // none where the MLP reads what the mixer does, or its sum
  std::optional<Norm> post_attention_norm_, post_mlp_norm_;
  std::optional<Mlp> mlp_;  // at most one of the two
  std::optional<Moe> moe_;
};

NormOptions norm_options(const ModelConfig& config);
// Initial standard deviation of projections into the residual stream, reduced so that its variance
// does not grow with depth.
double output_std(const ModelConfig& config);
// Assigns parameters to one FSDP unit.
void set_unit(std::span<Param* const> params, const std::string& unit);

}  // namespace bev
