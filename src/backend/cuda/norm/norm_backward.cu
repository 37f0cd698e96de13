// Backward of RMSNorm and LayerNorm: input gradient, and weight and bias gradients through partial
// sums.
#include "backend/cuda/device/amax.cuh"
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/row_places.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/elementwise/column_sums.h"
#include "backend/cuda/norm/norm_launchers.h"

namespace bev::cuda {

namespace {

// partial_weight, partial_bias: partial sums, one row per block.
// S is the type of the norm's input: of an f32 residual stream, or T.
template <class T, class S>
struct Backward {
  const T *dy, *weight;
  const S *s, *dsum;
  const float *mean, *rstd;
  S* dx;
  float *partial_weight, *partial_bias, *amax;
  std::int64_t rows, columns;
  float offset;
};

template <class T, class S>
Backward<T, S> backward_of(const NormBackwardArgs& args) {
  return {.dy = address<T>(args.dy),
          .weight = address<T>(args.weight),
          .s = address<S>(args.s),
          .dsum = address<S>(args.dsum),
          .mean = address<float>(args.mean),
          .rstd = address<float>(args.rstd),
          .dx = address<S>(args.dx),
          .partial_weight = nullptr,
          .partial_bias = nullptr,
          .amax = args.amax,
          .rows = args.s.shape[0],
          .columns = args.s.shape.row_numel(),
          .offset = static_cast<float>(args.offset)};
}

constexpr int kMostLanes = 512;

// Blocks with more than one row of threads have at most this many threads per row.
constexpr int kMostSharedLanes = kThreads / 2;

// Adds the sums of the block's rows of threads in order and writes the result.
template <int kPacks, int kCount>
__device__ void store_sums(RowPlaces<kPacks, kCount> places, float (&sums)[kPacks][kCount],
                           float* to) {
  __shared__ Pack<float, kCount> above[kPacks * kMostSharedLanes];
  for (unsigned y = 1; y < blockDim.y; ++y) {
    __syncthreads();
    places.each([&](int k, int) {
      if (threadIdx.y != y) return;
#pragma unroll
      for (int i = 0; i < kCount; ++i) above[threadIdx.x + k * blockDim.x].set(i, sums[k][i]);
    });
    __syncthreads();
    places.each([&](int k, int) {
      if (threadIdx.y != 0) return;
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[k][i] += above[threadIdx.x + k * blockDim.x][i];
    });
  }
  if (threadIdx.y != 0) return;
  places.each([&](int k, int at) {
    Pack<float, kCount> pack;
#pragma unroll
    for (int i = 0; i < kCount; ++i) pack.set(i, sums[k][i]);
    pack.store(to + at);
  });
}

// A thread's share of a row.
template <class T, class S, int kPacks>
struct BackwardRow {
  Pack<T, kPack<T>> dy[kPacks];
  Pack<S, kPack<T>> s[kPacks], dsum[kPacks];
  float mean, rstd;

