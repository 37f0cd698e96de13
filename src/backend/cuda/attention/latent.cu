// Multi-head latent attention (MLA): joining and splitting of heads, and GEMMs per head.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/tables.h"
#include "kernels/latent.h"

namespace bev {

namespace cuda {
namespace {

// Sizes are in packs (vectorised accesses).
template <class T>
struct LatentHeads {
  T *q, *kv, *rope_key, *rows;
  std::int64_t tokens;
  int heads, nope, rope, v;

  __device__ __host__ int qk() const { return nope + rope; }
  __device__ __host__ int q_width() const { return heads * qk(); }
  __device__ __host__ int kv_width() const { return heads * (nope + v); }
  __device__ __host__ int width() const { return 2 * q_width() + heads * v; }
};

// Address in the parts of pack `column` of the token's row.
template <class T, int N>
__device__ T* part_of(const LatentHeads<T>& args, std::int64_t token, int column) {
  if (column < args.q_width()) return args.q + (token * args.q_width() + column) * N;
  column -= args.q_width();
  if (column < args.q_width()) {
    const int head = column / args.qk(), d = column % args.qk();
    if (d >= args.nope) return args.rope_key + (token * args.rope + d - args.nope) * N;
    return args.kv + (token * args.kv_width() + head * (args.nope + args.v) + d) * N;
  }
  column -= args.q_width();
  const int head = column / args.v, d = column % args.v;
  return args.kv + (token * args.kv_width() + head * (args.nope + args.v) + args.nope + d) * N;
}

// Memory bound: writes every element of rows once.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) join_kernel(LatentHeads<T> args) {
  const auto column = static_cast<int>(own_pack());
  if (column >= args.width()) return;
  for (std::int64_t token = first_row(); token < args.tokens; token += row_step()) {
    Pack<T, N> pack;
    pack.load(part_of<T, N>(args, token, column));
    pack.store(args.rows + (token * args.width() + column) * N);
  }
}

// Columns past the row are those of the rotated key: each sums over heads.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) split_kernel(LatentHeads<T> args) {
  const auto column = static_cast<int>(own_pack());
  if (column >= args.width() + args.rope) return;
  const int key_column = column - args.q_width();
  const bool shared =
      key_column >= 0 && key_column < args.q_width() && key_column % args.qk() >= args.nope;
  if (shared) return;
  for (std::int64_t token = first_row(); token < args.tokens; token += row_step()) {
    const T* row = args.rows + token * args.width() * N;
    Pack<T, N> pack;
    if (column < args.width()) {
      pack.load(row + static_cast<std::int64_t>(column) * N);
      pack.store(part_of<T, N>(args, token, column));
      continue;
    }
    const int d = column - args.width();
    float sums[N] = {};
    for (int head = 0; head < args.heads; ++head) {
      pack.load(row +
                static_cast<std::int64_t>(args.q_width() + head * args.qk() + args.nope + d) * N);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += pack[i];
    }
#pragma unroll
    for (int i = 0; i < N; ++i) pack.set(i, sums[i]);
    pack.store(args.rope_key + (token * args.rope + d) * N);
  }
}

template <class T, int N>
LatentHeads<T> heads_of(const LatentHeadsArgs& args) {
  return {address<T>(args.q),
          address<T>(args.kv),
          address<T>(args.rope_key),
          address<T>(args.rows),
          args.rows.shape[0],
          static_cast<int>(args.heads),
          static_cast<int>(args.nope_size) / N,
          static_cast<int>(args.rope_size) / N,
          static_cast<int>(args.v_size) / N};
}

// Calls body(T{}, integral constant of elements per access).
template <class Body>
void visit_packs(const LatentHeadsArgs& args, const Body& body) {
  visit_value(args.rows.dtype, [&](auto type) {
    using T = decltype(type);
    const bool whole = aligned(address<T>(args.q), address<T>(args.kv), address<T>(args.rope_key),
                               address<T>(args.rows)) &&
                       args.nope_size % kPack<T> == 0 && args.rope_size % kPack<T> == 0;
    by_pack<T>(whole, args.v_size, [&](auto count) { body(type, count); });
  });
}

void join(const Stream& stream, const LatentHeadsArgs& args) {
  if (args.rows.numel() == 0) return;
  visit_packs(args, [&](auto type, auto count) {
    using T = decltype(type);
    constexpr int kCount = decltype(count)::value;
    const LatentHeads<T> heads = heads_of<T, kCount>(args);
    const RowGrid grid = row_grid(heads.tokens, heads.width());
    join_kernel<T, kCount><<<grid.blocks, grid.threads, 0, queue_of(stream).stream()>>>(heads);
    check_launch("latent attention: join heads");
  });
}

void split(const Stream& stream, const LatentHeadsArgs& args) {
  if (args.rows.numel() == 0) return;
  visit_packs(args, [&](auto type, auto count) {
    using T = decltype(type);
    constexpr int kCount = decltype(count)::value;
    const LatentHeads<T> heads = heads_of<T, kCount>(args);
    const RowGrid grid = row_grid(heads.tokens, heads.width() + heads.rope);
    split_kernel<T, kCount><<<grid.blocks, grid.threads, 0, queue_of(stream).stream()>>>(heads);
    check_launch("latent attention: split heads");
  });
}

template <class T>
struct HeadGemm {
  const T *x, *weight;
  T* y;
  std::int64_t rows, inner, outer;
  std::int64_t x_stride, x_step, y_stride, y_step, weight_step;
};

// Grid: output blocks, heads, rows. Reads the weight of a head once per row.
template <class T, bool kTranspose>
__global__ void __launch_bounds__(kThreads) head_gemm_kernel(HeadGemm<T> args) {
  extern __shared__ float x[];
  const std::int64_t head = blockIdx.y;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const T* weight = args.weight + head * args.weight_step;
  for (std::int64_t row = blockIdx.z; row < args.rows; row += gridDim.z) {
    const T* from = args.x + row * args.x_stride + head * args.x_step;
    T* to = args.y + row * args.y_stride + head * args.y_step;
    __syncthreads();  // x of the previous row may be overwritten
    for (std::int64_t i = thread; i < args.inner; i += kThreads) x[i] = widen(from[i]);
    __syncthreads();
    if constexpr (kTranspose) {
      // One warp per output.
      for (std::int64_t o = blockIdx.x * (kThreads / kWarp) + thread / kWarp; o < args.outer;
           o += gridDim.x * (kThreads / kWarp)) {
        float sum = 0;
        for (std::int64_t i = lane; i < args.inner; i += kWarp) {
          sum = fmaf(x[i], widen(weight[o * args.inner + i]), sum);
        }
        sum = reduce_warp<Sum>(sum);
        if (lane == 0) to[o] = narrow<T>(sum);
      }
    } else {
      for (std::int64_t o = own_pack(); o < args.outer;
           o += static_cast<std::int64_t>(gridDim.x) * kThreads) {
        float sum = 0;
        for (std::int64_t i = 0; i < args.inner; ++i) {
          sum = fmaf(x[i], widen(weight[i * args.outer + o]), sum);
        }
        to[o] = narrow<T>(sum);
      }
    }
  }
}

void head_gemm(const Stream& stream, const HeadGemmArgs& args) {
  if (args.rows == 0 || args.heads == 0 || args.outer == 0) return;
  constexpr std::int64_t kMostInner = 8192, kMostRows = 65535;
  BEV_CHECK(args.inner <= kMostInner, ErrorKind::kConfig, "latent attention: a head of ",
            args.inner, " is too large for the GPU; at most ", kMostInner);
  visit_value(args.dtype, [&](auto type) {
    using T = decltype(type);
    const HeadGemm<T> gemm{static_cast<const T*>(args.x),
                           static_cast<const T*>(args.weight),
                           static_cast<T*>(args.y),
                           args.rows,
                           args.inner,
                           args.outer,
                           args.x_stride,
                           args.x_step,
                           args.y_stride,
                           args.y_step,
                           args.weight_step};
    const std::int64_t per_block = args.transpose ? kThreads / kWarp : kThreads;
    const dim3 grid(static_cast<unsigned>(ceil_div(args.outer, per_block)),
                    static_cast<unsigned>(args.heads),
                    static_cast<unsigned>(std::min(args.rows, kMostRows)));
    const auto kernel = args.transpose ? head_gemm_kernel<T, true> : head_gemm_kernel<T, false>;
    kernel<<<grid, kThreads, static_cast<std::size_t>(args.inner) * sizeof(float),
             queue_of(stream).stream()>>>(gemm);
    check_launch("latent attention: head product");
  });
}

}  // namespace
}  // namespace cuda

LatentKernels cuda_table(Family<LatentKernels>) {
  return {.join = cuda::join, .split = cuda::split, .head_gemm = cuda::head_gemm};
}

}  // namespace bev
