// The output layer with a loss of all logits of a token, such as a divergence from a teacher; in
// chunks of tokens, like the cross entropy.
#pragma once

#include "base/function_ref.h"
#include "ops/loss.h"

namespace bev {

// The loss of tokens [rows.begin, rows.end). `raw` are this rank's logits before scale and softcap,
// in rows that may be padded; with_gradient it overwrites them by the gradient of
// StepState::loss_factor times the sum of the losses. Collective over tp.
using LogitLoss = FunctionRef<void(Range rows, const Tensor& raw, bool with_gradient)>;

// Like lm_head_loss: [1], for the tape. hidden [T, H], copied over tp.
Var logit_loss(Context& ctx, const Var& hidden, const HeadSpec& spec, const LogitLoss& loss);

}  // namespace bev
