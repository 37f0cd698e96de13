// MoE expert capacity (which choices are kept) and dispatch (the ranks that tokens are sent to).
#include <utility>

#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/moe/moe_launchers.h"
#include "backend/cuda/moe/sort_positions.h"
#include "kernels/moe.h"
#include "kernels/router.h"

namespace bev::cuda {

namespace {

// The smallest keys are kept. Non-negative floats order like their bits, so inverted bits put large
// probabilities first.
__global__ void __launch_bounds__(kThreads)
    key_choices_kernel(const float* probs, const std::int32_t* positions, int slots, int topk,
                       KeyedPositions out) {
  const int s = static_cast<int>(own_pack());
  if (s >= slots) return;
  out.keys[s] = probs != nullptr ? ~__float_as_uint(probs[s])
                                 : static_cast<std::uint32_t>(positions[s / topk]);
  out.positions[s] = s;
}

__global__ void __launch_bounds__(kThreads)
    key_experts_kernel(const std::int32_t* experts, int slots, int count, KeyedPositions data) {
  const int r = static_cast<int>(own_pack());
  if (r >= slots) return;
  const int expert = experts[data.positions[r]];
  data.keys[r] = static_cast<std::uint32_t>(expert < 0 ? count : expert);
}

// begins[e] is the index of the first choice of expert e in the sorted list; begins[count] ends the
// last.
__global__ void __launch_bounds__(kThreads)
    find_begins_kernel(KeyedPositions sorted, int slots, int count, std::int32_t* begins) {
  const int r = static_cast<int>(own_pack());
  if (r >= slots) return;
  const int key = static_cast<int>(sorted.keys[r]);
  const int before = r == 0 ? -1 : static_cast<int>(sorted.keys[r - 1]);
  for (int e = before + 1; e <= key; ++e) begins[e] = r;
  if (r == slots - 1) {
    for (int e = key + 1; e <= count; ++e) begins[e] = slots;
  }
}

__global__ void __launch_bounds__(kThreads)
    keep_kernel(KeyedPositions sorted, int slots, int count, int capacity,
                const std::int32_t* begins, std::int32_t* kept) {
  const int r = static_cast<int>(own_pack());
  if (r >= slots) return;
  const int key = static_cast<int>(sorted.keys[r]);
  const bool keeps = key < count && r - begins[key] < capacity;
  kept[sorted.positions[r]] = keeps ? key : -1;
}

// Runs as one warp.
__global__ void count_dropped_kernel(const std::int32_t* begins, int count, int capacity,
                                     float* dropped) {
  float sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < count; e += kWarp) {
    sum += static_cast<float>(max(begins[e + 1] - begins[e] - capacity, 0));
  }
  sum = reduce_warp<Sum>(sum);
  if (threadIdx.x == 0) *dropped = sum;
}

// Experts per ep rank: the first `larger` ranks have each + 1 of them, the others `each`.
struct ExpertRanks {
  int each, larger;

