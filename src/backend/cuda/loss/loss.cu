// Cross entropy over vocabulary-parallel logits in three passes, and the total loss.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/loss/loss_chunk.cuh"
#include "backend/cuda/tables.h"

namespace bev {

namespace cuda {
namespace {

// Threads of the block that handles a row.
constexpr int kRowThreads = 512;

// Memory bound: reads logits once, and writes them if they are scaled or capped.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads) row_max_kernel(Chunk<T> chunk, float* row_max) {
  __shared__ float shared[kRowThreads / kWarp];
  T* z = chunk.row(blockIdx.x);
  float most = Max::kNothing;
  if (chunk.cap == 0 && chunk.scale == 1) {
#pragma unroll 4
    for (std::int64_t at = threadIdx.x * N; at < chunk.columns; at += kRowThreads * N) {
      Pack<T, N> values;
      values.load(z + at);
#pragma unroll
      for (int i = 0; i < N; ++i) most = Max::join(most, values[i]);
    }
  } else {
    for (std::int64_t at = threadIdx.x * N; at < chunk.columns; at += kRowThreads * N) {
      Pack<T, N> values;
      values.load(z + at);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        values.set(i, chunk.capped(values[i]));
        most = Max::join(most, values[i]);
      }
      values.store(z + at);
    }
  }
  most = reduce_row<Max>(most, shared);
  if (threadIdx.x == 0) row_max[blockIdx.x] = most;
}

// Memory bound: reads logits once.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    row_sum_kernel(Chunk<T> chunk, const float* row_max, float* stats) {
  __shared__ float shared[kRowThreads / kWarp];
  const T* z = chunk.row(blockIdx.x);
  const float most = row_max[blockIdx.x];
  float sum = 0;
#pragma unroll 4
  for (std::int64_t at = threadIdx.x * N; at < chunk.columns; at += kRowThreads * N) {
    Pack<T, N> values;
    values.load(z + at);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += __expf(values[i] - most);
  }
  sum = reduce_row<Sum>(sum, shared);
  if (threadIdx.x != 0) return;
  const std::int64_t target = chunk.column_of(chunk.targets[blockIdx.x]);
  stats[blockIdx.x] = sum;
  stats[gridDim.x + blockIdx.x] = target >= 0 ? widen(z[target]) : 0.0f;
}

__global__ void __launch_bounds__(kThreads)
    token_loss_kernel(const std::int32_t* targets, const float* row_max, const float* stats,
                      std::int64_t rows, float* token_loss) {
  const std::int64_t row = own_pack();
  if (row >= rows) return;
  token_loss[row] = targets[row] < 0 ? 0.0f : logf(stats[row]) + row_max[row] - stats[rows + row];
}

// Memory bound: reads and writes logits, which hold z here, once.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    gradient_kernel(Chunk<T> chunk, const float* row_max, const float* stats, const float* weights,
                    const double* loss_factor) {
  T* row = chunk.row(blockIdx.x);
  const RowLoss loss{chunk.targets[blockIdx.x], row_max[blockIdx.x] * kBinary, stats[blockIdx.x],
                     weights[blockIdx.x]};
  const LogitGradient<T> gradient(chunk, loss, value_of(loss_factor));
  for (std::int64_t at = threadIdx.x * N; at < chunk.columns; at += kRowThreads * N) {
    Pack<T, N> values{};
    if (!gradient.is_zero) {
      values.load(row + at);
      gradient.apply(at, values, [](float z) { return z * kBinary; });
    }
    values.store(row + at);
  }
}

// Single block: few elements, in a fixed order.
__global__ void __launch_bounds__(kRowThreads)
    total_kernel(const float* token_loss, const float* weights, std::int64_t rows, double* total) {
  __shared__ double shared[kRowThreads / kWarp];
  double sum = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kRowThreads) {
    sum += static_cast<double>(weights[row]) * static_cast<double>(token_loss[row]);
  }
  sum = reduce_row<Sum>(sum, shared);
  if (threadIdx.x == 0) *total += sum;
}

