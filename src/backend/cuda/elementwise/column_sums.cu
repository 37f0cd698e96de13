// Column sums in two steps: slabs of rows to partial sums, then their sum.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/elementwise/column_sums.h"
#include "backend/cuda/runtime/queue.h"

namespace bev::cuda {

namespace {

// A block is kColumnThreads wide and several rows of threads high: each thread sums every
// kHeight-th row, then the threads of a column are added in order. Partial sums have few columns,
// so their blocks are high to keep the GPU busy.
constexpr int kColumnThreads = 32, kSlabHeight = 8, kPartialHeight = 32;

struct Slab {
  std::int64_t begin, end;
};

// Sums rows of the slab for N columns of x starting at `first`; the result is valid on threads with
// threadIdx.y == 0.
template <class T, int N, int kHeight>
__device__ void sum_slab(const T* x, std::int64_t columns, std::int64_t first, Slab slab,
                         float (&sums)[N]) {
  __shared__ float shared[kHeight][kColumnThreads][N];
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i] = 0;
  if (first < columns) {
#pragma unroll 4
    for (std::int64_t row = slab.begin + threadIdx.y; row < slab.end; row += kHeight) {
      Pack<T, N> values;
      values.load(x + row * columns + first);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += values[i];
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) shared[threadIdx.y][threadIdx.x][i] = sums[i];
  __syncthreads();
  for (int y = 1; threadIdx.y == 0 && y < kHeight; ++y) {
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i] += shared[y][threadIdx.x][i];
  }
}

// Memory bound: reads x once; writes partials [gridDim.y, columns].
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    slab_kernel(const T* x, std::int64_t rows, std::int64_t columns, std::int64_t slab_rows,
                float* partials) {
  const std::int64_t first = own_pack() * N, begin = blockIdx.y * slab_rows;
  float sums[N];
  sum_slab<T, N, kSlabHeight>(x, columns, first, {begin, min(rows, begin + slab_rows)}, sums);
  if (threadIdx.y != 0 || first >= columns) return;
#pragma unroll
  for (int i = 0; i < N; ++i) partials[blockIdx.y * columns + first + i] = sums[i];
}

template <class Y>
__global__ void __launch_bounds__(kColumnThreads* kPartialHeight)
    partials_kernel(const float* partials, std::int64_t rows, std::int64_t columns, float beta,
                    Y* out) {
  const std::int64_t column = own_pack();
  float sums[1];
  sum_slab<float, 1, kPartialHeight>(partials, columns, column, {0, rows}, sums);
  if (threadIdx.y != 0 || column >= columns) return;
  const float sum = beta == 0 ? sums[0] : beta * widen(out[column]) + sums[0];
  out[column] = narrow<Y>(sum);
}

template <class T, int N>
void sum_columns(CudaQueue& queue, const View& x, double beta, const View& out) {
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  const std::int64_t tiles = ceil_div(columns, kColumnThreads * N);
  constexpr std::int64_t kFewestRows = 64, kBlocks = 4 * kMostPartialBlocks;
  const std::int64_t wanted = std::min(ceil_div(kBlocks, tiles), ceil_div(rows, kFewestRows));
  const std::int64_t slab_rows = ceil_div(rows, std::max<std::int64_t>(wanted, 1));
  const std::int64_t slabs = rows == 0 ? 0 : ceil_div(rows, slab_rows);
  auto* partials =
      static_cast<float*>(queue.scratch(static_cast<std::size_t>(slabs * columns) * sizeof(float)));
  if (slabs > 0) {
    const dim3 blocks(static_cast<unsigned>(tiles), static_cast<unsigned>(slabs));
    slab_kernel<T, N><<<blocks, dim3(kColumnThreads, kSlabHeight), 0, queue.stream()>>>(
        address<T>(x), rows, columns, slab_rows, partials);
    check_launch("column_sum");
  }
  add_partial_sums(queue, partials, slabs, columns, beta, out);
}

}  // namespace

void add_partial_sums(CudaQueue& queue, const float* partials, std::int64_t rows,
                      std::int64_t columns, double beta, const View& out) {
  if (out.empty() || columns == 0) return;
  visit_value(out.dtype, [&](auto type) {
    using Y = decltype(type);
    const auto blocks = static_cast<unsigned>(ceil_div(columns, kColumnThreads));
    partials_kernel<<<blocks, dim3(kColumnThreads, kPartialHeight), 0, queue.stream()>>>(
        partials, rows, columns, static_cast<float>(beta), address<Y>(out));
    check_launch("partial sums");
  });
}

void column_sum(const Stream& stream, const View& x, double beta, const View& out) {
  BEV_CHECK(x.shape.ndim() == 2 && out.numel() == x.shape[1], "column_sum: ", x.shape, " to ",
            out.shape);
  visit_value(x.dtype, [&](auto type) {
    using T = decltype(type);
    if (aligned(address<T>(x)) && x.shape[1] % kPack<T> == 0) {
      sum_columns<T, kPack<T>>(queue_of(stream), x, beta, out);
    } else {
      sum_columns<T, 1>(queue_of(stream), x, beta, out);
    }
  });
}

}  // namespace bev::cuda
