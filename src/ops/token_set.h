// Which tokens of a micro-batch a rank holds when sequences are cut over context-parallel ranks. A
// sample is cut into 2 cp chunks as evenly as they go, and rank r holds chunks r and 2 cp - 1 - r:
// under a causal mask the early chunk is little work, the late one much.
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

// Tokens in a row that attend within their document only.
struct SampleShape {
  std::vector<std::int32_t> documents;  // lengths, adding up to the sample's tokens
};

// Consecutive tokens of one document in consecutive rows.
struct DocumentPiece {
  std::int32_t row = 0, count = 0;
  std::int32_t document = 0;      // counted over the micro-batch
  std::int32_t begin = 0;         // place of the first token in its document
  std::int32_t length = 0;        // of the whole document
  std::int32_t sample = 0;        // counted over the micro-batch
  std::int32_t sample_begin = 0;  // place of the first token in its sample
  std::int32_t segment = 0;       // 0: of an early chunk, 1: of a late one
};

// The tokens of some neighbouring ranks, in the order of sample and place. A document has at most
// one piece in each segment.
class TokenSet {
 public:
  TokenSet() = default;
  // Of the ranks [first_rank, end_rank) of `ranks`.
  TokenSet(std::span<const SampleShape> samples, std::int64_t ranks, std::int64_t first_rank,
           std::int64_t end_rank);

  std::int64_t tokens() const { return tokens_; }
  int segments() const { return segments_; }  // 1 when early and late chunks are neighbours
  std::span<const DocumentPiece> pieces() const { return pieces_; }
  // nullptr: the set has nothing of it.
  const DocumentPiece* find(std::int32_t document, int segment) const;

 private:
  void add(const DocumentPiece& piece);

  std::vector<DocumentPiece> pieces_;  // in row order
  std::vector<std::array<std::int32_t, 2>> by_document_;
  std::int64_t tokens_ = 0;
  int segments_ = 1;
};

// What queries of one segment may see of the keys of one segment: at most one run per document, and
// none where the mask hides all of it. No key is in two runs.
std::vector<AttentionRun> visible_runs(const TokenSet& queries, int query_segment,
                                       const TokenSet& keys, int key_segment,
                                       const AttentionRule& rule);

struct RowCopy {
  std::int64_t from = 0, to = 0, count = 0;
};
// Where the rows of `part` are in `whole`, which holds all of them.
std::vector<RowCopy> row_copies(const TokenSet& part, const TokenSet& whole);

}  // namespace bev
