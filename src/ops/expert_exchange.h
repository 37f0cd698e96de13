// Tokens between the ranks that have them and the ranks of etp x ep, which have all experts
// together. A region of experts is entered and left by one call each, as a tensor-parallel one is:
//
//                  every rank has its own tokens               those of etp have the same (ep is 1)
//                  all-gather         all-to-all
//   enter  forward   all-gather         rows to their ranks      nothing
//          backward  reduce-scatter     rows back, summed        all-reduce
//   leave  forward   reduce-scatter     rows back, summed        all-reduce
//          backward  all-gather         rows to their ranks      nothing
//
// By all-to-all a token goes once to each rank that has one of its experts, however many of them.
// How many that are is known on the device. Either the host waits for the counts and all sizes are
// exact, or sizes are fixed (ExpertParallel::rank_capacity) and nobody waits; rows that do not fit
// are then lost and counted, and the step is to be done again with exact sizes.
#pragma once

#include <memory>

#include "autograd/tape.h"
#include "ops/expert_rows.h"
#include "ops/sequence_layout.h"
#include "ops/token_dispatcher.h"

namespace bev {

// Who sends which tokens to whom in one layer of a micro-batch.
struct Dispatch {
  enum class Kind : std::uint8_t { kSame, kGather, kRows };

  Kind kind = Kind::kSame;
  Group* group = nullptr;
  std::int64_t own = 0, inside = 0;  // tokens that this rank has, and that its experts see
  // Choices of its experts among them, or the room for these; -1: the host does not know.
  std::int64_t expert_rows = -1;
  bool fixed = false;  // sizes are a matter of shapes alone

  // kRows: this rank's tokens by member, and how many go to and come from each.
  ExpertRows sent;
  std::vector<std::int64_t> send, receive;
};
using DispatchRef = std::shared_ptr<const Dispatch>;

// Of tokens that chose `experts` [T, k] out of expert_count, placed as `placement`. Sizes are fixed
// where a capacity is given and ctx.lost_rows is there. Otherwise, with all-to-all and ep > 1, the
// host waits for the counts.
DispatchRef plan_dispatch(Context& ctx, const ExpertParallel& parallel, const Tensor& experts,
                          std::int64_t expert_count, const Placement& placement,
                          const SequenceLayout& layout);

// Tokens on their way to experts, or their gradients on the way back.
struct EnteringTokens {
  struct Passage;
  std::shared_ptr<Passage> passage;
  bool tracked = false;
};
// x [T, ...] of the micro-batch, whole or shard(0) over tp -> the tokens that this rank's experts
// see, one rank's after the other's, copied. What is done between the two calls runs beside the
// exchange, and what its backward does beside the gradients', where `overlap` is set. The result
// does not depend on it.
EnteringTokens start_entering(Context& ctx, const Var& x, const DispatchRef& dispatch,
                              bool overlap);
Var finish_entering(Context& ctx, EnteringTokens tokens);
// Both at once.
Var enter_experts(Context& ctx, const Var& x, const DispatchRef& dispatch);
// Of the choices of the tokens inside, those of this rank's experts.
ExpertRows rows_of_experts(Context& ctx, const Tensor& choices, std::int64_t expert_count,
                           const Dispatch& dispatch);
// Partial sums for those tokens -> this rank's, placed as `placement`. See give_way().
Var leave_experts(Context& ctx, const Var& x, const Placement& placement,
                  const DispatchRef& dispatch, bool gives_way = false);

// Tokens that all ranks of tp have, shared out among them, and whole again.
Var share_tokens(Context& ctx, const Var& x);
Var unite_tokens(Context& ctx, const Var& x, std::int64_t tokens);

// Of what is inside: tokens of edp ranks are their own.
Placement expert_placement(PlaceState etp, PlaceState ep);

}  // namespace bev
