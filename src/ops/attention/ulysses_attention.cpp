#include "ops/attention/ulysses_attention.h"

#include "autograd/op_scope.h"
#include "base/error.h"
#include "kernels/elementwise.h"

namespace bev {

std::int64_t UlyssesExchange::columns() const {
  std::int64_t sum = 0;
  for (std::int64_t part : parts) sum += part;
  return sum;
}

namespace {

const TokenSet& own_tokens(const UlyssesExchange& exchange) {
  return exchange.members[static_cast<std::size_t>(exchange.group->rank())];
}

// Copies between rows with all heads [T, columns] and one block [T, columns / n] per member.
void copy_heads(Context& ctx, const UlyssesExchange& exchange, const Tensor& rows,
                const Tensor& blocks, bool into_blocks) {
  std::int64_t tokens = rows.shape()[0], columns = rows.shape()[1], n = exchange.group->size();
  std::int64_t width = columns / n;
  for (std::int64_t member = 0; member < n; ++member) {
    std::int64_t begin = 0;
    for (std::int64_t part : exchange.parts) {
      std::byte* wide = rows.view().address(begin + member * (part / n));
      std::byte* narrow = blocks.view().address(member * tokens * width + begin / n);
      CopyRowsArgs args{wide, narrow, rows.dtype(), tokens, part / n, columns, width};
      if (!into_blocks) {
        args = {narrow, wide, rows.dtype(), tokens, part / n, width, columns};
      }
      ctx.kernels.elementwise.copy_rows(ctx.stream, args);
      begin += part;
    }
  }
}

Tensor to_heads(Context& ctx, const Tensor& x, const UlyssesExchange& exchange) {
  std::int64_t n = exchange.group->size(), width = exchange.columns() / n;
  Tensor blocks = ctx.allocate(x.dtype(), {x.numel()}, "activations");
  copy_heads(ctx, exchange, x, blocks, true);
  std::vector<std::int64_t> send(static_cast<std::size_t>(n), x.shape()[0] * width), receive;
  for (const TokenSet& member : exchange.members) receive.push_back(member.tokens() * width);
  Shape shape{exchange.together->tokens(), width};
  Tensor received = ctx.allocate(x.dtype(), shape, "activations");
  exchange.group->all_to_all(blocks, send, received.view().flat(), receive, "heads").wait();
  blocks = Tensor();
  Tensor out = ctx.allocate(x.dtype(), shape, "activations");
  copy_into_order(ctx, exchange.members, *exchange.together, received, out);
  return out;
}

Tensor to_tokens(Context& ctx, const Tensor& x, const UlyssesExchange& exchange) {
  std::int64_t n = exchange.group->size(), width = exchange.columns() / n;
  Tensor by_member = ctx.allocate(x.dtype(), x.shape(), "activations");
  copy_out_of_order(ctx, exchange.members, *exchange.together, x, by_member);
  std::int64_t tokens = own_tokens(exchange).tokens();
  std::vector<std::int64_t> send, receive(static_cast<std::size_t>(n), tokens * width);
  for (const TokenSet& member : exchange.members) send.push_back(member.tokens() * width);
  Tensor blocks = ctx.allocate(x.dtype(), {tokens * exchange.columns()}, "activations");
  exchange.group->all_to_all(by_member.view().flat(), send, blocks, receive, "heads").wait();
  by_member = Tensor();
  Tensor out = ctx.allocate(x.dtype(), {tokens, exchange.columns()}, "activations");
  copy_heads(ctx, exchange, out, blocks, false);
  return out;
}

// The exchange only moves elements, so its adjoint is the opposite direction.
Var exchange_op(Context& ctx, const char* op, const Var& x, const UlyssesExchange& exchange,
                bool scatter) {
  OpScope scope(ctx, op);
  PlaceState from = scatter ? PlaceState::kShard0 : PlaceState::kShard1;
  PlaceState to = scatter ? PlaceState::kShard1 : PlaceState::kShard0;
  BEV_CHECK(x.placement[Axis::kCp] == from, ErrorKind::kInternal, op, ": the input {", x.placement,
            "} must be split over ", scatter ? "tokens" : "heads", " on cp");
  std::int64_t n = exchange.group->size();
  std::int64_t tokens = scatter ? own_tokens(exchange).tokens() : exchange.together->tokens();
  Shape expected{tokens, scatter ? exchange.columns() : exchange.columns() / n};
  BEV_CHECK(x.shape() == expected, op, ": input ", x.shape(), " for ", expected);
  Tensor out = scatter ? to_heads(ctx, x.tensor, exchange) : to_tokens(ctx, x.tensor, exchange);
  Var y = make_output(ctx, op, std::move(out), x.placement.with(Axis::kCp, to), x.tracked());
  if (!y.tracked()) return y;
  ctx.tape->record(
      op, ctx.layer, [exchange, scatter, in = GradSlot(x), result = GradSlot(y)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        back.add(in,
                 scatter ? to_tokens(back.ctx, dy, exchange) : to_heads(back.ctx, dy, exchange));
      });
  return y;
}

}  // namespace

Var scatter_heads(Context& ctx, const Var& x, const UlyssesExchange& exchange) {
  return exchange_op(ctx, "scatter_heads", x, exchange, true);
}

Var gather_heads(Context& ctx, const Var& x, const UlyssesExchange& exchange) {
  return exchange_op(ctx, "gather_heads", x, exchange, false);
}

}  // namespace bev
