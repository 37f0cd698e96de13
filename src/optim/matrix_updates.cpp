#include "optim/matrix_updates.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/optim.h"

namespace bev {

namespace {
Range common(const Range& a, const Range& b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}
}  // namespace

MatrixUpdates::MatrixUpdates(Context& ctx, std::unique_ptr<MatrixRule> rule,
                             std::vector<RuleRange> ranges, std::vector<SharedParam> params)
    : UpdateRule(std::move(ranges)), rule_(std::move(rule)), params_(std::move(params)) {
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const SharedParam& shared = params_[i];
    for (MatrixBlock& block : matrix_blocks(*shared.param, *shared.tensor, rule_->splits_fused())) {
      blocks_.push_back(std::move(block));
      param_of_.push_back(i);
    }
  }
  deal_out(false);
  deal_out(true);
  for (Round& round : rounds_) make_states(ctx, round);
  for (const MatrixState& state : states_) state_views_.push_back(state.memory.view());
}

// The largest first, by sizes that ranks of tensor parallelism agree on.
void MatrixUpdates::deal_out(bool of_experts) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].param->split.of_experts() == of_experts) order.push_back(i);
  }
  if (order.empty()) return;
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return blocks_[a].numel() > blocks_[b].numel(); });
  const auto ranks = static_cast<std::size_t>(params_[param_of_[order.front()]].shards->size());
  for (std::size_t begin = 0; begin < order.size(); begin += ranks) {
    const std::size_t count = std::min(ranks, order.size() - begin);
    rounds_.push_back(make_round(std::span(order).subspan(begin, count)));
  }
}

MatrixUpdates::Round MatrixUpdates::make_round(std::span<const std::size_t> blocks) const {
  Round round;
  round.shards = params_[param_of_[blocks.front()]].shards;
  round.blocks.assign(blocks.begin(), blocks.end());
  const auto ranks = static_cast<std::size_t>(round.shards->size());
  const auto self = static_cast<std::size_t>(round.shards->rank());
  round.send.resize(ranks);
  round.receive.resize(ranks);
  for (std::size_t owner = 0; owner < blocks.size(); ++owner) {
    const MatrixBlock& block = blocks_[blocks[owner]];
    const SharedParam& shared = params_[param_of_[blocks[owner]]];
    const Range mine = common(block.local, shared.owned[self]);
    round.send[owner] = mine.size();
    if (owner == self) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        round.receive[rank] = common(block.local, shared.owned[rank]).size();
      }
    }
    if (mine.size() == 0) continue;
    const auto range = std::ranges::find_if(
        ranges_, [&](const RuleRange& own) { return own.range->param == block.param; });
    BEV_CHECK(range != ranges_.end(), ErrorKind::kInternal, "optimizer: no range of ",
              block.param->name);
    const std::int64_t offset = range->range->offset;
    round.pieces.push_back({static_cast<std::size_t>(range - ranges_.begin()),
                            {mine.begin - offset, mine.end - offset},
                            blocks[owner]});
  }
  return round;
}

void MatrixUpdates::make_states(Context& ctx, Round& round) {
  round.first_state = states_.size();
  if (!round.computes()) return;
  const MatrixBlock& block = blocks_[round.own()];
  const Param& param = *block.param;
  const bool experts = param.split.of_experts();
  for (const MatrixStateSpec& spec : rule_->states(block)) {
    MatrixState state;
    state.declared.name = concat("optimizer.", spec.name, "/", param.name);
    state.declared.split = {param.split.axis, -1, {}};
    state.declared.shared = param.shared;
    state.declared.shape = matrix_state_shape(param, spec);
    state.declared.local = state.declared.shape;
    if (experts) state.declared.local[0] = param.local[0];
    const std::int64_t size = spec.shape.numel();
    state.range = {block.expert * size, (block.expert + 1) * size};
    state.memory = Tensor(ctx.arena, ctx.wide(), {size}, "optimizer");
    ctx.kernels.fill(ctx.stream, state.memory, 0);
    states_.push_back(std::move(state));
  }
  round.state_count = states_.size() - round.first_state;
}

void MatrixUpdates::step(Context& ctx) {
  for (const Round& round : rounds_) run(ctx, round);
}

// Calls body(piece, its range, its part of the buffer).
template <class Body>
void MatrixUpdates::for_pieces(const Round& round, const View& buffer, const Body& body) const {
  std::int64_t at = 0;
  for (const Piece& piece : round.pieces) {
    body(piece, ranges_[piece.range], buffer.rows(at, at + piece.within.size()));
    at += piece.within.size();
  }
}

Tensor MatrixUpdates::collect(Context& ctx, const Round& round, const Tensor& send) const {
  if (!round.exchanges()) return send;
  const std::int64_t size = round.computes() ? blocks_[round.own()].local.size() : 0;
  Tensor local = ctx.allocate(send.dtype(), {size}, "matrix update");
  round.shards->all_to_all(send, round.send, local, round.receive, "matrix directions").wait();
  return local;
}

void MatrixUpdates::run(Context& ctx, const Round& round) {
  std::int64_t size = 0;
  for (std::int64_t count : round.send) size += count;
  Tensor send = ctx.allocate(rule_->dtype(ctx.dtype), {size}, "matrix update");
  const auto part = [](const View& all, const Range& within) {
    return all.empty() ? View{} : all.rows(within.begin, within.end);
  };
  for_pieces(round, send, [&](const Piece& piece, const RuleRange& own, const View& out) {
    DirectionArgs args{.grad = part(own.range->grad, piece.within),
                       .m = part(own.state.m.values, piece.within),
                       .out = out,
                       .state = ctx.step};
    rule_->set_momentum(args);
    ctx.kernels.optim.direction(ctx.stream, args);
  });
  Tensor local = collect(ctx, round, send), weights;
  if (rule_->needs_weights()) {
    Tensor own_weights = ctx.allocate(send.dtype(), {size}, "matrix update");
    for_pieces(round, own_weights, [&](const Piece& piece, const RuleRange& own, const View& out) {
      ctx.kernels.cast(ctx.stream, part(own.main, piece.within), out);
    });
    weights = collect(ctx, round, own_weights);
  }
  if (round.computes()) {
    const MatrixBlock& block = blocks_[round.own()];
    const auto late = std::ranges::find_if(
        ranges_, [&](const RuleRange& own) { return own.range->param == block.param; });
    OwnedMatrix matrix{
        .block = block,
        .tensor = *params_[param_of_[round.own()]].tensor,
        .states = std::span(state_views_).subspan(round.first_state, round.state_count),
        .weights = weights.empty() ? View{} : weights.view(),
        .updates_before = late == ranges_.end() ? 0 : late->updates_before};
    rule_->update(ctx, matrix, local.view().reshape(block.local_shape));
  }
  if (round.exchanges()) {
    round.shards->all_to_all(local, round.receive, send, round.send, "matrix updates").wait();
  }
  for_pieces(round, send, [&](const Piece& piece, const RuleRange& own, const View& update) {
    const Param& param = own.param();
    ctx.kernels.optim.matrix_update(ctx.stream, {.main = part(own.main, piece.within),
                                                 .update = update,
                                                 .values = part(own.range->value, piece.within),
                                                 .state = ctx.step,
                                                 .lr_mult = param.lr_mult,
                                                 .wd_mult = param.wd_mult,
                                                 .lr_index = param.lr_index,
                                                 .factor = rule_->factor(blocks_[piece.block]),
                                                 .update_has_lr = rule_->update_has_lr()});
  });
}

}  // namespace bev
