// Embeddings: final hidden states of whole forwards, as training computes them, pooled to one
// vector for each row of tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel/rank_model.h"

namespace bev {

enum class Pooling : std::uint8_t {
  kCls,   // the first token
  kMean,  // of all tokens
  kLast,  // the last token
};

struct EmbeddingOptions {
  Pooling pooling = Pooling::kLast;
  bool normalize = false;            // to length 1
  std::int64_t batch_tokens = 8192;  // about as many in a micro-batch
};

// Error(kInput) if the row is empty, has a token outside of the vocabulary, or more tokens than
// the model has positions. `what` names it in the message ("row 3").
void check_embedding_row(const ModelConfig& model, std::span<const std::int32_t> row,
                         const std::string& what);

// [rows][H], under any layout. Collective, with the same rows on all ranks; on world rank 0, empty
// on others. A row's result does not depend on the others but for the rounding of kernels.
std::vector<std::vector<double>> embeddings(RankModel& model,
                                            std::span<const std::vector<std::int32_t>> rows,
                                            const EmbeddingOptions& options);

}  // namespace bev
