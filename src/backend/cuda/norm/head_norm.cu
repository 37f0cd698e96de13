// QK norm: RMSNorm of each head of q and k in fused q
// k
// v rows, forward and backward.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/elementwise/column_sums.h"
#include "backend/cuda/norm/norm_launchers.h"

namespace bev::cuda {

namespace {

// Heads are contiguous, so head i of the whole tensor is row i of a matrix. Indices have 32 bits,
// because a 64-bit division takes ten times as long.
template <class T>
struct Heads {
  const T *x, *q_weight, *k_weight;
  float* rstd;
  std::uint32_t count;  // over all tokens
  std::uint32_t q_heads, kv_heads;
  std::int64_t size;
  float epsilon, offset;

  __device__ std::uint32_t per_token() const { return q_heads + 2 * kv_heads; }
  __device__ std::uint32_t normed() const { return q_heads + kv_heads; }
  __device__ const T* weight(std::uint32_t head) const {
    return head < q_heads ? q_weight : k_weight;
  }
};

template <class T>
struct BackwardHeads {
  Heads<T> heads;
  const T* dy;
  T* dx;
  float* partials;  // [2, gridDim.x, D]: of the q weight, of the k weight; or null
};

// Access of one lane to a head: packs of kCount elements, kLanes packs apart; with kWhole each lane
// has exactly one.
template <class T, int kCount, int kLanes, bool kWhole>
struct HeadLanes {
  std::int64_t size;
  template <class Body>
  __device__ void for_packs(const Body& body) const {
    const std::int64_t lane = threadIdx.x % kLanes;
    if constexpr (kWhole) {
      body(lane * kCount);
    } else {
      for (std::int64_t at = lane * kCount; at < size; at += kLanes * kCount) body(at);
    }
  }
};

// Memory bound: reads x, writes y. A group of kLanes lanes handles a head. All lanes of a warp stay
// active: a group past the last head repeats the last one without writing.
template <class T, int kCount, int kLanes, bool kWhole>
__global__ void __launch_bounds__(kThreads) forward_kernel(Heads<T> heads, T* y) {
  join_kernel_chain();
  const HeadLanes<T, kCount, kLanes, kWhole> lanes{heads.size};
  const auto group = static_cast<std::uint32_t>(own_pack() / kLanes);
  const bool writes = group < heads.count;
  const std::uint32_t item = writes ? group : heads.count - 1;
  const std::uint32_t token = item / heads.per_token(), head = item % heads.per_token();
  const T* from = heads.x + item * heads.size;
  T* to = y + item * heads.size;
  const bool normed = head < heads.normed();
  Pack<T, kCount> values;
  float squares = 0;
  lanes.for_packs([&](std::int64_t at) {
    values.load(from + at);
#pragma unroll
    for (int i = 0; i < kCount; ++i) squares += values[i] * values[i];
  });
  squares = reduce_warp<Sum, kLanes>(squares);
  const float rstd = 1.0f / sqrtf(squares / static_cast<float>(heads.size) + heads.epsilon);
  if (!writes || (!normed && to == from)) return;
  if (normed && threadIdx.x % kLanes == 0) heads.rstd[token * heads.normed() + head] = rstd;
  lanes.for_packs([&](std::int64_t at) {
    if constexpr (!kWhole) values.load(from + at);
    if (normed) {
      Pack<T, kCount> weight;
      weight.load(heads.weight(head) + at);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        values.set(i, values[i] * rstd * (heads.offset + weight[i]));
      }
    }
    values.store(to + at);
  });
}

// Memory bound: reads dy and x, writes dx. A thread sees the same columns of every head, so it
// accumulates the weight gradients in registers; a block adds its groups in order.
template <class T, int kCount, int kLanes>
__global__ void __launch_bounds__(kThreads) backward_kernel(BackwardHeads<T> args) {
  constexpr int kGroups = kThreads / kLanes;
  __shared__ float shared[kGroups][kLanes * kCount];
  const Heads<T>& heads = args.heads;
  const int lane = threadIdx.x % kLanes, place = threadIdx.x / kLanes;
  const float inverse = 1.0f / static_cast<float>(heads.size);
  float sums[2][kCount] = {};
  for (std::uint32_t base = blockIdx.x * kGroups; base < heads.count; base += gridDim.x * kGroups) {
    // A group past the last head repeats the last one, and neither writes nor accumulates.
    const bool active = base + place < heads.count;
    const std::uint32_t item = active ? base + place : heads.count - 1;
    const std::uint32_t token = item / heads.per_token(), head = item % heads.per_token();
    const std::int64_t at = item * heads.size + lane * kCount;
    const bool normed = head < heads.normed();
    const bool writes = active && (normed || args.dx != args.dy);
    if (!__any_sync(0xffffffffu, writes)) continue;
    Pack<T, kCount> dy, x, weight;
    dy.load(args.dy + at);
    x.load(heads.x + at);
    weight.load(heads.weight(head) + lane * kCount);
    const float rstd = normed ? heads.rstd[token * heads.normed() + head] : 0.0f;
    float along = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float product = dy[i] * x[i] * rstd;
      along += product * (heads.offset + weight[i]);
      if (active && head < heads.q_heads) sums[0][i] += product;
      if (active && head >= heads.q_heads && normed) sums[1][i] += product;
    }
    along = reduce_warp<Sum, kLanes>(along) * inverse;
    if (!writes) continue;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float scaled = dy[i] * (heads.offset + weight[i]);
      dy.set(i, normed ? rstd * (scaled - x[i] * rstd * along) : dy[i]);
    }
    dy.store(args.dx + at);
  }
  if (args.partials == nullptr) return;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCount; ++i) shared[place][lane * kCount + i] = sums[part][i];
    __syncthreads();
    for (int column = threadIdx.x; column < kLanes * kCount; column += kThreads) {
      float sum = 0;
      for (int g = 0; g < kGroups; ++g) sum += shared[g][column];
      args.partials[(static_cast<std::int64_t>(part) * gridDim.x + blockIdx.x) * heads.size +
                    column] = sum;
    }
  }
}

