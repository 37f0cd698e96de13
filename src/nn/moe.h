// Mixture of experts (MoE) in place of an MLP: a top-k router, dispatch to E expert MLPs, combine,
// and an optional shared expert for all tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/grouped_linear.h"
#include "nn/mlp.h"
#include "ops/moe/expert_capacity.h"
#include "ops/moe/expert_exchange.h"
#include "ops/moe/moe.h"

namespace bev {

struct MoeOptions {
  MlpOptions expert;  // sizes, activation, biases and initialisation of one expert
  std::int64_t experts = 0;
  RoutingRule routing;
  bool router_bias = false;
  bool expert_bias = false;             // added to scores for the choice only; see Param::sign_rate
  double bias_update_rate = 0;          // of expert_bias
  bool scale_input = false;             // probabilities multiply the experts' input
  std::int64_t shared_expert_size = 0;  // 0: none
  bool shared_expert_gate = false;
  bool recompute_shared = false;  // recomputes the shared expert in the backward
  RouterSpec router;              // losses, noise and dtype; the module fills in the rest
  CapacityRule capacity;          // in training
  ExpertParallel parallel;
};

struct Moe {
  Moe(const std::string& name, const MoeOptions& options);

  MoeOptions options;
  Param router;                      // [E, H]
  std::optional<Param> router_bias;  // [E]
  std::optional<Param> expert_bias;  // [E]
  GroupedLinear fc1, fc2;            // fc1 rows are gate | up when gated
  std::optional<Mlp> shared;         // shared expert
  std::optional<Param> shared_gate;  // [1, H]

  void params(std::vector<Param*>& list);
  void grouped_linears(std::vector<GroupedLinear*>& list) { list.insert(list.end(), {&fc1, &fc2}); }
  // [T, H] -> [T, H], both outside of the tensor-parallel region.
  Var forward(Context& ctx, const Var& x, const SequenceLayout& layout) const;

 private:
  // The tensors of a dispatch.
  struct Dispatched {
    DispatchedTokens choices, probs, tokens;
  };
  Dispatched begin_dispatch(Context& ctx, const Var& x, const Routing& routing,
                            const DispatchRef& dispatch) const;
  // Returns the combined outputs of each token's experts, with the placement of its probabilities.
  Var run_experts(Context& ctx, Dispatched dispatched, const Routing& routing,
                  const DispatchRef& dispatch) const;
  Var run_shared(Context& ctx, const Var& x, std::int64_t tokens) const;
  // run_shared(), with activations saved or recomputed.
  Var pass_shared(Context& ctx, const Var& x, std::int64_t tokens) const;
};

}  // namespace bev
