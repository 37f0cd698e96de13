// Cross entropy of a few labels, whose logits exist as a tensor and are whole on every rank.
#pragma once

#include "ops/loss.h"

namespace bev {

// logits [R, labels], replicated over tp; targets of R rows. The loss is the weighted sum over
// rows, and its gradient multiplied by StepState::loss_factor, as in lm_head_loss().
LossResult label_loss(Context& ctx, const Var& logits, const LossTargets& targets);

}  // namespace bev
