// Log-probabilities of given tokens by whole forwards, as training computes them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/batch.h"
#include "parallel/rank_model.h"

namespace bev {

// Rows of one column or more of all context-parallel ranks, in the order of the samples.
Tensor join_sequences(RankModel& model, const SequenceLayout& layout, Tensor rows);

// log p of every token of each sample but the first of a document (0 there), under any layout.
// Collective; on world rank 0, empty on others. With `values`, the model has a critic's head, whose
// values before each of these tokens go there.
std::vector<std::vector<double>> token_scores(RankModel& model,
                                              std::span<const TokenSample> samples,
                                              std::int64_t micro_batch_size,
                                              std::vector<std::vector<double>>* values = nullptr);

// The scores of each document of the samples by a head for sequence classification, [labels] each,
// on world rank 0. Collective.
std::vector<std::vector<double>> sequence_scores(RankModel& model,
                                                 std::span<const TokenSample> samples,
                                                 std::int64_t micro_batch_size);

}  // namespace bev
