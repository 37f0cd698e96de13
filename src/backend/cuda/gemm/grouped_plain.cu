// Grouped GEMM on CUDA cores with f32 accumulation: for f32 models, and shapes whose rows are not
// 16-byte aligned.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/gemm/grouped_tiles.cuh"
#include "backend/cuda/moe/moe_launchers.h"

namespace bev::cuda {

namespace {

constexpr int kTile = 64, kDepth = 16, kSide = 16, kEach = kTile / kSide;

// Accumulates a tile of c: a(row, k) and b(k, column) return zero out of range. A thread has a
// kEach x kEach register tile.
template <class A, class B>
__device__ void tile_sums(const A& a, const B& b, int depth, float (&sums)[kEach][kEach]) {
  __shared__ float left[kDepth][kTile + 1], right[kDepth][kTile + 1];
  const int thread = static_cast<int>(threadIdx.x), tx = thread % kSide, ty = thread / kSide;
  for (int first = 0; first < depth; first += kDepth) {
    for (int i = thread; i < kDepth * kTile; i += kSide * kSide) {
      left[i / kTile][i % kTile] = first + i / kTile < depth ? a(i % kTile, first + i / kTile) : 0;
      right[i / kTile][i % kTile] = first + i / kTile < depth ? b(first + i / kTile, i % kTile) : 0;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          sums[i][j] += left[k][ty + i * kSide] * right[k][tx + j * kSide];
        }
      }
    }
    __syncthreads();
  }
}

// Calls body(row, column, sum) for the elements of the thread.
template <class Body>
__device__ void for_sums(const float (&sums)[kEach][kEach], const Body& body) {
  const int tx = static_cast<int>(threadIdx.x) % kSide, ty = static_cast<int>(threadIdx.x) / kSide;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) body(ty + i * kSide, tx + j * kSide, sums[i][j]);
  }
}

// out = in w^T, or in w if kTransposed is false.
template <class T, bool kTransposed>
__global__ void __launch_bounds__(kSide* kSide) grouped_kernel(RowGemm<T> args) {
  const RowTile tile =
      find_tile<kTile>(args.offsets, args.experts, args.rows, static_cast<int>(blockIdx.x));
  if (tile.expert < 0) return;
  const bool nobody = tile.expert == args.experts;
  const int first = static_cast<int>(blockIdx.y) * kTile;
  const T* w = args.w + static_cast<std::int64_t>(tile.expert) * args.depth * args.columns;
  float sums[kEach][kEach] = {};
  if (!nobody) {
    tile_sums(
        [&](int row, int k) {
          const std::int64_t r = tile.begin + row;
          return r < tile.end ? widen(args.in[r * args.depth + k]) : 0.0f;
        },
        [&](int k, int column) {
          const std::int64_t n = first + column;
          if (n >= args.columns) return 0.0f;
          return widen(kTransposed ? w[n * args.depth + k]
                                   : w[static_cast<std::int64_t>(k) * args.columns + n]);
        },
        args.depth, sums);
  }
  for_sums(sums, [&](int row, int column, float sum) {
    const std::int64_t r = tile.begin + row, n = first + column;
    if (r >= tile.end || n >= args.columns) return;
    if (args.bias != nullptr && !nobody) {
      sum += widen(args.bias[static_cast<std::int64_t>(tile.expert) * args.columns + n]);
    }
    args.out[r * args.columns + n] = narrow<T>(sum);
  });
}

template <class T, bool kTransposed>
void launch_grouped(const Stream& stream, const RowGemm<T>& args) {
  if (args.rows == 0 || args.columns == 0) return;
  const dim3 blocks(static_cast<unsigned>(most_tiles(args.rows, args.experts, kTile)),
                    static_cast<unsigned>(ceil_div(args.columns, kTile)));
  grouped_kernel<T, kTransposed><<<blocks, kSide * kSide, 0, queue_of(stream).stream()>>>(args);
  check_launch("grouped product");
}

