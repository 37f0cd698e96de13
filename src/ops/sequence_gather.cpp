#include "ops/sequence_gather.h"

#include "autograd/op_scope.h"
#include "base/error.h"

namespace bev {

namespace {

// All-gathers the rows of all cp ranks and reorders them by sample.
Tensor gathered(Context& ctx, const Tensor& x, const SequenceLayout& layout) {
  Group& cp = ctx.mesh.cp();
  if (cp.size() == 1) return x;
  Shape shape{whole_sequence(layout).tokens(), x.shape()[1]};
  Tensor by_rank = ctx.allocate(x.dtype(), shape, "activations");
  cp.all_gather(x, by_rank, "sequence").wait();
  Tensor ordered = ctx.allocate(x.dtype(), shape, "activations");
  copy_into_order(ctx, layout.ring.sets, whole_sequence(layout), by_rank, ordered);
  return ordered;
}

Tensor own_rows(Context& ctx, const Tensor& x, const SequenceLayout& layout) {
  std::int64_t rank = ctx.mesh.cp().rank();
  if (ctx.mesh.cp().size() == 1) return x;
  std::span<const TokenSet> mine =
      std::span(layout.ring.sets).subspan(static_cast<std::size_t>(rank), 1);
  Tensor own = ctx.allocate(x.dtype(), {layout.tokens, x.shape()[1]}, "activations");
  copy_out_of_order(ctx, mine, whole_sequence(layout), x, own);
  return own;
}

// An op that moves rows by `forward` and their gradients by `backward`.
template <class Move>
Var move_rows(Context& ctx, const char* name, const Var& x, const SequenceLayout& layout,
              PlaceState placed, Move forward, Move backward) {
  OpScope scope(ctx, name);
  Placement placement = x.placement.with(Axis::kCp, placed);
  Var out = make_output(ctx, name, forward(ctx, x.tensor, layout), placement, x.tracked());
  if (!out.tracked()) return out;
  ctx.tape->record(
      name, ctx.layer,
      [backward, layout = &layout, in = GradSlot(x), result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (!dy.empty()) back.add(in, backward(back.ctx, dy, *layout));
      });
  return out;
}

}  // namespace

const TokenSet& whole_sequence(const SequenceLayout& layout) {
  return layout.heads.sets.empty() ? layout.own : layout.all_tokens();
}

Var gather_sequence(Context& ctx, const Var& x, const SequenceLayout& layout) {
  BEV_CHECK(x.placement[Axis::kCp] == PlaceState::kShard0, ErrorKind::kInternal,
            "gather_sequence: the input {", x.placement, "} must be cut over cp");
  return move_rows(ctx, "gather_sequence", x, layout, PlaceState::kReplicated, gathered, own_rows);
}

Var own_sequence(Context& ctx, const Var& x, const SequenceLayout& layout) {
  BEV_CHECK(x.placement[Axis::kCp] == PlaceState::kReplicated, ErrorKind::kInternal,
            "own_sequence: the input {", x.placement, "} must be replicated over cp");
  return move_rows(ctx, "own_sequence", x, layout, PlaceState::kShard0, own_rows, gathered);
}

}  // namespace bev