// Input gradient for any head size: one warp per head.
template <class T>
__global__ void __launch_bounds__(kThreads) input_any_kernel(BackwardHeads<T> args) {
  const Heads<T>& heads = args.heads;
  const auto item = static_cast<std::uint32_t>(own_pack() / kWarp);
  if (item >= heads.count) return;
  const std::uint32_t token = item / heads.per_token(), head = item % heads.per_token();
  const T *dy = args.dy + item * heads.size, *x = heads.x + item * heads.size;
  T* dx = args.dx + item * heads.size;
  const int lane = threadIdx.x % kWarp;
  if (head >= heads.normed()) {
    for (std::int64_t i = lane; i < heads.size; i += kWarp) dx[i] = dy[i];
    return;
  }
  const T* weight = heads.weight(head);
  const float rstd = heads.rstd[token * heads.normed() + head];
  const auto scaled = [&](std::int64_t i) {
    return widen(dy[i]) * (heads.offset + widen(weight[i]));
  };
  float along = 0;
  for (std::int64_t i = lane; i < heads.size; i += kWarp) along += scaled(i) * widen(x[i]) * rstd;
  along = reduce_warp<Sum>(along) / static_cast<float>(heads.size);
  for (std::int64_t i = lane; i < heads.size; i += kWarp) {
    dx[i] = narrow<T>(rstd * (scaled(i) - widen(x[i]) * rstd * along));
  }
}

