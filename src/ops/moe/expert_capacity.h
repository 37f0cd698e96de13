// Expert capacity: the most tokens of a micro-batch that an expert takes. Choices above it are
// dropped: the token skips that expert, and its other probabilities are not renormalised.
#pragma once

#include "ops/moe/drop_policy.h"
#include "ops/moe/moe.h"

namespace bev {

struct CapacityRule {
  double factor = 0;  // capacity factor relative to an even load; 0: no limit
  DropPolicy policy = DropPolicy::kProbs;
};

// ceil(T k / E * factor), where T counts the whole micro-batch, of which a rank may have only a
// part.
std::int64_t expert_capacity(const CapacityRule& rule, std::int64_t tokens, std::int64_t topk,
                             std::int64_t expert_count);

// Sets the expert of dropped choices to -1. All ranks that share the micro-batch make the same
// decision.
Routing limit_choices(Context& ctx, const Routing& routing, const CapacityRule& rule,
                      std::int64_t expert_count, const SequenceLayout& layout);

}  // namespace bev
