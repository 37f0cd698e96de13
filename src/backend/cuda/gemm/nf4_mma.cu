// GEMMs of a weight in NF4 with mma.sync, by tiles of [128, 128]: the tile of the weight is
// dequantised from registers into shared memory, one step ahead of the tensor cores. The weight is
// read in 4 bits and never written, which pays for few rows; for many, dequantising it once for all
// row tiles does.
#include "backend/cuda/attention/attention_mma.cuh"
#include "backend/cuda/gemm/mma_tile.cuh"
#include "backend/cuda/quantize/nf4.cuh"
#include "backend/cuda/quantize/nf4_launchers.h"
#include "backend/cuda/runtime/queue.h"
#include "base/divide.h"

namespace bev::cuda {

namespace {

using namespace mma_tile;

constexpr std::int64_t kMostRows = 512;  // above, the weight is dequantised first
constexpr int kCodes = 16;               // of a thread in a step: 8 bytes of one run

// c [rows, columns] = a [rows, depth] times the weight [out, in], transposed (columns = out, depth
// = in) or not (columns = in, depth = out).
template <class T>
struct Nf4Product {
  const T *a, *bias;
  T* c;
  Nf4Weight w;
  int rows, columns, depth;
  std::int64_t in;
};

// The codes of a thread and their absmax, between their load and their use.
struct LoadedCodes {
  uint2 codes{};
  float absmax = 0;
};

// Position of the thread's codes in the tile of the weight. kInnerRows: dgrad, whose tile has rows
// of the weight along K.
template <bool kInnerRows>
__device__ int tile_row() {
  constexpr int kThreadsOfRow = (kInnerRows ? kSize : kDepth) / kCodes;
  return static_cast<int>(threadIdx.x) / kThreadsOfRow;
}
template <bool kInnerRows>
__device__ int tile_column() {
  constexpr int kThreadsOfRow = (kInnerRows ? kSize : kDepth) / kCodes;
  return static_cast<int>(threadIdx.x) % kThreadsOfRow * kCodes;
}

template <bool kInnerRows, class T>
__device__ LoadedCodes load_codes(const Nf4Product<T>& args, int first_column, int first_inner) {
  const int row = (kInnerRows ? first_inner : first_column) + tile_row<kInnerRows>();
  const int column = (kInnerRows ? first_column : first_inner) + tile_column<kInnerRows>();
  const int rows = kInnerRows ? args.depth : args.columns;
  if (row >= rows || column >= args.in) return {};
  const std::int64_t at = row * args.in + column;
  return {*reinterpret_cast<const uint2*>(args.w.codes + at / 2), nf4_absmax(args.w, at)};
}

template <bool kInnerRows, class T>
__device__ void store_values(OperandTile<kInnerRows> tile, const LoadedCodes& loaded,
                             const float (&table)[16]) {
  constexpr int kStride = OperandTile<kInnerRows>::kStride;
  std::uint8_t* to = tile.memory + tile_row<kInnerRows>() * kStride + tile_column<kInnerRows>() * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t word = half == 0 ? loaded.codes.x : loaded.codes.y;
    std::uint32_t values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t pair = word >> (8 * i);
      values[i] = cuda_attention::pack<T>(table[(pair >> 4) & 15] * loaded.absmax,
                                          table[pair & 15] * loaded.absmax);
    }
    *reinterpret_cast<uint4*>(to + 16 * half) =
        make_uint4(values[0], values[1], values[2], values[3]);
  }
}

