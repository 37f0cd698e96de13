#include "ops/recurrent/sequence_spans.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace bev {

std::vector<RecurrentRun> decode_runs(const DecodeStep& step) {
  std::vector<RecurrentRun> runs;
  for (std::size_t i = 0; i < step.runs.size(); ++i) {
    const AttentionRun& run = step.runs[i];
    const std::int64_t slot = step.slots[i];
    runs.push_back({run.q_begin, run.q_count, run.offset == 0 ? -1 : slot, slot});
  }
  return runs;
}

SequenceSpans::SequenceSpans(const Context& ctx, const SequenceLayout& layout)
    : ranks_(ctx.mesh.cp().size()) {
  if (travel()) {
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      const bool mine = rank == ctx.mesh.cp().rank();
      if (mine) first_ = std::ssize(spans_);
      add_spans(layout.ring.sets[static_cast<std::size_t>(rank)]);
      if (mine) own_ = std::ssize(spans_) - first_;
    }
  } else if (layout.tokens > 0) {
    spans_.push_back({.row = 0, .count = layout.tokens});
    own_ = 1;
  }
  add_documents(layout.own);
  put_in_order();
}

void SequenceSpans::add_spans(const TokenSet& tokens) {
  const std::size_t begin = spans_.size();
  for (const DocumentPiece& piece : tokens.pieces()) {
    const bool joins = spans_.size() > begin && spans_.back().sample == piece.sample &&
                       spans_.back().begin + spans_.back().count == piece.sample_begin;
    if (!joins) {
      spans_.push_back({.row = piece.row,
                        .sample = piece.sample,
                        .begin = piece.sample_begin,
                        .goes_on = piece.begin > 0});
    }
    TokenSpan& span = spans_.back();
    const bool same_document = joins && piece.begin > 0;
    span.tail = same_document ? span.tail + piece.count : piece.count;
    span.count += piece.count;
  }
}

void SequenceSpans::add_documents(const TokenSet& tokens) {
  std::int64_t span = first_;
  for (const DocumentPiece& piece : tokens.pieces()) {
    while (piece.row >= at(span).row + at(span).count) ++span;
    const bool enters = travel() && piece.row == at(span).row && at(span).goes_on;
    document_runs_.push_back({piece.row, piece.count, enters ? span - first_ : -1, -1});
    // A document of two adjacent parts on one rank does not begin anew.
    if (piece.begin == 0) {
      starts_.push_back(piece.row);
    } else if (!enters && document_runs_.size() > 1) {
      document_runs_.pop_back();
      document_runs_.back().count += piece.count;
    }
  }
}

void SequenceSpans::put_in_order() {
  order_.resize(spans_.size());
  before_.assign(spans_.size(), -1);
  std::iota(order_.begin(), order_.end(), 0);
  std::ranges::sort(order_, {},
                    [&](std::int64_t i) { return std::tuple(at(i).sample, at(i).begin); });
  for (std::int64_t i = 0; i < std::ssize(order_); ++i) {
    const std::int64_t span = order_[static_cast<std::size_t>(i)];
    const bool goes_on = i > 0 && at(span).goes_on;
    if (!goes_on) chains_.push_back({.row = i, .count = 0});
    ++chains_.back().count;
    if (goes_on) {
      before_[static_cast<std::size_t>(span)] = order_[static_cast<std::size_t>(i - 1)];
    }
  }
}

std::vector<RecurrentRun> SequenceSpans::runs() const {
  std::vector<RecurrentRun> runs;
  for (std::int64_t i = 0; i < own_; ++i) {
    const TokenSpan& span = at(first_ + i);
    const bool enters = travel() && span.goes_on;
    runs.push_back({span.row, span.count, enters ? i : -1, travel() ? i : -1});
  }
  return runs;
}

Tensor SequenceSpans::gather(Context& ctx, const Tensor& x, const char* label) const {
  Tensor all = ctx.allocate(x.dtype(), {std::ssize(spans_), x.shape()[1]}, "states");
  ctx.mesh.cp().all_gather(x, all, label).wait();
  return all;
}

}  // namespace bev