  __device__ void load(const Backward<T, S>& args, std::int64_t row) {
    const bool has_row = row < args.rows;
    places(args, row).each([&](int k, int at) {
      dy[k].load(args.dy + row * args.columns + at);
      s[k].load(args.s + row * args.columns + at);
      if (args.dsum != nullptr) dsum[k].load(args.dsum + row * args.columns + at);
    });
    mean = has_row && args.mean != nullptr ? args.mean[row] : 0.0f;
    rstd = has_row ? args.rstd[row] : 0.0f;
  }
  __device__ static RowPlaces<kPacks, kPack<T>> places(const Backward<T, S>& args,
                                                       std::int64_t row) {
    return {row < args.rows ? static_cast<int>(args.columns / kPack<T>) : 0};
  }
};

// dx = rstd * (g - shift - unit * along) + dsum with g = dy * (offset + weight), where along and
// shift are the means of g * unit and (LayerNorm) of g. Memory bound: reads dy, s and dsum once and
// writes dx once; the next row is prefetched if registers allow. The weight gradient is summed in
// registers over all rows of a thread, then over the block, and written as a partial sum.
template <class T, class S, int kPacks, bool kBias>
__global__ void __launch_bounds__(kMostLanes) backward_kernel(Backward<T, S> args) {
  constexpr int kCount = kPack<T>;
  constexpr bool kAhead = kPacks == 2 && !kBias;
  __shared__ float shared[2][kMostLanes / kWarp];
  const RowPlaces<kPacks, kCount> all{static_cast<int>(args.columns / kCount)};
  const float inverse = 1.0f / static_cast<float>(args.columns);
  Pack<T, kCount> weight[kPacks];
  float weight_sum[kPacks][kCount] = {}, bias_sum[kBias ? kPacks : 1][kCount] = {};
  all.each([&](int k, int at) { weight[k].load(args.weight + at); });
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.y;
  std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * blockDim.y;
  BackwardRow<T, S, kPacks> next, now;
  float thread_amax = 0;
  if constexpr (kAhead) next.load(args, base + threadIdx.y);
  for (; base < args.rows; base += step) {
    const std::int64_t row = base + threadIdx.y;
    if constexpr (kAhead) {
      now = next;
      next.load(args, row + step);
    } else {
      now.load(args, row);
    }
    const RowPlaces<kPacks, kCount> places = now.places(args, row);
    float along = 0, shift = 0;
    places.each_element([&](int k, int i) {
      const float unit = (now.s[k][i] - now.mean) * now.rstd, grad = now.dy[k][i];
      const float scaled = grad * (args.offset + weight[k][i]);
      weight_sum[k][i] += grad * unit;
      if constexpr (kBias) bias_sum[k][i] += grad;
      along += scaled * unit;
      shift += scaled;
    });
    if (args.dx == nullptr) continue;
    along = reduce_row<Sum>(along, shared[0]) * inverse;
    shift = args.mean != nullptr ? reduce_row<Sum>(shift, shared[1]) * inverse : 0.0f;
    places.each([&](int k, int at) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float unit = (now.s[k][i] - now.mean) * now.rstd;
        const float scaled = now.dy[k][i] * (args.offset + weight[k][i]);
        const float through = now.rstd * (scaled - shift - unit * along);
        now.s[k].set(i, args.dsum != nullptr ? through + now.dsum[k][i] : through);
        thread_amax = larger(thread_amax, now.s[k][i]);
      }
      now.s[k].store(args.dx + row * args.columns + at);
    });
    // The sums of the next row must not overwrite what a slow warp still reads.
    if (blockDim.x > kWarp) __syncthreads();
  }
  if (args.amax != nullptr) raise_amax_by_block(args.amax, thread_amax);
  const std::int64_t partial = blockIdx.x * args.columns;
  if (args.partial_weight != nullptr) {
    store_sums<kPacks, kCount>(all, weight_sum, args.partial_weight + partial);
  }
  if constexpr (kBias) store_sums<kPacks, kCount>(all, bias_sum, args.partial_bias + partial);
}

// Input gradient for any number of columns and alignment: one block per row.
template <class T, class S>
__global__ void __launch_bounds__(kThreads) input_any_kernel(Backward<T, S> args) {
  __shared__ float shared[2][kThreads / kWarp];
  const std::int64_t begin = blockIdx.x * args.columns;
  const float mean = args.mean != nullptr ? args.mean[blockIdx.x] : 0.0f;
  const float rstd = args.rstd[blockIdx.x];
  const auto unit = [&](std::int64_t i) { return (widen(args.s[begin + i]) - mean) * rstd; };
  const auto scaled = [&](std::int64_t i) {
    return widen(args.dy[begin + i]) * (args.offset + widen(args.weight[i]));
  };
  float along = 0, shift = 0;
  for (std::int64_t i = threadIdx.x; i < args.columns; i += kThreads) {
    along += scaled(i) * unit(i);
    shift += scaled(i);
  }
  along = reduce_row<Sum>(along, shared[0]) / static_cast<float>(args.columns);
  shift = args.mean != nullptr
              ? reduce_row<Sum>(shift, shared[1]) / static_cast<float>(args.columns)
              : 0.0f;
  float thread_amax = 0;
  for (std::int64_t i = threadIdx.x; i < args.columns; i += kThreads) {
    const float through = rstd * (scaled(i) - shift - unit(i) * along);
    const S dx = narrow<S>(args.dsum != nullptr ? through + widen(args.dsum[begin + i]) : through);
    args.dx[begin + i] = dx;
    thread_amax = larger(thread_amax, widen(dx));
  }
  if (args.amax != nullptr) raise_amax_by_block(args.amax, thread_amax);
}

