// Norms of weight rows, and columns scaled by magnitude over norm, for DoRA; all memory bound.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/tables.h"
#include "kernels/low_rank.h"

namespace bev {

namespace cuda {
namespace {

// One block per row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    row_squares_kernel(const T* x, std::int64_t columns, T* sums) {
  __shared__ double shared[kThreads / kWarp];
  const T* row = x + blockIdx.x * columns;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < columns; i += kThreads) {
    const double value = static_cast<double>(widen(row[i]));
    sum += value * value;
  }
  sum = reduce_row<Sum>(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = narrow<T>(static_cast<float>(sum));
}

void row_squares(const Stream& stream, const View& x, const View& sums) {
  BEV_CHECK(x.shape.ndim() == 2 && sums.numel() == x.shape[0] && sums.dtype == x.dtype,
            "row_squares: ", x.shape, " to ", sums.shape);
  if (sums.numel() == 0) return;
  visit_value(x.dtype, [&](auto type) {
    using T = decltype(type);
    row_squares_kernel<T>
        <<<static_cast<unsigned>(x.shape[0]), kThreads, 0, queue_of(stream).stream()>>>(
            address<T>(x), x.shape[1], address<T>(sums));
    check_launch("row_squares");
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_columns_kernel(const T* x, T* y, std::int64_t rows, std::int64_t width,
                         std::int64_t columns, const T* magnitude, const float* squares) {
  const std::int64_t column = own_pack();
  if (column >= columns) return;
  const float factor = widen(magnitude[column]) / sqrtf(squares[column]);
  for (std::int64_t r = first_row(); r < rows; r += row_step()) {
    y[r * width + column] = narrow<T>(widen(x[r * width + column]) * factor);
  }
}

void scale_columns(const Stream& stream, const ScaleColumnsArgs& args) {
  const std::int64_t width = args.x.shape[1], columns = args.magnitude.numel();
  BEV_CHECK(args.y.shape == args.x.shape && args.squares.numel() == columns &&
                args.first + columns <= width,
            "scale_columns: ", columns, " from ", args.first, " of ", args.x.shape);
  if (args.x.numel() == 0 || columns == 0) return;
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const RowGrid grid = row_grid(args.x.shape[0], columns);
    scale_columns_kernel<T><<<grid.blocks, grid.threads, 0, queue_of(stream).stream()>>>(
        address<T>(args.x) + args.first, address<T>(args.y) + args.first, args.x.shape[0], width,
        columns, address<T>(args.magnitude), address<float>(args.squares));
    check_launch("scale_columns");
  });
}

constexpr int kDotColumns = kWarp, kDotRows = kThreads / kWarp;

// A block sums kDotColumns columns; its rows of threads take turns and are added in order.
template <class X, class Y>
__global__ void __launch_bounds__(kThreads)
    column_dots_kernel(const X* a, const X* b, std::int64_t rows, std::int64_t width,
                       std::int64_t columns, const float* squares, float beta, Y* out) {
  __shared__ float sums[kDotRows][kDotColumns];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kDotColumns + threadIdx.x;
  float sum = 0;
  for (std::int64_t r = threadIdx.y; r < rows && column < columns; r += kDotRows) {
    sum += widen(a[r * width + column]) * widen(b[r * width + column]);
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int y = 1; y < kDotRows; ++y) sum += sums[y][threadIdx.x];
  sum /= sqrtf(squares[column]);
  if (beta != 0) sum += beta * widen(out[column]);
  out[column] = narrow<Y>(sum);
}

void column_dots(const Stream& stream, const ColumnDotsArgs& args) {
  BEV_CHECK(args.a.shape == args.b.shape && args.squares.numel() == args.out.numel() &&
                args.first + args.out.numel() <= args.a.shape[1],
            "column_dots: ", args.out.shape, " from ", args.first, " of ", args.a.shape);
  const std::int64_t columns = args.out.numel();
  if (columns == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(columns, kDotColumns));
  visit_value(args.a.dtype, [&](auto from) {
    using X = decltype(from);
    visit_value(args.out.dtype, [&](auto to) {
      using Y = decltype(to);
      column_dots_kernel<X, Y>
          <<<blocks, dim3(kDotColumns, kDotRows), 0, queue_of(stream).stream()>>>(
              address<X>(args.a) + args.first, address<X>(args.b) + args.first, args.a.shape[0],
              args.a.shape[1], columns, address<float>(args.squares), static_cast<float>(args.beta),
              address<Y>(args.out));
      check_launch("column_dots");
    });
  });
}

}  // namespace
}  // namespace cuda

LowRankKernels cuda_table(Family<LowRankKernels>) {
  return {.row_squares = cuda::row_squares,
          .scale_columns = cuda::scale_columns,
          .column_dots = cuda::column_dots};
}

}  // namespace bev
