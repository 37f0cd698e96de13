// The tokens of a micro-batch that a context-parallel rank holds. A sample is split into 2 cp
// chunks of near equal size, and rank r holds chunks r and 2 cp - 1 - r (zigzag), which balances
// the work of a causal mask:
//
//   cp 2:   | 0 | 1 | 2 | 3 |      rank 0 holds 0 and 3, rank 1 holds 1 and 2
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "tensor/attention_rule.h"
#include "tensor/attention_run.h"

namespace bev {

// One sample: consecutive tokens that attend only within their document.
struct SampleShape {
  std::vector<std::int32_t> documents;  // lengths, whose sum is the number of tokens of the sample
};

// Consecutive tokens of one document in consecutive rows.
struct DocumentPiece {
  std::int32_t row = 0, count = 0;
  std::int32_t document = 0;      // index in the micro-batch
  std::int32_t begin = 0;         // position of the first token in its document
  std::int32_t length = 0;        // length of the whole document
  std::int32_t sample = 0;        // index in the micro-batch
  std::int32_t sample_begin = 0;  // position of the first token in its sample
  std::int32_t segment = 0;       // 0: from an early chunk, 1: from a late one
};

// The tokens of consecutive ranks, ordered by sample and position. A document has at most one piece
// in each segment.
class TokenSet {
 public:
  TokenSet() = default;
  // The tokens of ranks [first_rank, end_rank) of `ranks`.
  TokenSet(std::span<const SampleShape> samples, std::int64_t ranks, std::int64_t first_rank,
           std::int64_t end_rank);

  std::int64_t tokens() const { return tokens_; }
  int segments() const { return segments_; }  // 1 if early and late chunks are adjacent
  std::span<const DocumentPiece> pieces() const { return pieces_; }
  // Returns nullptr if the set has no token of the document in the segment.
  const DocumentPiece* find(std::int32_t document, int segment) const;

 private:
  void add(const DocumentPiece& piece);

  std::vector<DocumentPiece> pieces_;  // in row order
  std::vector<std::array<std::int32_t, 2>> by_document_;
  std::int64_t tokens_ = 0;
  int segments_ = 1;
};

// Attention runs of queries of one segment over keys of one segment: at most one run per document,
// none where the mask hides all keys. No key is in two runs.
std::vector<AttentionRun> visible_runs(const TokenSet& queries, int query_segment,
                                       const TokenSet& keys, int key_segment,
                                       const AttentionRule& rule);

struct RowCopy {
  std::int64_t from = 0, to = 0, count = 0;
};
// Where the rows of `part` are in `whole`, which contains all of them.
std::vector<RowCopy> row_copies(const TokenSet& part, const TokenSet& whole);

}  // namespace bev
