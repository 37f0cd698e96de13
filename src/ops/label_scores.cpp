#include "ops/label_scores.h"

#include <algorithm>

#include "ops/collective.h"
#include "ops/moe/moe.h"

namespace bev {

// The head is a router: a few outputs per token, whose values matter more than their cost.
Var label_scores(Context& ctx, const Var& hidden, const Param& head, std::int64_t tokens) {
  RouterSpec spec;
  spec.dtype = RouterDtype::kF32;
  return gather_tokens(ctx, router_logits(ctx, hidden, in_use(ctx, head), nullptr, spec), tokens);
}

std::size_t scored_token(std::span<const std::int32_t> tokens, std::int64_t pad_token) {
  std::size_t end = tokens.size();
  while (end > 0 && tokens[end - 1] == pad_token) --end;
  return std::max<std::size_t>(end, 1) - 1;
}

}  // namespace bev
