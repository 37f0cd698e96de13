// Router load: tokens and scores per expert, and conversion between choices and dense matrices.
#include "backend/cuda/moe/moe_launchers.h"
#include "backend/cuda/moe/moe_router.cuh"

namespace bev::cuda {

namespace {

// Slots per block; a block counts in shared memory if all cells fit.
constexpr int kBlockSlots = 16 * kThreads, kSharedCells = 4096;

__global__ void __launch_bounds__(kThreads)
    count_kernel(const std::int32_t* experts, const std::int32_t* group, int* counts,
                 std::int64_t slots, int topk, int expert_count, std::int64_t cells) {
  __shared__ int shared[kSharedCells];
  const bool fits = cells <= kSharedCells;
  int* own = fits ? shared : counts;
  for (int c = threadIdx.x; fits && c < cells; c += kThreads) shared[c] = 0;
  __syncthreads();
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kBlockSlots;
  const std::int64_t end = min(begin + kBlockSlots, slots);
  for (std::int64_t s = begin + threadIdx.x; s < end; s += kThreads) {
    const int row = group == nullptr ? 0 : group[s / topk];
    atomicAdd(&own[static_cast<std::int64_t>(row) * expert_count + experts[s]], 1);
  }
  __syncthreads();
  for (int c = threadIdx.x; fits && c < cells; c += kThreads) {
    if (shared[c] > 0) atomicAdd(&counts[c], shared[c]);
  }
}

__global__ void __launch_bounds__(kThreads)
    to_float_kernel(const int* from, float* to, std::int64_t count) {
  const std::int64_t i = own_pack();
  if (i < count) to[i] = static_cast<float>(from[i]);
}

// Tokens per warp, which are summed in sequence.
constexpr int kWarpTokens = 4;

// parts [blocks, E + 2]: partial sums of scores, lse^2 and entropy.
__global__ void __launch_bounds__(kMostWarps* kWarp)
    score_parts_kernel(const float* logits, std::int64_t tokens, Rule rule, float* parts) {
  const int experts = rule.experts, cells = experts + 2;
  float* scores = own_rows(cells, 2);
  float* sums = scores + cells;
  for (int c = lane_of(); c < cells; c += kWarp) sums[c] = 0;
  const std::int64_t begin = token_of() * kWarpTokens;
  const std::int64_t end = min(begin + kWarpTokens, tokens);
  for (std::int64_t t = begin; t < end; ++t) {
    const float lse = scores_of(rule, logits + t * experts, scores);
    float total = 0, entropy = 0;
    for (int e = lane_of(); e < experts; e += kWarp) total += scores[e];
    total = reduce_warp<Sum>(total) + kTiny;
    for (int e = lane_of(); e < experts; e += kWarp) {
      const float share = scores[e] / total;
      sums[e] += share;
      if (share > 0) entropy -= share * logf(share);
    }
    entropy = reduce_warp<Sum>(entropy);
    if (lane_of() == 0) {
      sums[experts] += lse * lse;
      sums[experts + 1] += entropy;
    }
    __syncwarp();
  }
  __syncthreads();
  const float* first = sums - static_cast<int>(threadIdx.x / kWarp) * 2 * cells;
  for (int c = threadIdx.x; c < cells; c += blockDim.x) {
    float sum = 0;
    for (int w = 0; w < blockDim.x / kWarp; ++w) sum += first[w * 2 * cells + c];
    parts[static_cast<std::int64_t>(blockIdx.x) * cells + c] = sum;
  }
}

// A block takes kWarp cells; its rows of threads split their parts.
constexpr int kPartRows = 32;
__global__ void __launch_bounds__(kWarp* kPartRows)
    add_parts_kernel(const float* parts, int count, int experts, float* scores, float* totals) {
  __shared__ float shared[kPartRows][kWarp];
  const int cells = experts + 2, c = static_cast<int>(own_pack());
  float sum = 0;
  for (int p = threadIdx.y; c < cells && p < count; p += kPartRows) {
    sum += parts[static_cast<std::int64_t>(p) * cells + c];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || c >= cells) return;
  for (int row = 1; row < kPartRows; ++row) sum += shared[row][threadIdx.x];
  (c < experts ? scores[c] : totals[c - experts]) = sum;
}

void load_scores(CudaQueue& queue, const RouterLoadArgs& args) {
  const std::int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  const std::int64_t cells = experts + 2;
  const WarpGrid grid = warp_grid(ceil_div(tokens, kWarpTokens), cells, 2);
  auto* parts = static_cast<float*>(queue.scratch(std::max<std::size_t>(grid.blocks, 1) *
                                                  static_cast<std::size_t>(cells) * sizeof(float)));
  if (grid.blocks > 0) {
    score_parts_kernel<<<grid.blocks, grid.threads, grid.shared, queue.stream()>>>(
        address<float>(args.logits), tokens, rule_of(args.rule, experts), parts);
  }
  add_parts_kernel<<<static_cast<unsigned>(ceil_div(cells, kWarp)), dim3(kWarp, kPartRows), 0,
                     queue.stream()>>>(parts, static_cast<int>(grid.blocks),
                                       static_cast<int>(experts), address<float>(args.scores),
                                       address<float>(args.totals));
  check_launch("router scores");
}

}  // namespace

void router_load(const Stream& stream, const RouterLoadArgs& args) {
  const std::int64_t experts = args.logits.shape[1], slots = args.experts.numel();
  const std::int64_t cells = args.counts.numel();
  CudaQueue& queue = queue_of(stream);
  // Integer counts: the order of the atomics does not matter.
  auto* counts = static_cast<int*>(queue.scratch(static_cast<std::size_t>(cells) * sizeof(int)));
  check_cuda(
      cudaMemsetAsync(counts, 0, static_cast<std::size_t>(cells) * sizeof(int), queue.stream()),
      "router load");
  if (slots > 0) {
    count_kernel<<<static_cast<unsigned>(ceil_div(slots, kBlockSlots)), kThreads, 0,
                   queue.stream()>>>(args.experts.as<std::int32_t>(), args.group, counts, slots,
                                     static_cast<int>(args.rule.topk), static_cast<int>(experts),
                                     cells);
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
