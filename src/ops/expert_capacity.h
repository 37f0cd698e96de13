// A limit of the tokens that an expert takes of a micro-batch. Choices above it are dropped: the
// token goes on without that expert, its other probabilities stay as they are.
#pragma once

#include "ops/drop_policy.h"
#include "ops/moe.h"

namespace bev {

struct CapacityRule {
  double factor = 0;  // of what each expert would have if all had as much; 0: no limit
  DropPolicy policy = DropPolicy::kProbs;
};

// ceil(T k / E * factor) of the whole micro-batch, of which each rank may have a part.
std::int64_t expert_capacity(const CapacityRule& rule, std::int64_t tokens, std::int64_t topk,
                             std::int64_t expert_count);

// Dropped choices have expert -1. All ranks that share the micro-batch decide the same.
Routing limit_choices(Context& ctx, const Routing& routing, const CapacityRule& rule,
                      std::int64_t expert_count, const SequenceLayout& layout);

}  // namespace bev
