// The output layer and the loss as one op, chunked over tokens: whole logits never exist.
#pragma once

#include <cstdint>

#include "autograd/tape.h"
#include "ops/micro_batch.h"

namespace bev {

struct HeadSpec {
  const Param* weight = nullptr;  // [V, H] split over the vocabulary
  double logit_scale = 1;
  double softcap = 0;
  std::int64_t chunk_bytes = 0;  // of logits; 0: as the device likes it
};

struct LossResult {
  Var loss;           // [1], for the tape: seed its gradient with one
  Tensor token_loss;  // [T] in the wide dtype, 0 where ignored; the same on all tp ranks
};

// hidden [T, H], copied over tp. The gradients are computed along with the loss (the factor
// StepState::loss_factor is known), so that the backward hands out what is ready.
LossResult lm_head_loss(Context& ctx, const Var& hidden, const LossTargets& targets,
                        const HeadSpec& spec);

// Logits [T, V of this rank] in the wide dtype, scale and softcap applied; no gradient.
Tensor lm_head_logits(Context& ctx, const Var& hidden, const HeadSpec& spec);
// Of all ranks of tp, on all of them: [T, V].
Tensor gather_vocabulary(Context& ctx, Tensor part, std::int64_t vocabulary);

}  // namespace bev
