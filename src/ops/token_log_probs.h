// Log-probabilities of given tokens, for objectives over them (preference losses, policy gradients,
// distillation). The softmax is recomputed in the backward: the logits of all tokens are never
// materialised, and none are saved.
#pragma once

#include "ops/top_tokens.h"

namespace bev {

// log p(targets[t]) of every token, [T] in the wide dtype, 0 where the target is negative; the same
// on all tp ranks. hidden [T, H], copied over tp; targets [T] i32. The gradient of the result [T]
// is replicated over tp and gives those of hidden and of the weight of the head. With `top`, the
// likeliest tokens of all rows are found in the same logits; that changes no bit of the result.
Var token_log_probs(Context& ctx, const Var& hidden, const Tensor& targets, const HeadSpec& spec,
                    const TopTokens* top = nullptr);

}  // namespace bev
