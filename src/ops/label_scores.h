// Scores of a head for sequence classification, of which reward models are those with one label.
#pragma once

#include <cstdint>
#include <span>

#include "autograd/tape.h"

namespace bev {

// hidden [T, H], replicated or shard(0) of `tokens` rows over tp; head [labels, H] -> [tokens,
// labels] in the wide dtype, replicated over tp. Sums are at least f32.
Var label_scores(Context& ctx, const Var& hidden, const Param& head, std::int64_t tokens);

// Position of the token whose scores are those of the sequence: the last one that is not pad_token,
// the first one if all are, as in transformers. pad_token -1: the last one.
std::size_t scored_token(std::span<const std::int32_t> tokens, std::int64_t pad_token);

}  // namespace bev
