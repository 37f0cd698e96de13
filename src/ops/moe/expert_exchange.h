// MoE token dispatch and combine over the etp x ep ranks that together hold all experts. A region
// of experts is entered (dispatch) and left (combine) by one call each, like a tensor-parallel
// region:
//
//                  every rank has its own tokens               etp ranks share tokens (ep = 1)
//                  all-gather         all-to-all
//   enter  forward   all-gather         rows to their ranks      none
//          backward  reduce-scatter     rows back, summed        all-reduce
//   leave  forward   reduce-scatter     rows back, summed        all-reduce
//          backward  all-gather         rows to their ranks      none
//
// With all-to-all, a token is sent once to each rank that holds at least one of its experts. The
// number of such tokens is known only on the device. Either the host waits for the counts and all
// sizes are exact, or sizes are fixed (ExpertParallel::rank_capacity) and no host sync is needed;
// rows that do not fit are then lost and counted, and the step must be redone with exact sizes.
#pragma once

#include <memory>

#include "autograd/tape.h"
#include "ops/moe/expert_rows.h"
#include "ops/moe/token_dispatcher.h"
#include "ops/sequence_layout.h"

namespace bev {

// Dispatch plan of one layer and micro-batch: which tokens go to which rank.
struct Dispatch {
  enum class Kind : std::uint8_t { kSame, kGather, kRows };

  Kind kind = Kind::kSame;
  Group* group = nullptr;
  std::int64_t own = 0, inside = 0;  // tokens of this rank, and tokens that its experts see
  // Rows of its experts, or the capacity reserved for them; -1: unknown to the host.
  std::int64_t expert_rows = -1;
  bool fixed = false;  // sizes depend on shapes only

  // kRows: this rank's tokens sorted by destination, and the number sent to and received from each
  // member.
  ExpertRows sent;
  std::vector<std::int64_t> send, receive;
};
using DispatchRef = std::shared_ptr<const Dispatch>;

// Plans the dispatch of tokens, placed as `placement`, that chose `experts` [T, k] of expert_count.
// Sizes are fixed if rank_capacity is given and ctx.lost_rows is set. Otherwise all-to-all with ep
// > 1 makes the host wait for the counts.
DispatchRef plan_dispatch(Context& ctx, const ExpertParallel& parallel, const Tensor& experts,
                          std::int64_t expert_count, const Placement& placement,
                          const SequenceLayout& layout);

// An asynchronous dispatch in flight (or the return of its gradients in the backward).
struct DispatchedTokens {
  struct Passage;
  std::shared_ptr<Passage> passage;
  bool tracked = false;
};
// x [T, ...] of the micro-batch, replicated or shard(0) over tp -> the tokens that this rank's
// experts see, in rank order, copied. With `overlap`, work between the two calls overlaps with the
// exchange, and the backward of that work with the exchange of the gradients. The result does not
// depend on `overlap`.
DispatchedTokens start_dispatch(Context& ctx, const Var& x, const DispatchRef& dispatch,
                                bool overlap);
Var finish_dispatch(Context& ctx, DispatchedTokens tokens);
// start_dispatch and finish_dispatch without overlap.
Var dispatch_tokens(Context& ctx, const Var& x, const DispatchRef& dispatch);
// Rows of this rank's experts among `choices` of the dispatched tokens.
ExpertRows rows_of_experts(Context& ctx, const Tensor& choices, std::int64_t expert_count,
                           const Dispatch& dispatch);
// Combine: partial sums for the dispatched tokens -> this rank's tokens, placed as `placement`.
// With yields_to_partner it calls yield_to_partner() while the exchange is in flight.
Var combine_tokens(Context& ctx, const Var& x, const Placement& placement,
                   const DispatchRef& dispatch, bool yields_to_partner = false);

// share_tokens splits tokens that all tp ranks have into shard(0); unite_tokens all-gathers them
// again.
Var share_tokens(Context& ctx, const Var& x);
Var unite_tokens(Context& ctx, const Var& x, std::int64_t tokens);

// Placement inside the region of experts: edp ranks have different tokens.
Placement expert_placement(PlaceState etp, PlaceState ep);

}  // namespace bev
