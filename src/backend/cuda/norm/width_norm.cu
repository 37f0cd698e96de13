// RMSNorm of all q and of all k columns of a row in fused q | k | v rows: sums, forward, backward.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/elementwise/column_sums.h"
#include "backend/cuda/norm/norm_launchers.h"

namespace bev::cuda {

namespace {

template <class T>
struct WidthRows {
  const T *x, *q_weight, *k_weight;
  std::int64_t rows, row_size, q_columns, normed;
  float q_width, k_width, epsilon, offset;

  // 0 for a q column, 1 for one of k.
  __device__ int part(std::int64_t column) const { return column < q_columns ? 0 : 1; }
  __device__ float weight(std::int64_t column) const {
    return offset +
           (column < q_columns ? widen(q_weight[column]) : widen(k_weight[column - q_columns]));
  }
  __device__ float rstd(const float* squares, std::int64_t row, int part) const {
    return 1.0f / sqrtf(squares[2 * row + part] / (part == 0 ? q_width : k_width) + epsilon);
  }
};

// Sums of a row by one block, in a fixed order. Memory bound: reads x, and dy if given.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sums_kernel(WidthRows<T> args, const T* dy, float* sums) {
  __shared__ float shared[2][kThreads / kWarp];
  const std::int64_t row = blockIdx.x;
  const T* x = args.x + row * args.row_size;
  float sum[2] = {0, 0};
  for (std::int64_t c = threadIdx.x; c < args.normed; c += kThreads) {
    const float value = widen(x[c]);
    sum[args.part(c)] +=
        dy == nullptr ? value * value : widen(dy[row * args.row_size + c]) * args.weight(c) * value;
  }
  for (int part = 0; part < 2; ++part) {
    const float total = reduce_warp<Sum>(sum[part]);
    if (threadIdx.x % kWarp == 0) shared[part][threadIdx.x / kWarp] = total;
  }
  __syncthreads();
  if (threadIdx.x >= 2) return;
  float total = 0;
  for (int warp = 0; warp < kThreads / kWarp; ++warp) total += shared[threadIdx.x][warp];
  sums[2 * row + threadIdx.x] = total;
}

// Memory bound: reads x, writes y.
template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(WidthRows<T> args, const float* squares, T* y) {
  const std::int64_t row = blockIdx.x;
  const float rstd[2] = {args.rstd(squares, row, 0), args.rstd(squares, row, 1)};
  const T* from = args.x + row * args.row_size;
  T* to = y + row * args.row_size;
  for (std::int64_t c = threadIdx.x; c < args.row_size; c += kThreads) {
    to[c] =
        c < args.normed ? narrow<T>(widen(from[c]) * rstd[args.part(c)] * args.weight(c)) : from[c];
  }
}

// Memory bound: reads dy and x, writes dx, which may alias dy.
template <class T>
__global__ void __launch_bounds__(kThreads)
    input_kernel(WidthRows<T> args, const T* dy, const float* squares, const float* products,
                 T* dx) {
  const std::int64_t row = blockIdx.x;
  float rstd[2], along[2];
  for (int part = 0; part < 2; ++part) {
    rstd[part] = args.rstd(squares, row, part);
    along[part] = rstd[part] * rstd[part] * products[2 * row + part] /
                  (part == 0 ? args.q_width : args.k_width);
  }
  for (std::int64_t c = threadIdx.x; c < args.row_size; c += kThreads) {
    const std::int64_t at = row * args.row_size + c;
    if (c >= args.normed) {
      dx[at] = dy[at];
      continue;
    }
    const int part = args.part(c);
    const float scaled = widen(dy[at]) * args.weight(c);
    dx[at] = narrow<T>(rstd[part] * (scaled - widen(args.x[at]) * along[part]));
  }
}

// Weight gradients: one thread per column of a slab of rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    weight_kernel(WidthRows<T> args, const T* dy, const float* squares, std::int64_t slab_rows,
                  float* q_partials, float* k_partials) {
  const std::int64_t column = own_pack(), begin = blockIdx.y * slab_rows;
  if (column >= args.normed) return;
  const int part = args.part(column);
  float sum = 0;
  for (std::int64_t row = begin; row < min(args.rows, begin + slab_rows); ++row) {
    const std::int64_t at = row * args.row_size + column;
    sum += widen(dy[at]) * (widen(args.x[at]) * args.rstd(squares, row, part));
  }
  const std::int64_t slab = blockIdx.y, k_columns = args.normed - args.q_columns;
  if (part == 0) {
    q_partials[slab * args.q_columns + column] = sum;
  } else {
    k_partials[slab * k_columns + column - args.q_columns] = sum;
  }
}

