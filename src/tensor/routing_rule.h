// Top-k routing rule of a mixture of experts.
#pragma once

#include <cstdint>

namespace bev {

enum class RouterScore : std::uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus };
// Compute dtype of the router's GEMM; at least the model's dtype.
enum class RouterDtype : std::uint8_t { kModel, kF32, kF64 };

// How a token selects topk of E experts from its logits.
struct RoutingRule {
  std::int64_t topk = 2;
  RouterScore score = RouterScore::kSoftmax;
  bool pre_softmax = false;  // softmax over all experts, before the top-k
  bool normalize = true;     // for other scores: divide the selected scores by their sum
  bool by_logit = false;     // select by logit, whatever the score function
  bool by_score = false;     // select by score also with softmax: biases are added to scores
  double scaling = 1;        // factor on the probabilities
  // Group-limited routing (DeepSeek-V3): experts form equal groups and a token may use only the
  // group_topk groups whose best `group_experts` scores have the largest sum.
  std::int64_t groups = 1, group_topk = 1, group_experts = 1;
};

}  // namespace bev
