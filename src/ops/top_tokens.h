// The likeliest tokens of rows of logits, with what their log-probabilities follow from.
#pragma once

#include "ops/loss.h"

namespace bev {

// Log p(ids[t, i]) is values[t, i] - values[t, 0] - first_losses[t].
struct TopTokens {
  Tensor ids;           // [T, k] i32, likeliest first; past the vocabulary -1
  Tensor values;        // [T, k] final logits in the wide dtype
  Tensor first_losses;  // [T] in the wide dtype: minus the log-probability of the likeliest

  TopTokens rows(std::int64_t begin, std::int64_t end) const {
    return {ids.rows(begin, end), values.rows(begin, end), first_losses.rows(begin, end)};
  }
};

// Fills `top`, with k >= 1. raw: logits of this rank's vocabulary as the loss begins with them;
// they are not changed. logits [T, V]: the final ones of the whole vocabulary, in the wide dtype.
// Collective over tp.
void find_top_tokens(Context& ctx, const Tensor& raw, const Tensor& logits, const HeadSpec& spec,
                     const TopTokens& top);
// The same, with final logits that are computed and gathered from the raw ones.
void find_top_tokens(Context& ctx, const Tensor& raw, const HeadSpec& spec, const TopTokens& top);

}  // namespace bev
