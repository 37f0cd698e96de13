#include "ops/recurrent/sequence_pieces.h"

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

SequencePieces::SequencePieces(const Context& ctx, const SequenceLayout& layout)
    : ranks_(ctx.mesh.cp().size()) {
  auto add = [&](const TokenSet& tokens) {
    pieces_.insert(pieces_.end(), tokens.pieces().begin(), tokens.pieces().end());
  };
  own_ = std::ssize(layout.own.pieces());
  if (travel()) {
    for (const TokenSet& tokens : layout.ring.sets) add(tokens);
    for (int rank = 0; rank < ctx.mesh.cp().rank(); ++rank) {
      first_ += std::ssize(layout.ring.sets[static_cast<std::size_t>(rank)].pieces());
    }
  } else {
    add(layout.own);
  }
  put_in_order();
}

void SequencePieces::put_in_order() {
  order_.resize(pieces_.size());
  before_.assign(pieces_.size(), -1);
  std::iota(order_.begin(), order_.end(), 0);
  auto at = [this](std::int64_t i) -> const DocumentPiece& {
    return pieces_[static_cast<std::size_t>(i)];
  };
  std::ranges::sort(order_, {},
                    [&](std::int64_t i) { return std::tuple(at(i).document, at(i).begin); });
  for (std::int64_t i = 0; i < std::ssize(order_); ++i) {
    const std::int64_t piece = order_[static_cast<std::size_t>(i)];
    const bool goes_on =
        i > 0 && at(piece).document == at(order_[static_cast<std::size_t>(i - 1)]).document;
    if (!goes_on) documents_.push_back({.row = i, .count = 0});
    ++documents_.back().count;
    if (goes_on) {
      before_[static_cast<std::size_t>(piece)] = order_[static_cast<std::size_t>(i - 1)];
    }
  }
}

std::vector<RecurrentRun> SequencePieces::runs() const {
  std::vector<RecurrentRun> runs;
  for (std::int64_t i = 0; i < own_; ++i) {
    const DocumentPiece& piece = pieces_[static_cast<std::size_t>(first_ + i)];
    const std::int64_t state = travel() ? i : -1;
    runs.push_back({piece.row, piece.count, state, state});
  }
  return runs;
}

Tensor SequencePieces::gather(Context& ctx, const Tensor& x, const char* label) const {
  Tensor all = ctx.allocate(x.dtype(), {std::ssize(pieces_), x.shape()[1]}, "states");
  ctx.mesh.cp().all_gather(x, all, label).wait();
  return all;
}

}  // namespace bev
