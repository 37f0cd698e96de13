// Log-probabilities of given tokens by whole forwards, as training computes them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "data/batch.h"
#include "parallel/rank_model.h"

namespace bev {

// Rows of one column or more of all context-parallel ranks, in the order of the samples.
Tensor join_sequences(RankModel& model, const SequenceLayout& layout, Tensor rows);

// Numbers for every token of a micro-batch, [T, columns], from its final hidden states on the ranks
// of the last stage.
using RowsOfTokens = FunctionRef<Tensor(Context& ctx, const MicroBatch& batch, const Var& final)>;
// Computes the rows of all tokens, a micro-batch at a time. World rank 0 receives those of
// consecutive samples, in order. Collective.
void for_token_rows(RankModel& model, std::span<const TokenSample> samples,
                    std::int64_t micro_batch_size, RowsOfTokens compute,
                    FunctionRef<void(std::span<const double> rows)> receive);

// log p of every token of each sample but the first of a document (0 there), under any layout.
// Collective; on world rank 0, empty on others.
std::vector<std::vector<double>> token_scores(RankModel& model,
                                              std::span<const TokenSample> samples,
                                              std::int64_t micro_batch_size);

// The scores of each document of the samples by a head for sequence classification, [labels] each,
// on world rank 0. Collective.
std::vector<std::vector<double>> sequence_scores(RankModel& model,
                                                 std::span<const TokenSample> samples,
                                                 std::int64_t micro_batch_size);

}  // namespace bev
