// The parts of documents that recurrences pass over: those of a layout, with states that travel
// between context-parallel ranks, or those of a decoding step, with states that stay.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/attention/attention.h"
#include "ops/sequence_layout.h"
#include "tensor/recurrent_run.h"

namespace bev {

struct RecurrentRows {
  const SequenceLayout* layout = nullptr;  // must live until the backward
  const DecodeStep* decode = nullptr;      // nullptr: training
  Tensor states = {};                      // decoding: [slots, E], see StateSpec
};

// Runs of a decoding step; enter and leave are slots.
std::vector<RecurrentRun> decode_runs(const DecodeStep& step);

// Pieces of documents on all context-parallel ranks, rank after rank. Piece i of this rank is run
// i, which enters with row i of a tensor [own, E] and leaves to it.
class SequencePieces {
 public:
  SequencePieces(const Context& ctx, const SequenceLayout& layout);

  bool travel() const { return ranks_ > 1; }  // documents may go on on other ranks
  std::span<const DocumentPiece> all() const { return pieces_; }
  std::int64_t first() const { return first_; }  // of this rank's pieces
  std::int64_t own() const { return own_; }
  // Documents are runs over `order`, indices of all pieces by document and position.
  std::span<const std::int64_t> order() const { return order_; }
  std::span<const RecurrentRun> documents() const { return documents_; }
  std::vector<RecurrentRun> runs() const;
  // The piece before piece i in its document; -1: none.
  std::int64_t before(std::int64_t piece) const { return before_[static_cast<std::size_t>(piece)]; }
  // x [own, E] -> [all, E], in the order of all().
  Tensor gather(Context& ctx, const Tensor& x, const char* label) const;
  // The rows of this rank of x [all, E].
  Tensor own_rows(const Tensor& x) const { return x.rows(first_, first_ + own_); }

 private:
  void put_in_order();

  std::int64_t ranks_ = 1, first_ = 0, own_ = 0;
  std::vector<DocumentPiece> pieces_;
  std::vector<std::int64_t> order_, before_;
  std::vector<RecurrentRun> documents_;
};

}  // namespace bev