// Weight gradient for any number of columns: one thread per column of a slab of rows.
template <class T, class S>
__global__ void __launch_bounds__(kThreads)
    weight_any_kernel(Backward<T, S> args, std::int64_t slab_rows) {
  const std::int64_t column = own_pack(), begin = blockIdx.y * slab_rows;
  if (column >= args.columns) return;
  float weight_sum = 0, bias_sum = 0;
  for (std::int64_t row = begin; row < min(args.rows, begin + slab_rows); ++row) {
    const std::int64_t at = row * args.columns + column;
    const float mean = args.mean != nullptr ? args.mean[row] : 0.0f, grad = widen(args.dy[at]);
    weight_sum += grad * ((widen(args.s[at]) - mean) * args.rstd[row]);
    bias_sum += grad;
  }
  const std::int64_t partial = blockIdx.y * args.columns + column;
  if (args.partial_weight != nullptr) args.partial_weight[partial] = weight_sum;
  if (args.partial_bias != nullptr) args.partial_bias[partial] = bias_sum;
}

// Allocates the requested partial sums.
template <class T, class S>
void set_partials(CudaQueue& queue, const NormBackwardArgs& view, std::int64_t partial_rows,
                  Backward<T, S>& args) {
  const std::int64_t count = partial_rows * args.columns;
  auto* partials =
      static_cast<float*>(queue.scratch(static_cast<std::size_t>(2 * count) * sizeof(float)));
  if (!view.dweight.empty()) args.partial_weight = partials;
  if (!view.dbias.empty()) args.partial_bias = partials + count;
}

template <int kPacks, class T, class S>
void launch(CudaQueue& queue, const NormBackwardArgs& view, Backward<T, S> args) {
  const std::int64_t packs = args.columns / kPack<T>;
  const std::int64_t lanes = ceil_div(ceil_div(packs, kPacks), kWarp) * kWarp;
  const std::int64_t height = std::max<std::int64_t>(1, kThreads / lanes);
  const std::int64_t blocks = std::min(ceil_div(args.rows, height), kMostPartialBlocks);
  set_partials(queue, view, blocks, args);
  const dim3 threads(static_cast<unsigned>(lanes), static_cast<unsigned>(height));
  const auto grid = static_cast<unsigned>(blocks);
  if (args.partial_bias != nullptr) {
    backward_kernel<T, S, kPacks, true><<<grid, threads, 0, queue.stream()>>>(args);
  } else {
    backward_kernel<T, S, kPacks, false><<<grid, threads, 0, queue.stream()>>>(args);
  }
  check_launch("norm backward");
  add_partial_sums(queue, args.partial_weight, blocks, args.columns, view.beta, view.dweight);
  add_partial_sums(queue, args.partial_bias, blocks, args.columns, view.beta, view.dbias);
}

template <class T, class S>
void launch_any(CudaQueue& queue, const NormBackwardArgs& view, Backward<T, S> args) {
  // dx may alias dy, so the sums over dy come first.
  if (!view.dweight.empty() || !view.dbias.empty()) {
    const std::int64_t slab_rows = std::max<std::int64_t>(32, ceil_div(args.rows, 256));
    const std::int64_t slabs = ceil_div(args.rows, slab_rows);
    set_partials(queue, view, slabs, args);
    if (slabs > 0) {
      const dim3 blocks(static_cast<unsigned>(ceil_div(args.columns, kThreads)),
                        static_cast<unsigned>(slabs));
      weight_any_kernel<T, S><<<blocks, kThreads, 0, queue.stream()>>>(args, slab_rows);
      check_launch("norm weight gradient");
    }
    add_partial_sums(queue, args.partial_weight, slabs, args.columns, view.beta, view.dweight);
    add_partial_sums(queue, args.partial_bias, slabs, args.columns, view.beta, view.dbias);
  }
  if (args.dx == nullptr || args.rows == 0) return;
  input_any_kernel<T, S><<<static_cast<unsigned>(args.rows), kThreads, 0, queue.stream()>>>(args);
  check_launch("norm input gradient");
}

template <class T, class S>
void run(CudaQueue& queue, const NormBackwardArgs& view) {
  const Backward<T, S> args = backward_of<T, S>(view);
  const std::int64_t packs = args.columns / kPack<T>;
  if (args.columns == 0) return;
  const bool in_packs = args.columns % kPack<T> == 0 && args.rows > 0 && packs <= 4 * kMostLanes &&
                        aligned(args.dy, args.s, args.dsum, args.weight, args.dx);
  if (!in_packs) return launch_any(queue, view, args);
  if (packs <= 2 * kMostLanes) return launch<2>(queue, view, args);
  launch<4>(queue, view, args);
}

}  // namespace

void norm_backward(const Stream& stream, const NormBackwardArgs& args) {
  visit_value(args.dy.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (sizeof(T) == 2) {
      if (args.s.dtype == Dtype::kF32) return run<T, float>(queue_of(stream), args);
    }
    run<T, T>(queue_of(stream), args);
  });
}

}  // namespace bev::cuda
