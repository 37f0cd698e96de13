// A mixture of experts in the place of an MLP: a router, E MLPs of which each token passes some,
// and perhaps one that all tokens pass.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/grouped_linear.h"
#include "nn/mlp.h"
#include "ops/expert_capacity.h"
#include "ops/expert_exchange.h"
#include "ops/moe.h"

namespace bev {

struct MoeOptions {
  MlpOptions expert;  // of one expert: sizes, activation, biases, initial values
  std::int64_t experts = 0;
  RoutingRule routing;
  bool router_bias = false;
  bool expert_bias = false;             // moves the choice; see Param::sign_rate
  double bias_update_rate = 0;          // of it
  std::int64_t shared_expert_size = 0;  // 0: none
  bool shared_expert_gate = false;
  bool recompute_shared = false;  // run it again in the backward
  RouterSpec router;              // its losses, noise and dtype; the rest is filled in
  CapacityRule capacity;          // while training
  ExpertParallel parallel;
};

struct Moe {
  Moe(const std::string& name, const MoeOptions& options);

  MoeOptions options;
  Param router;                      // [E, H]
  std::optional<Param> router_bias;  // [E]
  std::optional<Param> expert_bias;  // [E]
  GroupedLinear fc1, fc2;            // fc1 rows are gate | up when gated
  std::optional<Mlp> shared;         // beside the experts
  std::optional<Param> shared_gate;  // [1, H]

  void params(std::vector<Param*>& list);
  void grouped_linears(std::vector<GroupedLinear*>& list) { list.insert(list.end(), {&fc1, &fc2}); }
  // [T, H] -> [T, H], both outside of the tensor-parallel region.
  Var forward(Context& ctx, const Var& x, const SequenceLayout& layout) const;

 private:
  // What goes to experts.
  struct Entering {
    EnteringTokens choices, probs, tokens;
  };
  Entering enter(Context& ctx, const Var& x, const Routing& routing,
                 const DispatchRef& dispatch) const;
  // Sums over each token's experts, placed as its probabilities.
  Var run_experts(Context& ctx, Entering entering, const Routing& routing,
                  const DispatchRef& dispatch) const;
  Var run_shared(Context& ctx, const Var& x, std::int64_t tokens) const;
  // The same, kept or to be run again.
  Var pass_shared(Context& ctx, const Var& x, std::int64_t tokens) const;
};

}  // namespace bev
