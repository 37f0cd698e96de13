// Mixture of experts: which layers have one, how tokens choose experts, and what training adds to
// keep the experts evenly used.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/drop_policy.h"
#include "tensor/routing_rule.h"

namespace bev {

class FieldList;

// What the model is.
struct MoeConfig {
  static constexpr const char* kSection = "mixture of experts";  // of its fields

  std::int64_t num_experts = 0;  // 0: all layers are dense
  // One N: layers 0, N, 2N, ... have experts; or for each layer 1: experts, 0: dense.
  std::vector<std::int64_t> layer_freq = {1};
  std::int64_t ffn_hidden_size = 0;  // of one expert; 0: that of a dense layer

  // Router.
  std::int64_t topk = 2;
  RouterScore score_function = RouterScore::kSoftmax;
  bool pre_softmax = false;       // softmax over all experts instead of over the chosen ones
  bool norm_topk_prob = true;     // scores that are no softmax: several chosen ones add up to 1
  bool norm_single_prob = false;  // and one that is chosen alone is 1
  double scaling_factor = 1.0;    // of the probabilities
  std::int64_t num_groups = 0;    // 0: one
  std::int64_t group_topk = 0;
  std::int64_t group_score_experts = 0;  // whose scores make a group's; 0: topk / group_topk
  bool router_bias = false;              // of the linear that makes the logits
  bool expert_bias = false;              // added to scores for the choice alone, and balanced

  // Beside the chosen experts every token passes a dense MLP of this size; 0: none.
  std::int64_t shared_expert_size = 0;
  bool shared_expert_gate = false;  // times sigmoid(x w)

  void fields(FieldList& list);

  bool any() const { return num_experts > 0; }
  bool in_layer(std::int64_t layer) const;
  RoutingRule routing() const;
  std::vector<std::string> problems(std::int64_t num_layers) const;
};

// What training adds. Exported models do not know of it.
struct MoeTraining {
  static constexpr const char* kSection = "balance of experts";  // of its fields

  // none, aux_loss, seq_aux_loss, global_aux_loss, or sinkhorn by itself
  std::vector<std::string> load_balancing = {"aux_loss"};
  std::vector<double> aux_loss_coeff = {0.0};  // of each
  double z_loss_coeff = 0.0;
  double bias_update_rate = 1e-3;  // of the expert bias
  double input_jitter_eps = 0.0;
  bool force_load_balancing = false;
  RouterDtype router_dtype = RouterDtype::kModel;
  double capacity_factor = 0;  // of what an expert takes of a micro-batch; 0: all
  DropPolicy drop_policy = DropPolicy::kProbs;
  bool pad_to_capacity = false;  // Megatron's; changes nothing, since empty rows are never made

  void fields(FieldList& list);
  // Of a kind of load balancing; 0: it does not act.
  double coefficient(const char* kind) const;
  bool uses_sinkhorn() const;
  // The model's rule, or Megatron's of sinkhorn: the probability is the softmax over all experts,
  // or the sigmoid where one is chosen.
  RoutingRule routing(RoutingRule rule) const;
  std::vector<std::string> problems(const MoeConfig& moe) const;
};

}  // namespace bev