void row_max(const Stream& stream, const LossMaxArgs& args) {
  check_chunk(args.chunk, args.row_max);
  mark_padding(stream, args.chunk);
  visit_chunk(args.chunk, [&](auto chunk, auto count, unsigned blocks) {
    row_max_kernel<std::remove_pointer_t<decltype(chunk.logits)>, decltype(count)::value>
        <<<blocks, kRowThreads, 0, queue_of(stream).stream()>>>(chunk,
                                                                address<float>(args.row_max));
    check_launch("loss: maximum");
  });
}

void row_sum(const Stream& stream, const LossSumArgs& args) {
  check_chunk(args.chunk, args.row_max);
  BEV_CHECK(args.stats.numel() == 2 * args.row_max.numel(), "loss: stats ", args.stats.shape);
  visit_chunk(args.chunk, [&](auto chunk, auto count, unsigned blocks) {
    row_sum_kernel<std::remove_pointer_t<decltype(chunk.logits)>, decltype(count)::value>
        <<<blocks, kRowThreads, 0, queue_of(stream).stream()>>>(chunk, address<float>(args.row_max),
                                                                address<float>(args.stats));
    check_launch("loss: sum");
  });
}

void gradient(const Stream& stream, const LossGradArgs& args) {
  check_chunk(args.chunk, args.row_max);
  BEV_CHECK(args.stats.numel() == 2 * args.row_max.numel(), "loss: stats ", args.stats.shape);
  const cudaStream_t queue = queue_of(stream).stream();
  const float *most = address<float>(args.row_max), *stats = address<float>(args.stats);
  const std::int64_t rows = args.row_max.numel();
  if (rows == 0) return;
  token_loss_kernel<<<static_cast<unsigned>(ceil_div(rows, kThreads)), kThreads, 0, queue>>>(
      args.chunk.targets, most, stats, rows, address<float>(args.token_loss));
  check_launch("token loss");
  if (!args.with_gradient) return;
  const float* weights = address<float>(args.weights);
  visit_chunk(args.chunk, [&](auto chunk, auto count, unsigned blocks) {
    gradient_kernel<std::remove_pointer_t<decltype(chunk.logits)>, decltype(count)::value>
        <<<blocks, kRowThreads, 0, queue>>>(chunk, most, stats, weights, args.loss_factor);
    check_launch("loss: gradient");
  });
}

void total(const Stream& stream, const LossTotalArgs& args) {
  total_kernel<<<1, kRowThreads, 0, queue_of(stream).stream()>>>(
      address<float>(args.token_loss), args.weights, args.token_loss.numel(), args.total);
  check_launch("loss: total");
}

// One thread per padding element.
template <class T>
__global__ void __launch_bounds__(kThreads) padding_kernel(Chunk<T> chunk, std::int64_t rows) {
  const std::int64_t padding = chunk.columns - chunk.own, at = own_pack();
  if (at >= rows * padding) return;
  Pack<T, 1> lowest;
  lowest.set(0, -__builtin_inff());
  lowest.store(chunk.row(at / padding) + chunk.own + at % padding);
}

}  // namespace

void mark_padding(const Stream& stream, const LossChunk& view) {
  if (view.columns() == view.logits.shape[1]) return;
  visit_chunk(view, [&](auto chunk, auto, unsigned rows) {
    const std::int64_t elements = rows * (chunk.columns - chunk.own);
    padding_kernel<<<static_cast<unsigned>(ceil_div(elements, kThreads)), kThreads, 0,
                     queue_of(stream).stream()>>>(chunk, rows);
    check_launch("loss: padding");
  });
}

}  // namespace cuda

LossKernels cuda_table(Family<LossKernels>) {
  return {.row_max = cuda::row_max,
          .row_sum = cuda::row_sum,
          .gradient = cuda::gradient,
          .whole = cuda::whole_loss,
          .total = cuda::total,
          .logits = {.chunk_bytes = std::int64_t{2} << 30, .narrow = true, .row_multiple = 64}};
}

}  // namespace bev