template <class T, class G>
__global__ void __launch_bounds__(kSide* kSide) grouped_wgrad_kernel(WgradGemm<T, G> args) {
  const int expert = static_cast<int>(blockIdx.z);
  const std::int64_t begin = args.offsets[expert];
  const int count = args.offsets[expert + 1] - static_cast<int>(begin);
  const int first_row = static_cast<int>(blockIdx.y) * kTile,
            first_column = static_cast<int>(blockIdx.x) * kTile;
  float sums[kEach][kEach] = {};
  tile_sums(
      [&](int row, int k) {
        const int m = first_row + row;
        return m < args.rows_of_w ? widen(args.y[(begin + k) * args.rows_of_w + m]) : 0.0f;
      },
      [&](int k, int column) {
        const int n = first_column + column;
        return n < args.columns ? widen(args.x[(begin + k) * args.columns + n]) : 0.0f;
      },
      count, sums);
  G* w = args.w + static_cast<std::int64_t>(expert) * args.rows_of_w * args.columns;
  for_sums(sums, [&](int row, int column, float sum) {
    const std::int64_t m = first_row + row, n = first_column + column;
    if (m >= args.rows_of_w || n >= args.columns) return;
    G& to = w[m * args.columns + n];
    if (args.beta != 0) sum += args.beta * widen(to);
    to = narrow<G>(sum);
  });
}

template <class T, class G>
void launch_weight(const Stream& stream, const GroupedGemmArgs& args) {
  const WgradGemm<T, G> work = wgrad_gemm<T, G>(args);
  if (args.w.numel() == 0) return;
  const dim3 blocks(static_cast<unsigned>(ceil_div(work.columns, kTile)),
                    static_cast<unsigned>(ceil_div(work.rows_of_w, kTile)),
                    static_cast<unsigned>(args.w.shape[0]));
  grouped_wgrad_kernel<T, G><<<blocks, kSide * kSide, 0, queue_of(stream).stream()>>>(work);
  check_launch("grouped weight gradient");
}

template <class T, class G>
struct GroupedBias {
  const T* y;
  G* bias;
  const std::int32_t* offsets;
  int columns;
  float beta;
};

template <class T, class G>
__global__ void __launch_bounds__(kThreads) grouped_bias_kernel(GroupedBias<T, G> args) {
  const int column = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int expert = static_cast<int>(blockIdx.y);
  if (column >= args.columns) return;
  float sum = 0;
  for (std::int64_t r = args.offsets[expert]; r < args.offsets[expert + 1]; ++r) {
    sum += widen(args.y[r * args.columns + column]);
  }
  G& to = args.bias[static_cast<std::int64_t>(expert) * args.columns + column];
  if (args.beta != 0) sum += args.beta * widen(to);
  to = narrow<G>(sum);
}

// Calls f(G{}) with the gradient type: that of the operands, or f32.
template <class T, class F>
void visit_gradient(const View& gradient, const F& f) {
  if (gradient.dtype == Dtype::kF32) return f(float{});
  f(T{});
}

}  // namespace

void grouped_plain(const Stream& stream, const GroupedGemmArgs& args, GroupedGemm gemm) {
  visit_value(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    switch (gemm) {
      case GroupedGemm::kForward:
        return launch_grouped<T, true>(stream, row_gemm<T>(args, false));
      case GroupedGemm::kDgrad:
        return launch_grouped<T, false>(stream, row_gemm<T>(args, true));
      case GroupedGemm::kWgrad:
        return visit_gradient<T>(
            args.w, [&](auto gradient) { launch_weight<T, decltype(gradient)>(stream, args); });
    }
  });
}

void grouped_bias(const Stream& stream, const GroupedGemmArgs& args) {
  const std::int64_t experts = args.bias.shape[0], columns = args.bias.shape[1];
  if (args.bias.numel() == 0) return;
  visit_value(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    visit_gradient<T>(args.bias, [&](auto gradient) {
      using G = decltype(gradient);
      const dim3 blocks(static_cast<unsigned>(ceil_div(columns, kThreads)),
                        static_cast<unsigned>(experts));
      grouped_bias_kernel<T, G><<<blocks, kThreads, 0, queue_of(stream).stream()>>>(
          {address<T>(args.y), address<G>(args.bias), args.offsets, static_cast<int>(columns),
           static_cast<float>(args.beta)});
      check_launch("grouped bias gradient");
    });
  });
}

}  // namespace bev::cuda
