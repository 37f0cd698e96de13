// Merging of attention over two sets of keys, and the table of attention kernels.
#include <cmath>
#include <limits>

#include "backend/cpu/kernels/attention_tiles.h"
#include "backend/cpu/kernels/tables.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

template <class T>
void merge_row(const AttentionMergeArgs& args, std::int64_t row) {
  using A = accumulate_t<T>;
  constexpr A kNone = -std::numeric_limits<A>::infinity();
  const std::int64_t heads = args.shape.q_heads, head_size = args.shape.v_head_size;
  for (std::int64_t at = row * heads; at < (row + 1) * heads; ++at) {
    A& lse = args.lse.as<A>()[at];
    const A part = args.part_lse.as<A>()[at], most = std::max(lse, part);
    if (part == kNone) continue;
    const A before = std::exp(lse - most), now = std::exp(part - most), sum = before + now;
    lse = most + std::log(sum);
    A* __restrict out = args.out.as<A>() + at * head_size;
    const T* __restrict part_out = args.part_out.as<T>() + at * head_size;
    for (std::int64_t d = 0; d < head_size; ++d) {
      out[d] = out[d] * (before / sum) + widen(part_out[d]) * (now / sum);
    }
  }
}

}  // namespace

void attention_merge(const Stream& stream, const AttentionMergeArgs& args) {
  const std::int64_t step = rows_per_piece(args.shape.q_heads * args.shape.v_head_size);
  visit_float(args.shape.dtype, [&](auto zero) {
    for (const AttentionRun& run : args.shape.runs) {
      for_ranges(stream, run.q_count, step, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          merge_row<decltype(zero)>(args, run.q_begin + i);
        }
      });
    }
  });
}

AttentionKernels kernel_table(Family<AttentionKernels>) {
  return {.forward = attention_forward,
          .merge = attention_merge,
          .backward = attention_backward,
          .add_sinks = add_sinks,
          .sink_terms = sink_terms,
          .bound_logits = nullptr};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
