// One decoder layer, assembled from the model's description.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/fp8_config.h"
#include "nn/attention.h"
#include "nn/mlp.h"
#include "nn/moe.h"

namespace bev {

// What is not kept for the backward but made again. Results are equal to the bit.
struct RecomputePolicy {
  // Whole layers: groups of `layers_per_unit` from the stage's first layer on, at most
  // `full_layers` layers of the stage (-1: all). layers_per_unit 0: no whole layers.
  std::int64_t layers_per_unit = 0;
  std::int64_t full_layers = -1;
  // Parts of the other layers.
  bool core_attention = false;
  bool norms = false;
  bool activations = false, expert_activations = false;
  bool mlp = false, experts = false;  // all of a dense MLP, of a layer of experts
  bool shared_experts = false;
  bool latent_up = false;  // heads of latent attention, from its latents on
};

struct BuildOptions {
  TensorParallel tensor_parallel;
  RecomputePolicy recompute;
  Fp8Config fp8;
  std::vector<ContextExchange> context = {ContextExchange::kRing};  // one, or one per layer
  ExpertParallel experts;
  bool shared_table = false;  // other ranks of the pipeline hold the embedding's table too
};

class DecoderLayer {
 public:
  // `number` tells the layer's kind and its random numbers; one behind the model's last is like it.
  DecoderLayer(const ModelConfig& config, std::int64_t number, const BuildOptions& options,
               const std::string& name);

  void params(std::vector<Param*>& list);
  std::int64_t number() const { return number_; }
  // x [T, H] -> [T, H]
  Var forward(Context& ctx, const Var& x, const LayerInput& input) const;

 private:
  void set_recipe(const Fp8Recipe& recipe);
  Var attend(Context& ctx, const Var& normalised, const LayerInput& input) const;
  Var feed_forward(Context& ctx, const Var& normalised, const LayerInput& input) const;

  std::int64_t number_;
  bool parallel_residual_;
  double hidden_dropout_;
  RecomputePolicy recompute_;
  Norm input_norm_, mlp_norm_;
  std::optional<Norm> post_attention_norm_, post_mlp_norm_;
  std::unique_ptr<AttentionModule> attention_;
  std::optional<Mlp> mlp_;  // one of the two
  std::optional<Moe> moe_;
};

NormOptions norm_options(const ModelConfig& config);
AttentionOptions attention_options(const ModelConfig& config, std::int64_t number,
                                   const BuildOptions& build);

}  // namespace bev
