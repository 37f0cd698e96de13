// MoE expert capacity (which choices are kept), dispatch (the ranks that tokens are sent to), and
// fitting of rows into fixed buffers.
#include <algorithm>
#include <numeric>
#include <span>

#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/moe_tables.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "kernels/moe.h"
#include "kernels/router.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// before(a, b): slot a takes precedence over slot b.
template <class Before>
std::int64_t keep_first(const Stream& stream, const LimitArgs& args, const Before& before) {
  const auto* experts = args.experts.as<std::int32_t>();
  auto* kept = args.kept.as<std::int32_t>();
  const auto slots = static_cast<std::size_t>(args.experts.numel());
  const auto count = static_cast<std::size_t>(args.expert_count);
  std::byte* room =
      stream.pool->scratch(count * sizeof(std::int64_t) + slots * sizeof(std::int32_t));
  const std::span taken(reinterpret_cast<std::int64_t*>(room), count);
  const std::span order(reinterpret_cast<std::int32_t*>(taken.data() + count), slots);
  std::ranges::fill(taken, 0);
  std::iota(order.begin(), order.end(), 0);
  // Among equals the earlier slot comes first; std::stable_sort would allocate.
  std::ranges::sort(order, [&](std::int32_t a, std::int32_t b) {
    return before(a, b) || (a < b && !before(b, a));
  });
  std::int64_t dropped = 0;
  for (const std::int32_t slot : order) {
    const std::int32_t expert = experts[slot];
    const bool keeps = expert >= 0 && taken[static_cast<std::size_t>(expert)]++ < args.capacity;
    kept[slot] = keeps ? expert : -1;
    dropped += expert >= 0 && !keeps ? 1 : 0;
  }
  return dropped;
}

}  // namespace

void limit(const Stream& stream, const LimitArgs& args) {
  BEV_CHECK(args.experts.shape == args.kept.shape &&
                (args.probs.empty() || args.probs.shape == args.experts.shape),
            "limit: choices ", args.experts.shape, ", kept ", args.kept.shape, ", probabilities ",
            args.probs.shape);
  const std::int64_t topk = args.experts.shape[1];
  visit_float(args.dropped.dtype, [&](auto type) {
    using A = accumulate_t<decltype(type)>;
    std::int64_t dropped = 0;
    if (args.probs.empty()) {
      dropped = keep_first(stream, args, [&](std::int32_t a, std::int32_t b) {
        return args.positions[a / topk] < args.positions[b / topk];
      });
    } else {
      const A* probs = args.probs.as<A>();
      dropped = keep_first(stream, args,
                           [&](std::int32_t a, std::int32_t b) { return probs[a] > probs[b]; });
    }
    *args.dropped.as<A>() = static_cast<A>(dropped);
  });
}

void dispatch(const Stream& stream, const DispatchArgs& args) {
  const std::int64_t tokens = args.experts.shape[0], topk = args.experts.shape[1];
  const std::int64_t etp = args.etp, ep = args.counts.shape[0] / etp;
  BEV_CHECK(args.members.numel() == tokens * topk * etp, "dispatch: choices ", args.experts.shape,
            ", members ", args.members.shape);
  const std::int64_t each = args.expert_count / ep, larger = args.expert_count % ep;
  // The first `larger` ranks have one expert more.
  const auto rank_of = [&](std::int64_t expert) {
    const std::int64_t begin = larger * (each + 1);
    return expert < begin ? expert / (each + 1) : larger + (expert - begin) / each;
  };
  const auto* experts = args.experts.as<std::int32_t>();
  auto* members = args.members.as<std::int32_t>();
  auto* counts = args.counts.as<std::int32_t>();
  std::fill_n(counts, args.counts.numel(), 0);
  // The last token sent to each rank.
  const auto ranks = static_cast<std::size_t>(ep);
  auto* last = reinterpret_cast<std::int64_t*>(stream.pool->scratch(ranks * sizeof(std::int64_t)));
  std::fill_n(last, ep, -1);
  for (std::int64_t slot = 0; slot < tokens * topk; ++slot) {
    const std::int64_t token = slot / topk;
    const std::int64_t rank = experts[slot] >= 0 ? rank_of(experts[slot]) : 0;
    const bool chosen = experts[slot] >= 0;
    std::int64_t& latest = last[rank];
    const bool goes = chosen && latest != token;
    if (goes) latest = token;
    for (std::int64_t i = 0; i < etp; ++i) {
      const std::int64_t member = etp * rank + i;
      members[slot * etp + i] = goes ? static_cast<std::int32_t>(member) : -1;
      counts[2 * member] += goes ? 1 : 0;
      counts[2 * member + 1] += chosen ? 1 : 0;
    }
  }
}

void fit_rows(const Stream&, const FitRowsArgs& args) {
  const std::int64_t count = args.offsets.numel() - 1, room = args.fitted.numel();
  BEV_CHECK(args.block == 0 || room == count * args.block, "fit_rows: ", room, " rows for ", count,
            " blocks of ", args.block);
  const auto* order = args.order.as<std::int32_t>();
  auto* place = args.place.as<std::int32_t>();
  auto* offsets = args.offsets.as<std::int32_t>();
  auto* fitted = args.fitted.as<std::int32_t>();
  std::fill_n(fitted, room, -1);
  std::int64_t lost = 0;
  for (std::int64_t e = 0; e < count; ++e) {
    const std::int64_t begin = args.block > 0 ? e * args.block : offsets[e];
    const std::int64_t end = args.block > 0 ? begin + args.block : room;
    for (std::int64_t r = offsets[e]; r < offsets[e + 1]; ++r) {
      const std::int64_t to = begin + r - offsets[e];
      const bool fits = to < end;
      place[order[r]] = fits ? static_cast<std::int32_t>(to) : -1;
      if (fits) fitted[to] = order[r];
      lost += fits ? 0 : 1;
    }
  }
  *args.lost += static_cast<double>(lost);
  if (args.block > 0) return;
  for (std::int64_t e = 0; e <= count; ++e) {
    offsets[e] = static_cast<std::int32_t>(std::min<std::int64_t>(offsets[e], room));
  }
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
