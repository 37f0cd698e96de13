// The output layer over a rank's tokens, a chunk of logits at a time: what the loss and the
// log-probabilities of targets share. Logits of all tokens never exist at once.
#pragma once

#include "ops/loss.h"

namespace bev {

// hidden must be copied over tp and as wide as the weight, which must be split over the vocabulary.
void check_head(const Var& hidden, const HeadSpec& spec);

// How logits [T, V of this rank] are cut.
struct LogitsChunks {
  std::int64_t rows = 1;    // tokens of a chunk
  std::int64_t stride = 0;  // elements from one row of logits to the next, V or more
};
LogitsChunks logits_chunks(const Context& ctx, const HeadSpec& spec, std::int64_t tokens,
                           Dtype dtype);

// Cross entropy of every token and, wanted, the gradient of
// *loss_factor * sum_t weights[t] * token_loss[t] with respect to hidden and the head's weight.
struct CrossEntropyPass {
  const char* op = "";                  // for probes
  Tensor hidden;                        // [T, H]
  Placement placement;                  // of hidden
  Tensor targets;                       // [T] i32, negative: ignored
  Tensor token_loss;                    // [T] in the wide dtype: the result, 0 where ignored
  std::int64_t passes = 1;              // that compute the same logits in a micro-batch
  bool with_gradient = false;           // of the weight where it trains, and of hidden:
  Tensor dhidden = {};                  // [T, H], this rank's part of the sum; empty: not wanted
  Tensor weights = {};                  // [T] f32 or the wide dtype
  const double* loss_factor = nullptr;  // device; null: 1
};
// Collective over tp. The weight's gradient goes to its sink, once, also where there are no tokens.
void cross_entropy(Context& ctx, const HeadSpec& spec, const CrossEntropyPass& pass);

}  // namespace bev
