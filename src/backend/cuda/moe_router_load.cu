// How much routers give each expert, and numbers of choices as matrices.
#include "backend/cuda/moe_parts.h"
#include "backend/cuda/moe_router.cuh"

namespace bev::cuda {

namespace {

__global__ void __launch_bounds__(kThreads)
    count_kernel(const std::int32_t* experts, const std::int32_t* group, int* counts,
                 std::int64_t slots, int topk, int expert_count) {
  const std::int64_t s = own_pack();
  if (s >= slots) return;
  const int row = group == nullptr ? 0 : group[s / topk];
  atomicAdd(&counts[static_cast<std::int64_t>(row) * expert_count + experts[s]], 1);
}

__global__ void __launch_bounds__(kThreads)
    to_float_kernel(const int* from, float* to, std::int64_t count) {
  const std::int64_t i = own_pack();
  if (i < count) to[i] = static_cast<float>(from[i]);
}

// Tokens of a block, which adds them up one after the other.
constexpr int kBlockTokens = 64;

// parts [blocks, E + 2]: sums of scores, of lse^2 and of the entropy. One warp.
__global__ void __launch_bounds__(kWarp)
    score_parts_kernel(const float* logits, std::int64_t tokens, Rule rule, float* parts) {
  float* scores = own_rows(rule.experts, 2);
  float* sums = scores + rule.experts;
  for (int e = lane_of(); e < rule.experts; e += kWarp) sums[e] = 0;
  float squares = 0, entropies = 0;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kBlockTokens;
  const std::int64_t end = begin + kBlockTokens < tokens ? begin + kBlockTokens : tokens;
  for (std::int64_t t = begin; t < end; ++t) {
    const float lse = scores_of(rule, logits + t * rule.experts, scores);
    float total = 0, entropy = 0;
    for (int e = lane_of(); e < rule.experts; e += kWarp) total += scores[e];
    total = reduce_warp<Sum>(total) + kTiny;
    for (int e = lane_of(); e < rule.experts; e += kWarp) {
      const float share = scores[e] / total;
      sums[e] += share;
      if (share > 0) entropy -= share * logf(share);
    }
    entropies += reduce_warp<Sum>(entropy);
    squares += lse * lse;
    __syncwarp();
  }
  float* to = parts + static_cast<std::int64_t>(blockIdx.x) * (rule.experts + 2);
  for (int e = lane_of(); e < rule.experts; e += kWarp) to[e] = sums[e];
  if (lane_of() == 0) {
    to[rule.experts] = squares;
    to[rule.experts + 1] = entropies;
  }
}

__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const float* parts, int blocks, int experts, float* scores, float* totals) {
  const int e = static_cast<int>(own_pack());
  if (e >= experts + 2) return;
  float sum = 0;
  for (int b = 0; b < blocks; ++b) sum += parts[static_cast<std::int64_t>(b) * (experts + 2) + e];
  (e < experts ? scores[e] : totals[e - experts]) = sum;
}

void load_scores(CudaQueue& queue, const RouterLoadArgs& args) {
  const std::int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  const std::int64_t blocks = ceil_div(tokens, kBlockTokens);
  auto* parts = static_cast<float*>(queue.scratch(
      static_cast<std::size_t>(std::max<std::int64_t>(blocks, 1) * (experts + 2)) * sizeof(float)));
  const WarpGrid grid = warp_grid(1, experts, 2);
  if (blocks > 0) {
    score_parts_kernel<<<static_cast<unsigned>(blocks), kWarp, grid.shared / (grid.threads / kWarp),
                         queue.stream()>>>(address<float>(args.logits), tokens,
                                           rule_of(args.rule, experts), parts);
  }
  add_parts_kernel<<<static_cast<unsigned>(ceil_div(experts + 2, kThreads)), kThreads, 0,
                     queue.stream()>>>(parts, static_cast<int>(blocks), static_cast<int>(experts),
                                       address<float>(args.scores), address<float>(args.totals));
  check_launch("router scores");
}

}  // namespace

void router_load(const Stream& stream, const RouterLoadArgs& args) {
  const std::int64_t experts = args.logits.shape[1], slots = args.experts.numel();
  const std::int64_t cells = args.counts.numel();
  CudaQueue& queue = queue_of(stream);
  // Whole numbers: the order in which they are added does not matter.
  auto* counts = static_cast<int*>(queue.scratch(static_cast<std::size_t>(cells) * sizeof(int)));
  check_cuda(
      cudaMemsetAsync(counts, 0, static_cast<std::size_t>(cells) * sizeof(int), queue.stream()),
      "router load");
  if (slots > 0) {
    count_kernel<<<static_cast<unsigned>(ceil_div(slots, kThreads)), kThreads, 0, queue.stream()>>>(
        args.experts.as<std::int32_t>(), args.group, counts, slots,
        static_cast<int>(args.rule.topk), static_cast<int>(experts));
  }
  to_float_kernel<<<static_cast<unsigned>(ceil_div(cells, kThreads)), kThreads, 0,
                    queue.stream()>>>(counts, address<float>(args.counts), cells);
  check_launch("router load");
  if (!args.scores.empty()) load_scores(queue, args);
}

namespace {

template <class T>
__global__ void __launch_bounds__(kThreads)
    spread_kernel(const float* probs, const std::int32_t* experts, T* dense, std::int64_t tokens,
                  int topk, int expert_count) {
  const std::int64_t token = token_of();
  if (token >= tokens) return;
  T* row = dense + token * expert_count;
  for (int e = lane_of(); e < expert_count; e += kWarp) row[e] = narrow<T>(0.0f);
  __syncwarp();
  for (int j = lane_of(); j < topk; j += kWarp) {
    const int expert = experts[token * topk + j];
    if (expert >= 0) row[expert] = narrow<T>(probs[token * topk + j]);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    pick_kernel(float* probs, const std::int32_t* experts, const T* dense, std::int64_t slots,
                int topk, int expert_count) {
  const std::int64_t s = own_pack();
  if (s >= slots) return;
  const int expert = experts[s];
  probs[s] = expert < 0 ? 0.0f : widen(dense[s / topk * expert_count + expert]);
}

}  // namespace

void spread(const Stream& stream, const ChoiceArgs& args) {
  const std::int64_t tokens = args.dense.shape[0];
  if (tokens == 0) return;
  visit_value(args.dense.dtype, [&](auto type) {
    using T = decltype(type);
    spread_kernel<T><<<static_cast<unsigned>(ceil_div(tokens, kThreads / kWarp)), kThreads, 0,
                       queue_of(stream).stream()>>>(
        address<float>(args.probs), args.experts.as<std::int32_t>(), address<T>(args.dense), tokens,
        static_cast<int>(args.experts.shape[1]), static_cast<int>(args.dense.shape[1]));
  });
  check_launch("spread");
}

void pick(const Stream& stream, const ChoiceArgs& args) {
  const std::int64_t slots = args.experts.numel();
  if (slots == 0) return;
  visit_value(args.dense.dtype, [&](auto type) {
    using T = decltype(type);
    pick_kernel<T><<<static_cast<unsigned>(ceil_div(slots, kThreads)), kThreads, 0,
                     queue_of(stream).stream()>>>(
        address<float>(args.probs), args.experts.as<std::int32_t>(), address<T>(args.dense), slots,
        static_cast<int>(args.experts.shape[1]), static_cast<int>(args.dense.shape[1]));
  });
  check_launch("pick");
}

}  // namespace bev::cuda
