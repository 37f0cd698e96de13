// Fused output layer and cross entropy, chunked over tokens: the logits of all tokens never exist
// at once.
#pragma once

#include <cstdint>

#include "autograd/tape.h"
#include "ops/micro_batch.h"

namespace bev {

struct HeadSpec {
  const Param* weight = nullptr;  // [V, H] split over the vocabulary
  double logit_scale = 1;
  double softcap = 0;
  std::int64_t chunk_bytes = 0;  // bytes of logits per chunk; 0: default of the device
  const Param* bias = nullptr;   // [V] split like the weight; nullptr: none
};

struct LossResult {
  Var loss;           // [1], for the tape; its gradient must be seeded with one
  Tensor token_loss;  // [T] in the wide dtype, 0 where ignored; the same on all tp ranks
};

// hidden [T, H], copied over tp. Gradients are computed with the loss, because the factor
// StepState::loss_factor is known; the backward only hands them out.
LossResult lm_head_loss(Context& ctx, const Var& hidden, const LossTargets& targets,
                        const HeadSpec& spec);

// Logits [T, V of this rank] in the wide dtype, scale and softcap applied; no gradient.
Tensor lm_head_logits(Context& ctx, const Var& hidden, const HeadSpec& spec);
// The same in two steps, for losses of tokens that are selected by their logits.
// raw_logits are those that the loss begins with: before scale and softcap, rows padded as the
// device likes. final_logits are without padding; they may share the memory of `raw`.
Tensor raw_logits(Context& ctx, const Var& hidden, const HeadSpec& spec);
Tensor final_logits(Context& ctx, const Tensor& raw, const HeadSpec& spec);
// -log p(targets[t]) as [T] in the wide dtype, computed as in training; `raw` is overwritten.
// Collective over tp. targets (device) are token ids, negative: ignored.
void token_losses(Context& ctx, const Tensor& raw, const std::int32_t* targets,
                  const HeadSpec& spec, const View& losses);
// All-gather over tp: [T, V] on every rank.
Tensor gather_vocabulary(Context& ctx, Tensor part, std::int64_t vocabulary);

}  // namespace bev
