#include "backend/cuda/grid.cuh"
#include "backend/cuda/optim_parts.h"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/values.cuh"

namespace bev::cuda {

namespace {

// Blocks of the first kernel, whatever the card: the order of summation depends on the length only.
constexpr std::int64_t kMostBlocks = 1056;
constexpr int kLastThreads = 1024;

// x read once; f64 so that no square overflows and no small one is lost.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    squares_kernel(const T* x, std::int64_t count, double* partials) {
  __shared__ double shared[kThreads / kWarp];
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  double sum = 0;
#pragma unroll 4
  for (std::int64_t pack = own_pack(); pack < count / N; pack += step) {
    Pack<T, N> values;
    values.load(x + pack * N);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const double value = values[i];
      sum += value * value;
    }
  }
  const std::int64_t rest = count / N * N + own_pack();
  if (N > 1 && rest < count) sum += static_cast<double>(widen(x[rest])) * widen(x[rest]);
  sum = reduce_row<Sum>(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kLastThreads)
    add_partials_kernel(const double* partials, int count, double* total) {
  __shared__ double shared[kLastThreads / kWarp];
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += kLastThreads) sum += partials[i];
  sum = reduce_row<Sum>(sum, shared);
  if (threadIdx.x == 0) *total += sum;
}

__global__ void clip_kernel(ClipArgs args) {
  StepState& state = *args.state;
  const double norm = sqrt(*args.square_sum) / state.loss_scale;
  if (!isfinite(norm) || !isfinite(*args.loss)) state.failed = 1;
  state.skip = state.failed;
  if (state.skip) return;
  ++state.update;
  const double factor = args.max_norm > 0 ? fmin(1.0, args.max_norm / (norm + 1e-6)) : 1.0;
  state.grad_multiplier = factor / state.loss_scale;
}

}  // namespace

void sum_squares(const Stream& stream, const View& x, double* sum) {
  CudaQueue& queue = queue_of(stream);
  if (x.numel() == 0) return;
  visit_value(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* data = address<T>(x);
    constexpr int kCount = kPack<T>;
    const std::int64_t blocks = std::min(ceil_div(x.numel(), 4 * kThreads * kCount), kMostBlocks);
    auto* partials =
        static_cast<double*>(queue.scratch(static_cast<std::size_t>(blocks) * sizeof(double)));
    const auto kernel = aligned(data) ? squares_kernel<T, kCount> : squares_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(blocks), kThreads, 0, queue.stream()>>>(data, x.numel(),
                                                                           partials);
    check_launch("sum of squares");
    add_partials_kernel<<<1, kLastThreads, 0, queue.stream()>>>(partials, static_cast<int>(blocks),
                                                                sum);
    check_launch("sum of squares");
  });
}

void clip(const Stream& stream, const ClipArgs& args) {
  clip_kernel<<<1, 1, 0, queue_of(stream).stream()>>>(args);
  check_launch("clip");
}

}  // namespace bev::cuda