// Weight gradients for any head size: one thread per column of a slab of tokens; blockIdx.z selects
// q or k.
template <class T>
__global__ void __launch_bounds__(kThreads)
    weight_any_kernel(BackwardHeads<T> args, std::int64_t tokens, std::int64_t slab_tokens) {
  const Heads<T>& heads = args.heads;
  const std::int64_t column = own_pack(), begin = blockIdx.y * slab_tokens;
  if (column >= heads.size) return;
  const std::uint32_t first = blockIdx.z == 0 ? 0 : heads.q_heads;
  const std::uint32_t last = blockIdx.z == 0 ? heads.q_heads : heads.normed();
  float sum = 0;
  for (std::int64_t token = begin; token < min(tokens, begin + slab_tokens); ++token) {
    for (std::uint32_t head = first; head < last; ++head) {
      const std::int64_t at = (token * heads.per_token() + head) * heads.size + column;
      sum += widen(args.dy[at]) * (widen(heads.x[at]) * heads.rstd[token * heads.normed() + head]);
    }
  }
  args.partials[(static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * heads.size +
                column] = sum;
}

template <class T, class Args>
Heads<T> heads_of(const Args& args) {
  const std::int64_t count = args.x.shape[0] * (args.q_heads + 2 * args.kv_heads);
  BEV_CHECK(count < std::int64_t{1} << 31, ErrorKind::kInternal, "head norm: ", count, " heads");
  return {.x = address<T>(args.x),
          .q_weight = address<T>(args.q_weight),
          .k_weight = address<T>(args.k_weight),
          .rstd = address<float>(args.rstd),
          .count = static_cast<std::uint32_t>(count),
          .q_heads = static_cast<std::uint32_t>(args.q_heads),
          .kv_heads = static_cast<std::uint32_t>(args.kv_heads),
          .size = args.head_size,
          .epsilon = 0,
          .offset = static_cast<float>(args.offset)};
}

// Calls body(integral constant of lanes) if a head has that many packs, else rest().
template <class T, class Body, class Rest>
void by_lanes(bool is_aligned, std::int64_t size, const Body& body, const Rest& rest) {
  if (is_aligned && size == 8 * kPack<T>) return body(std::integral_constant<int, 8>{});
  if (is_aligned && size == 16 * kPack<T>) return body(std::integral_constant<int, 16>{});
  if (is_aligned && size == 32 * kPack<T>) return body(std::integral_constant<int, 32>{});
  rest();
}

template <class T>
void run_forward(CudaQueue& queue, const HeadNormForwardArgs& view) {
  Heads<T> heads = heads_of<T>(view);
  heads.epsilon = static_cast<float>(view.epsilon);
  T* y = address<T>(view.y);
  if (heads.count == 0) return;
  const auto blocks = [&](int lanes) {
    return static_cast<unsigned>(ceil_div(std::int64_t{heads.count} * lanes, kThreads));
  };
  by_lanes<T>(
      aligned(heads.x, heads.q_weight, heads.k_weight, y), heads.size,
      [&](auto lanes) {
        constexpr int kLanes = decltype(lanes)::value;
        launch_overlapped(queue, "head norm forward", forward_kernel<T, kPack<T>, kLanes, true>,
                          blocks(kLanes), kThreads, 0, heads, y);
      },
      [&] {
        launch_overlapped(queue, "head norm forward", forward_kernel<T, 1, kWarp, false>,
                          blocks(kWarp), kThreads, 0, heads, y);
      });
}

template <class T>
void run_backward(CudaQueue& queue, const HeadNormBackwardArgs& view) {
  BackwardHeads<T> args{heads_of<T>(view), address<T>(view.dy), address<T>(view.dx), nullptr};
  const Heads<T>& heads = args.heads;
  const bool wanted = !view.dq_weight.empty() || !view.dk_weight.empty();
  std::int64_t parts = 0;
  const auto set_partials = [&](std::int64_t count) {
    parts = count;
    if (!wanted) return;
    args.partials = static_cast<float*>(
        queue.scratch(static_cast<std::size_t>(2 * parts * heads.size) * sizeof(float)));
  };
  const auto whole = [&](auto lanes) {
    constexpr int kLanes = decltype(lanes)::value;
    set_partials(
        std::min(ceil_div(std::int64_t{heads.count} * kLanes, kThreads), 4 * kMostPartialBlocks));
    backward_kernel<T, kPack<T>, kLanes>
        <<<static_cast<unsigned>(parts), kThreads, 0, queue.stream()>>>(args);
  };
  const auto any = [&] {
    const std::int64_t tokens = view.x.shape[0];
    const std::int64_t slab_tokens = std::max<std::int64_t>(16, ceil_div(tokens, 256));
    set_partials(ceil_div(tokens, slab_tokens));
    if (wanted) {  // first: dx may alias dy
      const dim3 blocks(static_cast<unsigned>(ceil_div(heads.size, kThreads)),
                        static_cast<unsigned>(parts), 2);
      weight_any_kernel<T><<<blocks, kThreads, 0, queue.stream()>>>(args, tokens, slab_tokens);
    }
    input_any_kernel<T>
        <<<static_cast<unsigned>(ceil_div(std::int64_t{heads.count} * kWarp, kThreads)), kThreads,
           0, queue.stream()>>>(args);
  };
  if (heads.count > 0) {
    by_lanes<T>(aligned(args.dy, heads.x, heads.q_weight, heads.k_weight, args.dx), heads.size,
                whole, any);
    check_launch("head norm backward");
  }
  if (!wanted) return;
  add_partial_sums(queue, args.partials, parts, heads.size, view.q_beta, view.dq_weight);
  add_partial_sums(queue, args.partials + parts * heads.size, parts, heads.size, view.k_beta,
                   view.dk_weight);
}

}  // namespace

void head_norm_forward(const Stream& stream, const HeadNormForwardArgs& args) {
  visit_value(args.x.dtype,
              [&](auto type) { run_forward<decltype(type)>(queue_of(stream), args); });
}

void head_norm_backward(const Stream& stream, const HeadNormBackwardArgs& args) {
  visit_value(args.x.dtype,
              [&](auto type) { run_backward<decltype(type)>(queue_of(stream), args); });
}

}  // namespace bev::cuda