template <bool kInnerRows, class T>
__global__ void __launch_bounds__(kBlockThreads, 2) nf4_kernel(const Nf4Product<T> args) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  __shared__ float table[16];
  load_nf4_table(table, args.w);
  const int row0 = static_cast<int>(blockIdx.x) * kSize,
            first = static_cast<int>(blockIdx.y) * kSize;
  const Operand<T> left{args.a + row0 * static_cast<std::int64_t>(args.depth), args.depth,
                        args.rows - row0};
  constexpr int kBytes = kStageBytes<false, kInnerRows>;
  const int steps = ceil_div(args.depth, kDepth);
  auto left_at = [&](int step) { return OperandTile<false>{memory + step % kStages * kBytes}; };
  auto right_at = [&](int step) {
    return OperandTile<kInnerRows>{memory + step % kStages * kBytes + kTileBytes<false>};
  };
  auto copy = [&](int step) {
    if (step < steps) copy_operand<false>(left_at(step), left, step * kDepth, args.depth);
    commit_copies();
  };
  Sums<kM, kN> sums;
  sums.clear();
  for (int step = 0; step < kStages - 1; ++step) copy(step);
  LoadedCodes loaded = load_codes<kInnerRows>(args, first, 0);
  __syncthreads();  // the table
  store_values<kInnerRows, T>(right_at(0), loaded, table);
  if (steps > 1) loaded = load_codes<kInnerRows>(args, first, kDepth);
  for (int step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();
    copy(step + kStages - 1);
    if (step + 1 < steps) store_values<kInnerRows, T>(right_at(step + 1), loaded, table);
    if (step + 2 < steps) loaded = load_codes<kInnerRows>(args, first, (step + 2) * kDepth);
    multiply_step<false, kInnerRows, T>(sums, left_at(step), right_at(step), warp_row(),
                                        warp_column());
  }
  wait_copies<0>();
  for_pairs(sums, [&](int row, int column, float x, float y) {
    const float pair[2] = {x, y};
    if (row0 + row >= args.rows) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = first + column + i;
      if (n >= args.columns) continue;
      const float bias = args.bias != nullptr ? cuda_attention::widen(args.bias[n]) : 0;
      args.c[static_cast<std::int64_t>(row0 + row) * args.columns + n] =
          cuda_attention::narrow<T>(pair[i] + bias);
    }
  });
}

template <bool kInnerRows, class T>
void run(const Stream& stream, const Nf4GemmArgs& args) {
  const Nf4Product<T> product{
      static_cast<const T*>(args.a.data), static_cast<const T*>(args.bias.data),
      static_cast<T*>(args.c.data),       nf4_weight(args.w),
      static_cast<int>(args.a.shape[0]),  static_cast<int>(args.c.shape[1]),
      static_cast<int>(args.a.shape[1]),  args.w_shape[1]};
  auto* kernel = nf4_kernel<kInnerRows, T>;
  constexpr int kBytes = kStages * kStageBytes<false, kInnerRows>;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "nf4 gemm: shared memory");
  const dim3 blocks(static_cast<unsigned>(ceil_div(product.rows, kSize)),
                    static_cast<unsigned>(ceil_div(product.columns, kSize)));
  kernel<<<blocks, kBlockThreads, kBytes, queue_of(stream).stream()>>>(product);
  check_launch("nf4 gemm");
}

template <class T>
void run(const Stream& stream, const Nf4GemmArgs& args) {
  if (args.transpose_w) return run<false, T>(stream, args);
  run<true, T>(stream, args);
}

}  // namespace

bool takes_nf4(const Nf4GemmArgs& args) {
  const Dtype dtype = args.a.dtype;
  // A product is rounded once: the weight's own dtype must lose nothing before.
  const bool rounds = size_of(dtype) == 2 && (args.w.dtype == dtype || args.w.dtype == Dtype::kF32);
  const bool few = args.a.shape[0] > 0 && args.a.shape[0] <= kMostRows;
  return rounds && few && args.c.dtype == dtype && args.w_shape.ndim() == 2 &&
         args.w_shape[1] % kCodes == 0 && args.w_shape[0] % 8 == 0 &&
         args.w.layout.run % kCodes == 0;
}

void nf4_gemm(const Stream& stream, const Nf4GemmArgs& args) {
  if (args.c.numel() == 0) return;
  if (args.a.dtype == Dtype::kBf16) return run<Bf16>(stream, args);
  run<F16>(stream, args);
}

}  // namespace bev::cuda
