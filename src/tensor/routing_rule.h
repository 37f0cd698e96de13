// How the router of a mixture of experts chooses.
#pragma once

#include <cstdint>

namespace bev {

enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus };
// What the product that makes the logits is computed in; at least the model's dtype.
enum class RouterDtype : std::uint8_t { kModel, kF32, kF64 };

// How a token chooses topk of E experts by its logits.
struct RoutingRule {
  std::int64_t topk = 2;
  RouterScore score = RouterScore::kSoftmax;
  bool pre_softmax = false;  // softmax over all experts, not over the chosen ones
  bool normalize = true;     // other scores: those of the chosen are divided by their sum
  bool by_logit = false;     // chosen by logit, whatever the score
  double scaling = 1;        // of the probabilities
  // Experts in equal groups, of which group_topk are open to a token: those whose best
  // `group_experts` scores have the largest sum.
  std::int64_t groups = 1, group_topk = 1, group_experts = 1;
};

}  // namespace bev