template <class T, class Args>
WidthRows<T> rows_of(const Args& args) {
  const WidthNormShape& shape = args.shape;
  return {.x = address<T>(args.x),
          .q_weight = address<T>(args.q_weight),
          .k_weight = address<T>(args.k_weight),
          .rows = args.x.shape[0],
          .row_size = args.x.shape.row_numel(),
          .q_columns = shape.q_columns,
          .normed = shape.q_columns + shape.k_columns,
          .q_width = static_cast<float>(shape.q_width),
          .k_width = static_cast<float>(shape.k_width),
          .epsilon = static_cast<float>(shape.epsilon),
          .offset = static_cast<float>(shape.offset)};
}

template <class T>
void run_backward(CudaQueue& queue, const WidthNormBackwardArgs& view) {
  const WidthRows<T> args = rows_of<T>(view);
  const T* dy = address<T>(view.dy);
  const float *squares = address<float>(view.squares), *products = address<float>(view.products);
  const std::int64_t slab_rows = std::max<std::int64_t>(16, ceil_div(args.rows, 256));
  const std::int64_t slabs = ceil_div(args.rows, slab_rows);
  const bool wanted = !view.dq_weight.empty() || !view.dk_weight.empty();
  float *q_partials = nullptr, *k_partials = nullptr;
  if (wanted) {  // first: dx may alias dy
    q_partials = static_cast<float*>(
        queue.scratch(static_cast<std::size_t>(slabs * args.normed) * sizeof(float)));
    k_partials = q_partials + slabs * args.q_columns;
  }
  if (args.rows > 0) {
    if (wanted) {
      const dim3 blocks(static_cast<unsigned>(ceil_div(args.normed, kThreads)),
                        static_cast<unsigned>(slabs));
      weight_kernel<T><<<blocks, kThreads, 0, queue.stream()>>>(args, dy, squares, slab_rows,
                                                                q_partials, k_partials);
    }
    input_kernel<T><<<static_cast<unsigned>(args.rows), kThreads, 0, queue.stream()>>>(
        args, dy, squares, products, address<T>(view.dx));
    check_launch("width norm backward");
  }
  if (!wanted) return;
  add_partial_sums(queue, q_partials, slabs, args.q_columns, view.q_beta, view.dq_weight);
  add_partial_sums(queue, k_partials, slabs, args.normed - args.q_columns, view.k_beta,
                   view.dk_weight);
}

}  // namespace

void width_norm_sums(const Stream& stream, const WidthNormSumsArgs& view) {
  if (view.x.shape[0] == 0) return;
  visit_value(view.x.dtype, [&](auto type) {
    using T = decltype(type);
    sums_kernel<T>
        <<<static_cast<unsigned>(view.x.shape[0]), kThreads, 0, queue_of(stream).stream()>>>(
            rows_of<T>(view), address<T>(view.dy), address<float>(view.sums));
  });
  check_launch("width norm sums");
}

void width_norm_forward(const Stream& stream, const WidthNormForwardArgs& view) {
  if (view.x.shape[0] == 0) return;
  visit_value(view.x.dtype, [&](auto type) {
    using T = decltype(type);
    forward_kernel<T>
        <<<static_cast<unsigned>(view.x.shape[0]), kThreads, 0, queue_of(stream).stream()>>>(
            rows_of<T>(view), address<float>(view.squares), address<T>(view.y));
  });
  check_launch("width norm forward");
}

void width_norm_backward(const Stream& stream, const WidthNormBackwardArgs& view) {
  visit_value(view.x.dtype,
              [&](auto type) { run_backward<decltype(type)>(queue_of(stream), view); });
}

}  // namespace bev::cuda
