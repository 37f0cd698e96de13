// Forward of RMSNorm and LayerNorm with fused residual addition, and the table of norm kernels.
#include "backend/cuda/device/amax.cuh"
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/row_places.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/norm/norm_launchers.h"
#include "backend/cuda/norm/norm_value.cuh"
#include "backend/cuda/tables.h"

namespace bev {

namespace cuda {
namespace {

// X is the type of x, S that of the normalised sum: of an f32 residual stream, or T.
template <class T, class X, class S>
struct Forward {
  const X* x;
  const S* residual;
  const T *weight, *bias;
  S* sum;
  T* y;
  float *mean, *rstd, *amax;
  std::int64_t rows, columns;
  float epsilon, offset;
};

template <class T, class X, class S>
Forward<T, X, S> forward_of(const NormForwardArgs& args) {
  return {.x = address<X>(args.x),
          .residual = address<S>(args.residual),
          .weight = address<T>(args.weight),
          .bias = address<T>(args.bias),
          .sum = address<S>(args.sum),
          .y = address<T>(args.y),
          .mean = address<float>(args.mean),
          .rstd = address<float>(args.rstd),
          .amax = args.amax,
          .rows = args.x.shape[0],
          .columns = args.x.shape.row_numel(),
          .epsilon = static_cast<float>(args.epsilon),
          .offset = static_cast<float>(args.offset)};
}

constexpr int kMostLanes = 1024;

template <class To, class From, int N>
__device__ void load_as(Pack<To, N>& to, const From* from) {
  if constexpr (std::is_same_v<To, From>) {
    to.load(from);
  } else {
    Pack<From, N> loaded;
    loaded.load(from);
#pragma unroll
    for (int i = 0; i < N; ++i) to.set(i, loaded[i]);
  }
}

// A row of threads holds a row of x in registers, kPacks packs per thread, so x (and the residual)
// is read once and y (and the sum) written once. All threads of the block take part in the
// reductions, including those past the last row.
template <class T, class X, class S, int kPacks>
__global__ void __launch_bounds__(kMostLanes) forward_kernel(Forward<T, X, S> args) {
  join_kernel_chain();
  constexpr int kCount = kPack<T>;
  __shared__ float shared[2][kMostLanes / kWarp];
  const float inverse = 1.0f / static_cast<float>(args.columns);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const std::int64_t begin = row * args.columns;
  const RowPlaces<kPacks, kCount> places{row < args.rows ? static_cast<int>(args.columns / kCount)
                                                         : 0};
  Pack<S, kCount> values[kPacks], residual[kPacks];
  places.each([&](int k, int at) { load_as(values[k], args.x + begin + at); });
  if (args.residual != nullptr) {
    places.each([&](int k, int at) { residual[k].load(args.residual + begin + at); });
    places.each_element([&](int k, int i) { values[k].set(i, values[k][i] + residual[k][i]); });
    places.each([&](int k, int at) { values[k].store(args.sum + begin + at); });
  }
  float mean = 0, squares = 0;
  if (args.mean != nullptr) {
    places.each_element([&](int k, int i) { mean += values[k][i]; });
    mean = reduce_row<Sum>(mean, shared[0]) * inverse;
  }
  places.each_element(
      [&](int k, int i) { squares += (values[k][i] - mean) * (values[k][i] - mean); });
  squares = reduce_row<Sum>(squares, shared[1]);
  const float rstd = 1.0f / sqrtf(squares * inverse + args.epsilon);
  if (threadIdx.x == 0 && row < args.rows) {
    if (args.mean != nullptr) args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
  float thread_amax = 0;
  places.each([&](int k, int at) {
    Pack<T, kCount> weight, bias, result;
    weight.load(args.weight + at);
    if (args.bias != nullptr) bias.load(args.bias + at);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float scale = args.offset + weight[i];
      result.set(i, args.bias != nullptr ? normalised(values[k][i], mean, rstd, scale, bias[i])
                                         : normalised(values[k][i], mean, rstd, scale));
    }
    if (args.y != nullptr) result.store(args.y + begin + at);
    if (args.amax != nullptr) thread_amax = fmaxf(thread_amax, pack_amax(result));
  });
  if (args.amax != nullptr) raise_amax_by_block(args.amax, thread_amax);
}

// Any number of columns and alignment: one block per row, which rereads it in each pass.
template <class T, class X, class S>
__global__ void __launch_bounds__(kThreads) forward_any_kernel(Forward<T, X, S> args) {
  join_kernel_chain();
  __shared__ float shared[2][kThreads / kWarp];
  const std::int64_t begin = blockIdx.x * args.columns;
  const X* x = args.x + begin;
  const S* s = nullptr;
  if constexpr (std::is_same_v<X, S>) s = x;
  if (args.residual != nullptr) {
    for (std::int64_t i = threadIdx.x; i < args.columns; i += kThreads) {
      args.sum[begin + i] = narrow<S>(widen(x[i]) + widen(args.residual[begin + i]));
    }
    s = args.sum + begin;  // a thread only reads back its own writes
  }
  const float inverse = 1.0f / static_cast<float>(args.columns);
  float mean = 0, squares = 0;
  if (args.mean != nullptr) {
    for (std::int64_t i = threadIdx.x; i < args.columns; i += kThreads) mean += widen(s[i]);
    mean = reduce_row<Sum>(mean, shared[0]) * inverse;
  }
  for (std::int64_t i = threadIdx.x; i < args.columns; i += kThreads) {
    squares += (widen(s[i]) - mean) * (widen(s[i]) - mean);
  }
  squares = reduce_row<Sum>(squares, shared[1]);
  const float rstd = 1.0f / sqrtf(squares * inverse + args.epsilon);
  if (threadIdx.x == 0) {
    if (args.mean != nullptr) args.mean[blockIdx.x] = mean;
    args.rstd[blockIdx.x] = rstd;
  }
  float thread_amax = 0;
  for (std::int64_t i = threadIdx.x; i < args.columns; i += kThreads) {
    const float scale = args.offset + widen(args.weight[i]);
    const T y = narrow<T>(args.bias != nullptr
                              ? normalised(widen(s[i]), mean, rstd, scale, widen(args.bias[i]))
                              : normalised(widen(s[i]), mean, rstd, scale));
    if (args.y != nullptr) args.y[begin + i] = y;
    thread_amax = larger(thread_amax, widen(y));
  }
  if (args.amax != nullptr) raise_amax_by_block(args.amax, thread_amax);
}

template <int kPacks, class T, class X, class S>
void launch(CudaQueue& queue, const Forward<T, X, S>& args) {
  const std::int64_t packs = args.columns / kPack<T>;
  const std::int64_t lanes = ceil_div(ceil_div(packs, kPacks), kWarp) * kWarp;
  const std::int64_t height = std::max<std::int64_t>(1, kThreads / lanes);
  launch_overlapped(queue, "norm forward", forward_kernel<T, X, S, kPacks>,
                    static_cast<unsigned>(ceil_div(args.rows, height)),
                    dim3(static_cast<unsigned>(lanes), static_cast<unsigned>(height)), 0, args);
}

template <class T, class X, class S>
void run(CudaQueue& queue, const NormForwardArgs& view) {
  const Forward<T, X, S> args = forward_of<T, X, S>(view);
  const std::int64_t packs = args.columns / kPack<T>;
  if (args.rows == 0) return;
  const bool in_packs = args.columns % kPack<T> == 0 && packs > 0 &&
                        aligned(args.x, args.residual, args.weight, args.bias, args.sum, args.y);
  if (!in_packs || packs > 4 * kMostLanes) {
    return launch_overlapped(queue, "norm forward", forward_any_kernel<T, X, S>,
                             static_cast<unsigned>(args.rows), kThreads, 0, args);
  }
  // One warp per row while its registers can hold the row, then more warps.
  if (packs <= kWarp) return launch<1>(queue, args);
  const bool in_four = packs <= 4 * kWarp || packs > 2 * kMostLanes;
  return in_four ? launch<4>(queue, args) : launch<2>(queue, args);
}

}  // namespace

void norm_forward(const Stream& stream, const NormForwardArgs& args) {
  visit_value(args.weight.dtype, [&](auto type) {
    using T = decltype(type);
    CudaQueue& queue = queue_of(stream);
    if constexpr (sizeof(T) == 2) {
      if (args.x.dtype == Dtype::kF32) return run<T, float, float>(queue, args);
      const bool wide_sum = !args.sum.empty() && args.sum.dtype == Dtype::kF32;
      if (wide_sum) return run<T, T, float>(queue, args);
    }
    run<T, T, T>(queue, args);
  });
}

}  // namespace cuda

NormKernels cuda_table(Family<NormKernels>) {
  return {.forward = cuda::norm_forward,
          .backward = cuda::norm_backward,
          .head_forward = cuda::head_norm_forward,
          .head_backward = cuda::head_norm_backward,
          .width_sums = cuda::width_norm_sums,
          .width_forward = cuda::width_norm_forward,
          .width_backward = cuda::width_norm_backward};
}

}  // namespace bev
