// The stretches of tokens that recurrences pass over: those of a layout, with states that travel
// between context-parallel ranks, or those of a decoding step, with states that stay. Sizes follow
// from the samples, whatever documents they have.
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

// Consecutive tokens in consecutive rows of a rank.
struct TokenSpan {
  std::int64_t row = 0, count = 0;
  std::int64_t sample = 0, begin = 0;  // where it is
  std::int64_t tail = 0;               // tokens of its last document
  bool goes_on = false;                // its first document began in the span before
};

// Spans on all context-parallel ranks, rank after rank: without context parallelism one with all
// rows, else the parts of samples. Span i of this rank enters with row i of a tensor [own, E] and
// leaves to it.
class SequenceSpans {
 public:
  SequenceSpans(const Context& ctx, const SequenceLayout& layout);

  bool travel() const { return ranks_ > 1; }  // documents may go on on other ranks
  std::span<const TokenSpan> all() const { return spans_; }
  const TokenSpan& at(std::int64_t span) const { return spans_[static_cast<std::size_t>(span)]; }
  std::int64_t first() const { return first_; }  // of this rank's spans
  std::int64_t own() const { return own_; }
  bool is_own(std::int64_t span) const { return span >= first_ && span < first_ + own_; }
  // Documents that spans share are runs over `order`, indices of all spans by place.
  std::span<const std::int64_t> order() const { return order_; }
  std::span<const RecurrentRun> chains() const { return chains_; }
  // The span before one that goes on.
  std::int64_t before(std::int64_t span) const { return before_[static_cast<std::size_t>(span)]; }
  // This rank's spans; the rows where documents begin; and its parts of documents.
  std::vector<RecurrentRun> runs() const;
  const std::vector<std::int64_t>& starts() const { return starts_; }
  const std::vector<RecurrentRun>& document_runs() const { return document_runs_; }
  // x [own, E] -> [all, E], in the order of all().
  Tensor gather(Context& ctx, const Tensor& x, const char* label) const;
  // The rows of this rank of x [all, E].
  Tensor own_rows(const Tensor& x) const { return x.rows(first_, first_ + own_); }

 private:
  void add_spans(const TokenSet& tokens);
  void add_documents(const TokenSet& tokens);
  void put_in_order();

  std::int64_t ranks_ = 1, first_ = 0, own_ = 0;
  std::vector<TokenSpan> spans_;
  std::vector<std::int64_t> order_, before_, starts_;
  std::vector<RecurrentRun> chains_, document_runs_;
};

}  // namespace bev
