// Output layer and cross entropy in chunks of tokens, shared by the loss and token
// log-probabilities. The logits of all tokens are never materialised at once.
#pragma once

#include "ops/logit_loss.h"
#include "ops/top_tokens.h"

namespace bev {

struct LossWholeArgs;

// hidden must be copied over tp and match the width of the weight, which must be split over the
// vocabulary.
void check_head(const Var& hidden, const HeadSpec& spec);

// Adds the bias of the head, if it has one, to logits [T, V of this rank].
void add_head_bias(Context& ctx, const HeadSpec& spec, const Tensor& logits);

// Chunking of the logits [T, V of this rank].
struct LogitsChunks {
  std::int64_t rows = 1;    // tokens per chunk
  std::int64_t stride = 0;  // row stride of the logits in elements, >= V
};
LogitsChunks logits_chunks(const Context& ctx, const HeadSpec& spec, std::int64_t tokens,
                           Dtype dtype);

// Vocabulary-parallel cross entropy of a chunk: reduces the row statistics over tp, then computes
// the losses. With gradients, logits are overwritten by theirs.
void vocabulary_losses(Context& ctx, const LossWholeArgs& args);

// Vocabulary-parallel cross entropy of every token and, with_gradient, the gradient of *loss_factor
// * sum_t weights[t] * token_loss[t] with respect to hidden and the weight of the head.
struct CrossEntropyPass {
  const char* op = "";         // for probes
  Tensor hidden;               // [T, H]
  Placement placement;         // of hidden
  Tensor targets;              // [T] i32, negative: ignored
  Tensor token_loss;           // [T] in the wide dtype: output, 0 where ignored
  std::int64_t passes = 1;     // passes over the same logits per micro-batch
  bool with_gradient = false;  // for the weight if it trains, and for hidden if dhidden is set
  Tensor dhidden = {};         // [T, H], partial sum over tp; empty: not wanted
  Tensor weights = {};         // [T] f32 or the wide dtype
  const double* loss_factor = nullptr;  // device; null: 1
  const TopTokens* top = nullptr;       // output, of every token; null: not wanted
  const LogitLoss* loss = nullptr;      // instead of the cross entropy; null: that
};
// Collective over tp. The weight gradient goes to its sink exactly once, even if there are no
// tokens.
void cross_entropy(Context& ctx, const HeadSpec& spec, const CrossEntropyPass& pass);

}  // namespace bev