  __device__ int of(int expert) const {
    const int begin = larger * (each + 1);
    return expert < begin ? expert / (each + 1) : larger + (expert - begin) / each;
  }
};

// One thread per token. Counts tokens and choices per block in shared memory, [2, ep], then adds
// them globally; integer sums do not depend on the order.
__global__ void __launch_bounds__(kThreads)
    dispatch_kernel(const std::int32_t* experts, std::int32_t* members, std::int32_t* counts,
                    int tokens, int topk, int etp, int ep, ExpertRanks ranks) {
  extern __shared__ std::int32_t own[];
  for (int i = threadIdx.x; i < 2 * ep; i += kThreads) own[i] = 0;
  __syncthreads();
  for (int t = static_cast<int>(own_pack()); t < tokens; t += gridDim.x * kThreads) {
    const std::int32_t* chosen = experts + static_cast<std::int64_t>(t) * topk;
    for (int j = 0; j < topk; ++j) {
      const int rank = chosen[j] < 0 ? -1 : ranks.of(chosen[j]);
      bool goes = rank >= 0;
      for (int i = 0; i < j && goes; ++i) goes = chosen[i] < 0 || ranks.of(chosen[i]) != rank;
      if (goes) atomicAdd(&own[rank], 1);
      if (rank >= 0) atomicAdd(&own[ep + rank], 1);
      std::int32_t* to = members + (static_cast<std::int64_t>(t) * topk + j) * etp;
      for (int i = 0; i < etp; ++i) to[i] = goes ? etp * rank + i : -1;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * ep * etp; i += kThreads) {
    const int member = i / 2, kind = i % 2;
    const std::int32_t number = own[kind * ep + member / etp];
    if (number > 0) atomicAdd(&counts[2 * member + kind], number);
  }
}

}  // namespace

void limit(const Stream& stream, const LimitArgs& args) {
  const std::int64_t slots = args.experts.numel(), count = args.expert_count;
  CudaQueue& queue = queue_of(stream);
  if (slots == 0) {
    check_cuda(cudaMemsetAsync(args.dropped.data, 0, args.dropped.bytes(), queue.stream()),
               "limit");
    return;
  }
  const std::int64_t begins_at = 4 * slots + sort_counts(slots);
  auto* words = static_cast<std::uint32_t*>(
      queue.scratch(static_cast<std::size_t>(begins_at + count + 1) * 4));
  auto list = [&](std::int64_t at) {
    return KeyedPositions{words + at * slots,
                          reinterpret_cast<std::int32_t*>(words + (at + 1) * slots)};
  };
  KeyedPositions data = list(0), other = list(2);
  auto* begins = reinterpret_cast<std::int32_t*>(words + begins_at);
  const auto blocks = static_cast<unsigned>(ceil_div(slots, kThreads));
  const int rows = static_cast<int>(slots), experts = static_cast<int>(count);
  const int capacity = static_cast<int>(std::min(args.capacity, slots));
  const std::int64_t most = args.probs.empty() ? 0x7fffffff : 0xffffffff;
  key_choices_kernel<<<blocks, kThreads, 0, queue.stream()>>>(
      address<float>(args.probs), args.positions, rows, static_cast<int>(args.experts.shape[1]),
      data);
  check_launch("limit");
  const auto sort = [&](std::int64_t largest) {
    const KeyedPositions sorted =
        sort_positions(queue, data, other, slots, largest, words + 4 * slots);
    if (sorted.keys != data.keys) std::swap(data, other);
  };
  sort(most);
  key_experts_kernel<<<blocks, kThreads, 0, queue.stream()>>>(args.experts.as<std::int32_t>(), rows,
                                                              experts, data);
  sort(count);
  find_begins_kernel<<<blocks, kThreads, 0, queue.stream()>>>(data, rows, experts, begins);
  keep_kernel<<<blocks, kThreads, 0, queue.stream()>>>(data, rows, experts, capacity, begins,
                                                       args.kept.as<std::int32_t>());
  count_dropped_kernel<<<1, kWarp, 0, queue.stream()>>>(begins, experts, capacity,
                                                        address<float>(args.dropped));
  check_launch("limit");
}

void dispatch(const Stream& stream, const DispatchArgs& args) {
  const std::int64_t tokens = args.experts.shape[0], topk = args.experts.shape[1];
  const std::int64_t etp = args.etp, ep = args.counts.shape[0] / etp;
  constexpr std::int64_t kMostRanks = 4096;
  BEV_CHECK(ep <= kMostRanks, ErrorKind::kDevice, "dispatch: ", ep,
            " expert-parallel ranks are too many; use at most ", kMostRanks,
            " or --moe-token-dispatcher-type allgather");
  CudaQueue& queue = queue_of(stream);
  check_cuda(cudaMemsetAsync(args.counts.data, 0, args.counts.bytes(), queue.stream()), "dispatch");
  if (tokens * topk == 0) return;
  const std::int64_t blocks =
      std::min<std::int64_t>(ceil_div(tokens, kThreads), 4 * queue.multiprocessors());
  const ExpertRanks ranks{static_cast<int>(args.expert_count / ep),
                          static_cast<int>(args.expert_count % ep)};
  dispatch_kernel<<<static_cast<unsigned>(blocks), kThreads,
                    static_cast<std::size_t>(2 * ep) * sizeof(std::int32_t), queue.stream()>>>(
      args.experts.as<std::int32_t>(), args.members.as<std::int32_t>(),
      args.counts.as<std::int32_t>(), static_cast<int>(tokens), static_cast<int>(topk),
      static_cast<int>(etp), static_cast<int>(ep), ranks);
  check_launch("dispatch");
}

}  // namespace bev::cuda
