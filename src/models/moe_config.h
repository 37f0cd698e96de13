// Mixture of experts (MoE): which layers have experts, the router, and load balancing in training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/moe/drop_policy.h"
#include "tensor/routing_rule.h"

namespace bev {

class FieldList;

// The model itself.
struct MoeConfig {
  static constexpr const char* kSection = "mixture of experts";  // flag section

  std::int64_t num_experts = 0;  // 0: all layers are dense
  // One N: layers 0, N, 2N, ... have experts; or for each layer 1: experts, 0: dense.
  std::vector<std::int64_t> layer_freq = {1};
  std::int64_t ffn_hidden_size = 0;  // of one expert; 0: same as a dense layer

  // Router.
  std::int64_t topk = 2;
  RouterScore score_function = RouterScore::kSoftmax;
  bool pre_softmax = false;       // softmax over all experts instead of the chosen ones
  bool norm_topk_prob = true;     // scores other than softmax: normalise if topk > 1
  bool norm_single_prob = false;  // also if topk is 1, which gives 1
  double scaling_factor = 1.0;    // of the probabilities
  std::int64_t num_groups = 0;    // group-limited routing; 0: one group
  std::int64_t group_topk = 0;
  // Top experts that form the score of a group; 0: topk / group_topk.
  std::int64_t group_score_experts = 0;
  bool router_bias = false;  // bias of the linear that computes the logits
  bool expert_bias = false;  // added to scores for the choice only; follows the load
  bool scale_input = false;  // probabilities multiply the input of the experts, not their output

  // Shared expert: a dense MLP of this size that every token passes; 0: none.
  std::int64_t shared_expert_size = 0;
  bool shared_expert_gate = false;  // multiply by sigmoid(x w)

  void fields(FieldList& list);

  bool any() const { return num_experts > 0; }
  bool in_layer(std::int64_t layer) const;
  RoutingRule routing() const;
  std::vector<std::string> problems(std::int64_t num_layers) const;
};

// Training-only options, not part of exported models.
struct MoeTraining {
  static constexpr const char* kSection = "balance of experts";  // flag section

  // none, aux_loss, seq_aux_loss, global_aux_loss, or sinkhorn alone
  std::vector<std::string> load_balancing = {"aux_loss"};
  std::vector<double> aux_loss_coeff = {0.0};  // one per type
  double z_loss_coeff = 0.0;
  double bias_update_rate = 1e-3;  // of the expert bias
  double input_jitter_eps = 0.0;
  bool force_load_balancing = false;
  RouterDtype router_dtype = RouterDtype::kModel;
  double capacity_factor = 0;  // expert capacity relative to an even load; 0: no limit
  DropPolicy drop_policy = DropPolicy::kProbs;
  // Accepted for Megatron; no effect, since padding rows are never computed.
  bool pad_to_capacity = false;

  void fields(FieldList& list);
  // Coefficient of a type of load balancing; 0: inactive.
  double coefficient(const char* kind) const;
  bool uses_sinkhorn() const;
  // The rule of the model, or Megatron's for sinkhorn: probabilities are the softmax over all
  // experts, or the sigmoid with top-1.
  RoutingRule routing(RoutingRule rule) const;
  std::vector<std::string> problems(const MoeConfig& moe) const;
};

}  // namespace bev
