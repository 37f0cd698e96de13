// Gradient norm and clipping: sums of squares and counts of zeros over many tensors in a fixed
// order.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/tile_batch.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/optim/optim_launchers.h"

namespace bev::cuda {

namespace {

// Grid size of the first kernel on every GPU, so that the order of summation depends only on the
// tensors.
constexpr std::int64_t kMostBlocks = 1056;
constexpr int kLastThreads = 1024;
constexpr int kMostTensors = 128;
// Loads of a thread in flight together; a tile is that many accesses of a block.
constexpr int kAccesses = 4;

template <class T>
struct FlatTensor {
  const T* data;
  std::int64_t count;
};
template <class T>
using Tensors = TileBatch<FlatTensor<T>, kMostTensors>;

// Term of an element, in f64 so that squares neither overflow nor underflow.
struct Square {
  static constexpr const char* kName = "sum of squares";
  __device__ static double of(double value) { return value * value; }
};
struct Zero {
  static constexpr const char* kName = "count of zeros";
  __device__ static double of(double value) { return value == 0 ? 1 : 0; }
};

// Memory bound: reads every tensor once.
template <class Term, class T, int N>
__global__ void __launch_bounds__(kThreads)
    terms_kernel(const __grid_constant__ Tensors<T> tensors, double* partials) {
  __shared__ double shared[kThreads / kWarp];
  double sum = 0;
  tensors.each_tile([&](int index, std::int64_t tile) {
    const FlatTensor<T>& x = tensors.items[index];
    const std::int64_t begin = (tile * kAccesses * kThreads + threadIdx.x) * N;
    if (begin + ((kAccesses - 1) * kThreads + 1) * N <= x.count) {
      Pack<T, N> values[kAccesses];
#pragma unroll
      for (int k = 0; k < kAccesses; ++k) values[k].load(x.data + begin + k * kThreads * N);
#pragma unroll
      for (int k = 0; k < kAccesses; ++k) {
#pragma unroll
        for (int i = 0; i < N; ++i) sum += Term::of(values[k][i]);
      }
      return;
    }
    for (int k = 0; k < kAccesses; ++k) {
      const std::int64_t at = begin + k * kThreads * N;
      for (std::int64_t i = at; i < min(at + N, x.count); ++i) sum += Term::of(widen(x.data[i]));
    }
  });
  sum = reduce_row<Sum>(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kLastThreads)
    add_numbers_kernel(const double* numbers, std::int64_t count, double* total) {
  __shared__ double shared[kLastThreads / kWarp];
  double sum = 0;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < count; i += kLastThreads) sum += numbers[i];
  sum = reduce_row<Sum>(sum, shared);
  if (threadIdx.x == 0) *total += sum;
}

__global__ void clip_kernel(ClipArgs args) {
  StepState& state = *args.state;
  const double norm = sqrt(*args.square_sum) / state.loss_scale;
  const bool lost = args.lost_rows != nullptr && *args.lost_rows > 0;
  if (!isfinite(norm) || !isfinite(*args.loss) || lost) state.failed = 1;
  state.skip = state.failed;
  if (state.skip) return;
  ++state.update;
  const double factor = args.max_norm > 0 ? fmin(1.0, args.max_norm / (norm + 1e-6)) : 1.0;
  state.grad_multiplier = factor / state.loss_scale;
}

template <class Term, class T, int N>
void add_terms(CudaQueue& queue, const Tensors<T>& tensors, double* sum) {
  if (tensors.count == 0) return;
  const std::int64_t blocks = std::min(tensors.tiles(), kMostBlocks);
  auto* partials =
      static_cast<double*>(queue.scratch(static_cast<std::size_t>(blocks) * sizeof(double)));
  terms_kernel<Term, T, N>
      <<<static_cast<unsigned>(blocks), kThreads, 0, queue.stream()>>>(tensors, partials);
  check_launch(Term::kName);
  add_numbers(queue, partials, blocks, sum);
}

// Only the tensors that are aligned for packs (N > 1), or only the others.
template <class Term, class T, int N>
void add_terms_of(CudaQueue& queue, std::span<const View> views, double* sum) {
  Tensors<T> batch;
  for (const View& x : views) {
    const T* data = address<T>(x);
    if (x.numel() == 0 || aligned(data) != (N > 1)) continue;
    if (batch.full()) {
      add_terms<Term, T, N>(queue, batch, sum);
      batch.count = 0;
    }
    batch.add({data, x.numel()}, ceil_div(x.numel(), std::int64_t{kAccesses} * kThreads * N));
  }
  add_terms<Term, T, N>(queue, batch, sum);
}

template <class Term>
void add_all(const Stream& stream, std::span<const View> tensors, double* sum) {
  if (tensors.empty()) return;
  visit_value(tensors.front().dtype, [&](auto type) {
    using T = decltype(type);
    add_terms_of<Term, T, kPack<T>>(queue_of(stream), tensors, sum);
    add_terms_of<Term, T, 1>(queue_of(stream), tensors, sum);
  });
}

}  // namespace

void add_numbers(CudaQueue& queue, const double* numbers, std::int64_t count, double* sum) {
  add_numbers_kernel<<<1, kLastThreads, 0, queue.stream()>>>(numbers, count, sum);
  check_launch("sum of numbers");
}

void sum_squares(const Stream& stream, std::span<const View> tensors, double* sum) {
  add_all<Square>(stream, tensors, sum);
}

void count_zeros(const Stream& stream, std::span<const View> tensors, double* count) {
  add_all<Zero>(stream, tensors, count);
}

void clip(const Stream& stream, const ClipArgs& args) {
  clip_kernel<<<1, 1, 0, queue_of(stream).stream()>>>(args);
  check_launch("clip");
}

}  // namespace bev::cuda
