// GEMM on CUDA cores with f32 accumulation, for f32 and for rows that are not 16-byte aligned: a
// sum takes K in ascending order, whatever the sizes are.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/gemm/linear_gemm.h"
#include "base/divide.h"
#include "kernels/gemm.h"

namespace bev::cuda {

namespace {

constexpr int kTile = 64, kDepth = 16, kSide = 16, kEach = kTile / kSide;
constexpr int kBlockThreads = kSide * kSide, kLoads = kTile * kDepth / kBlockThreads;

template <class T, class C>
struct Plain {
  const T *a, *b, *bias;
  C* c;
  int rows, columns, depth;
  std::int64_t a_stride, c_stride;
  float alpha, beta;
};

// A slice of K of both operands, loaded to registers and later stored to shared memory.
template <class T, class C, bool kTransposeB>
struct Slice {
  float a[kLoads], b[kLoads];

  // Threads run along the contiguous dim of each operand.
  __device__ static int outer_of(int i) { return i / kDepth; }
  __device__ static int inner_of(int i) { return i % kDepth; }
  __device__ static int b_outer(int i) { return kTransposeB ? i / kDepth : i % kTile; }
  __device__ static int b_inner(int i) { return kTransposeB ? i % kDepth : i / kTile; }
  __device__ static int place(int load) {
    return load * kBlockThreads + static_cast<int>(threadIdx.x);
  }

  __device__ void load(const Plain<T, C>& args, int row0, int column0, int first) {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int i = place(l), row = row0 + outer_of(i), k = first + inner_of(i);
      a[l] = row < args.rows && k < args.depth ? widen(args.a[row * args.a_stride + k]) : 0.0f;
      const int column = column0 + b_outer(i), kb = first + b_inner(i);
      const std::int64_t at = kTransposeB ? static_cast<std::int64_t>(column) * args.depth + kb
                                          : static_cast<std::int64_t>(kb) * args.columns + column;
      b[l] = column < args.columns && kb < args.depth ? widen(args.b[at]) : 0.0f;
    }
  }
  __device__ void store(float (&left)[kDepth][kTile + 1], float (&right)[kDepth][kTile + 1]) const {
#pragma unroll
    for (int l = 0; l < kLoads; ++l) {
      const int i = place(l);
      left[inner_of(i)][outer_of(i)] = a[l];
      right[b_inner(i)][b_outer(i)] = b[l];
    }
  }
};

// Grid: row tiles, column tiles.
template <class T, class C, bool kTransposeB>
__global__ void __launch_bounds__(kBlockThreads) plain_kernel(const Plain<T, C> args) {
  __shared__ float left[2][kDepth][kTile + 1], right[2][kDepth][kTile + 1];
  const int tx = static_cast<int>(threadIdx.x) % kSide, ty = static_cast<int>(threadIdx.x) / kSide;
  const int row0 = static_cast<int>(blockIdx.x) * kTile,
            column0 = static_cast<int>(blockIdx.y) * kTile;
  float sums[kEach][kEach] = {};
  Slice<T, C, kTransposeB> slice;
  slice.load(args, row0, column0, 0);
  slice.store(left[0], right[0]);
  __syncthreads();
  for (int first = 0, buffer = 0; first < args.depth; first += kDepth, buffer ^= 1) {
    const bool more = first + kDepth < args.depth;
    if (more) slice.load(args, row0, column0, first + kDepth);
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          sums[i][j] =
              fmaf(left[buffer][k][ty + i * kSide], right[buffer][k][tx + j * kSide], sums[i][j]);
        }
      }
    }
    if (more) slice.store(left[buffer ^ 1], right[buffer ^ 1]);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int row = row0 + ty + i * kSide, column = column0 + tx + j * kSide;
      if (row >= args.rows || column >= args.columns) continue;
      C& to = args.c[row * args.c_stride + column];
      float sum = args.alpha * sums[i][j];
      if (args.bias != nullptr) sum += widen(args.bias[column]);
      if (args.beta != 0) sum += args.beta * widen(to);
      to = narrow<C>(sum);
    }
  }
}

template <class T, class C>
void run(const Stream& stream, const GemmArgs& args) {
  const std::int64_t columns = args.c_columns > 0 ? args.c_columns : args.c.shape[1];
  const Plain<T, C> work{address<T>(args.a),
                         address<T>(args.b),
                         address<T>(args.bias),
                         address<C>(args.c),
                         static_cast<int>(args.c.shape[0]),
                         static_cast<int>(columns),
                         static_cast<int>(args.a_columns > 0 ? args.a_columns : args.a.shape[1]),
                         args.a.shape[1],
                         args.c.shape[1],
                         static_cast<float>(args.alpha),
                         static_cast<float>(args.beta)};
  const dim3 blocks(static_cast<unsigned>(ceil_div(work.rows, kTile)),
                    static_cast<unsigned>(ceil_div(work.columns, kTile)));
  auto* kernel = args.transpose_b ? plain_kernel<T, C, true> : plain_kernel<T, C, false>;
  kernel<<<blocks, kBlockThreads, 0, queue_of(stream).stream()>>>(work);
  check_launch("plain product");
}

}  // namespace

void gemm_plain(const Stream& stream, const GemmArgs& args) {
  visit_value(args.a.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.c.dtype == Dtype::kF32) return run<T, float>(stream, args);
    run<T, T>(stream, args);
  });
}

}  // namespace bev::cuda
