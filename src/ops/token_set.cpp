#include "ops/token_set.h"

#include <algorithm>

#include "base/error.h"
#include "comm/placement.h"

namespace bev {

void TokenSet::add(const DocumentPiece& piece) {
  std::int32_t& index = by_document_[static_cast<std::size_t>(piece.document)]
                                    [static_cast<std::size_t>(piece.segment)];
  if (index >= 0) {
    // The next chunk of the same segment continues where the last one ended.
    pieces_[static_cast<std::size_t>(index)].count += piece.count;
  } else {
    index = static_cast<std::int32_t>(pieces_.size());
    pieces_.push_back(piece);
  }
  tokens_ += piece.count;
}

TokenSet::TokenSet(std::span<const SampleShape> samples, std::int64_t ranks,
                   std::int64_t first_rank, std::int64_t end_rank) {
  bool joined = end_rank == ranks;  // chunks ranks - 1 and ranks are adjacent
  segments_ = joined ? 1 : 2;
  std::int32_t document = 0;
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const std::vector<std::int32_t>& lengths = samples[s].documents;
    std::int64_t length = 0;
    for (std::int32_t part : lengths) length += part;
    by_document_.resize(by_document_.size() + lengths.size(), {-1, -1});
    for (std::int64_t chunk = 0; chunk < 2 * ranks; ++chunk) {
      std::int64_t rank = std::min(chunk, 2 * ranks - 1 - chunk);
      if (rank < first_rank || rank >= end_rank) continue;
      Range held = shard_range(length, 2 * ranks, chunk);
      std::int64_t start = 0;
      for (std::size_t d = 0; d < lengths.size(); start += lengths[d++]) {
        std::int64_t begin = std::max(held.begin, start);
        std::int64_t end = std::min(held.end, start + lengths[d]);
        if (begin >= end) continue;
        DocumentPiece piece;
        piece.row = static_cast<std::int32_t>(tokens_);
        piece.count = static_cast<std::int32_t>(end - begin);
        piece.document = document + static_cast<std::int32_t>(d);
        piece.begin = static_cast<std::int32_t>(begin - start);
        piece.length = lengths[d];
        piece.sample = static_cast<std::int32_t>(s);
        piece.sample_begin = static_cast<std::int32_t>(begin);
        piece.segment = joined || chunk < ranks ? 0 : 1;
        add(piece);
      }
    }
    document += static_cast<std::int32_t>(lengths.size());
  }
}

const DocumentPiece* TokenSet::find(std::int32_t document, int segment) const {
  std::int32_t index =
      by_document_[static_cast<std::size_t>(document)][static_cast<std::size_t>(segment)];
  return index < 0 ? nullptr : &pieces_[static_cast<std::size_t>(index)];
}

std::vector<AttentionRun> visible_runs(const TokenSet& queries, int query_segment,
                                       const TokenSet& keys, int key_segment,
                                       const AttentionRule& rule) {
  std::vector<AttentionRun> runs;
  for (const DocumentPiece& q : queries.pieces()) {
    if (q.segment != query_segment) continue;
    const DocumentPiece* k = keys.find(q.document, key_segment);
    if (k == nullptr) continue;
    std::int64_t begin = k->begin, end = k->begin + k->count;
    if (rule.causal) end = std::min<std::int64_t>(end, q.begin + q.count);
    if (rule.window >= 0) {
      const std::int64_t reach = rule.chunked ? q.begin % (rule.window + 1) : rule.window;
      begin = std::max(begin, q.begin - reach);
      if (!rule.causal) end = std::min(end, q.begin + q.count + rule.window);
    }
    if (begin >= end) continue;
    AttentionRun run;
    run.q_begin = q.row;
    run.q_count = q.count;
    run.k_begin = k->row + (begin - k->begin);
    run.k_count = static_cast<std::int32_t>(end - begin);
    run.offset = static_cast<std::int32_t>(q.begin - begin);
    run.key_position = static_cast<std::int32_t>(begin);
    runs.push_back(run);
  }
  return runs;
}

std::vector<RowCopy> row_copies(const TokenSet& part, const TokenSet& whole) {
  std::vector<RowCopy> copies;
  for (const DocumentPiece& piece : part.pieces()) {
    const DocumentPiece* in = nullptr;
    for (int segment = 0; segment < 2; ++segment) {
      const DocumentPiece* found = whole.find(piece.document, segment);
      if (found == nullptr || piece.begin < found->begin) continue;
      if (piece.begin + piece.count <= found->begin + found->count) in = found;
    }
    BEV_CHECK(in != nullptr, ErrorKind::kInternal, "tokens ", piece.begin, " of document ",
              piece.document, " are not in the set that should hold them");
    copies.push_back({piece.row, in->row + (piece.begin - in->begin), piece.count});
  }
  return copies;
}

}  // namespace bev
