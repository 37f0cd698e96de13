// Grouped GEMM with mma.sync (sm_80 and later) for 16-bit operands, one launch for all experts. A
// block computes a [128, 128] tile with eight warps of 64 x 32 each; operands go through shared
// memory in steps of 32 along K with a cp.async pipeline of kStages stages.
#include "backend/cuda/attention/attention_tiles.cuh"
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/gemm/grouped_tiles.cuh"
#include "backend/cuda/moe/moe_launchers.h"
#include "base/divide.h"

namespace bev::cuda {

namespace {

using cuda_attention::commit_copies;
using cuda_attention::copy_16;
using cuda_attention::load_matrices_transposed;
using cuda_attention::multiply_add;
using cuda_attention::Sums;
using cuda_attention::Tile;
using cuda_attention::wait_copies;

constexpr int kSize = 128, kDepth = 32, kStages = 3, kBlockThreads = 256;
constexpr int kM = 4, kN = 4;  // register tile of a warp: 16 kM x 8 kN

// One operand of a tile: `outer` runs over M or N, `inner` over K. Element (outer, inner) is
// data[outer * stride + inner], or data[inner * stride + outer] with kInnerRows. Out of range
// elements read as zero.
template <class T>
struct Operand {
  const T* data;
  std::int64_t stride;
  int outer_limit;
};

template <bool kInnerRows>
using OperandTile = Tile<kInnerRows ? kSize : kDepth>;
template <bool kInnerRows>
constexpr int kTileBytes = OperandTile<kInnerRows>::bytes(kInnerRows ? kDepth : kSize);

// Starts the cp.async copies of inner [first, first + kDepth).
template <bool kInnerRows, class T>
__device__ void copy_operand(OperandTile<kInnerRows> tile, const Operand<T>& from, int first,
                             int inner_limit) {
  constexpr int kColumns = kInnerRows ? kSize : kDepth, kRows = kInnerRows ? kDepth : kSize;
  constexpr int kChunks = kColumns / 8;
#pragma unroll
  for (int i = 0; i < kRows * kChunks / kBlockThreads; ++i) {
    const int chunk = i * kBlockThreads + static_cast<int>(threadIdx.x);
    const int row = chunk / kChunks, column = chunk % kChunks * 8;
    const int outer = kInnerRows ? column : row, inner = first + (kInnerRows ? row : column);
    const bool valid = outer < from.outer_limit && inner < inner_limit;
    const std::int64_t at = kInnerRows ? inner * from.stride + outer : outer * from.stride + inner;
    copy_16(tile.at(row, column), from.data + (valid ? at : 0), valid);
  }
}

// Left mma operand [16, 16] at (row, inner).
template <bool kInnerRows>
__device__ void load_left(std::uint32_t (&x)[4], OperandTile<kInnerRows> tile, int row, int inner) {
  if constexpr (kInnerRows) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    load_matrices_transposed(x, tile.at(inner + lane / 16 * 8 + lane % 8, row + lane / 8 % 2 * 8));
  } else {
    tile.load_left(x, row, inner);
  }
}
// Two right mma operands [16, 8] with columns [column, column + 16).
template <bool kInnerRows>
__device__ void load_right(std::uint32_t (&x)[4], OperandTile<kInnerRows> tile, int column,
                           int inner) {
  if constexpr (kInnerRows) {
    tile.load_right_transposed(x, inner, column);
  } else {
    tile.load_right(x, column, inner);
  }
}

template <bool kLeftInnerRows, bool kRightInnerRows, class T>
__device__ void multiply_step(Sums<kM, kN>& sums, OperandTile<kLeftInnerRows> left,
                              OperandTile<kRightInnerRows> right, int row, int column) {
#pragma unroll
  for (int inner = 0; inner < kDepth; inner += 16) {
    std::uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) load_left<kLeftInnerRows>(a[m], left, row + 16 * m, inner);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t b[4];
      load_right<kRightInnerRows>(b, right, column + 8 * n, inner);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add<T>(sums.at[m][n], a[m], b[0], b[1]);
        multiply_add<T>(sums.at[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Position of the warp's register tile in the tile.
__device__ int warp_row() { return static_cast<int>(threadIdx.x / kWarp) % 2 * (16 * kM); }
__device__ int warp_column() { return static_cast<int>(threadIdx.x / kWarp) / 2 * (8 * kN); }

template <bool kLeftInnerRows, bool kRightInnerRows>
constexpr int kStageBytes = kTileBytes<kLeftInnerRows> + kTileBytes<kRightInnerRows>;

// sums = left right^T over inner [0, depth).
template <bool kLeftInnerRows, bool kRightInnerRows, class T>
__device__ void multiply_tile(Sums<kM, kN>& sums, const Operand<T>& left, const Operand<T>& right,
                              int depth) {
  extern __shared__ __align__(128) std::uint8_t memory[];
  constexpr int kBytes = kStageBytes<kLeftInnerRows, kRightInnerRows>;
  const int steps = ceil_div(depth, kDepth);
  auto left_at = [&](int step) {
    return OperandTile<kLeftInnerRows>{memory + step % kStages * kBytes};
  };
  auto right_at = [&](int step) {
    return OperandTile<kRightInnerRows>{memory + step % kStages * kBytes +
                                        kTileBytes<kLeftInnerRows>};
  };
  auto copy = [&](int step) {
    if (step < steps) {
      copy_operand<kLeftInnerRows>(left_at(step), left, step * kDepth, depth);
      copy_operand<kRightInnerRows>(right_at(step), right, step * kDepth, depth);
    }
    commit_copies();  // maybe empty: wait_copies counts groups
  };
  sums.clear();
  for (int step = 0; step < kStages - 1; ++step) copy(step);
  for (int step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();
    copy(step + kStages - 1);
    multiply_step<kLeftInnerRows, kRightInnerRows, T>(sums, left_at(step), right_at(step),
                                                      warp_row(), warp_column());
  }
  wait_copies<0>();
}

// Calls body(row, column, first, second) for the lane's pairs of adjacent columns.
template <class Body>
__device__ void for_pairs(const Sums<kM, kN>& sums, const Body& body) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        body(warp_row() + 16 * m + 8 * half + lane / 4, warp_column() + 8 * n + 2 * (lane % 4),
             sums.at[m][n][2 * half], sums.at[m][n][2 * half + 1]);
      }
    }
  }
}

__device__ void store_pair(float* to, float first, float second) {
  *reinterpret_cast<float2*>(to) = {first, second};
}
template <class T>
__device__ void store_pair(T* to, float first, float second) {
  *reinterpret_cast<std::uint32_t*>(to) = cuda_attention::pack<T>(first, second);
}

// out = in w^T with w [experts, columns, depth]; dgrad: out = in w with w [experts, depth,
// columns].
template <class T, bool kInput>
__global__ void __launch_bounds__(kBlockThreads, 2) product_kernel(RowGemm<T> args) {
  const RowTile tile =
      find_tile<kSize>(args.offsets, args.experts, args.rows, static_cast<int>(blockIdx.y));
  if (tile.expert < 0) return;
  const int first = static_cast<int>(blockIdx.x) * kSize;
  const bool nobody = tile.expert == args.experts;
  Sums<kM, kN> sums;
  sums.clear();
  if (!nobody) {
    const T* w = args.w + static_cast<std::int64_t>(tile.expert) * args.depth * args.columns;
    const Operand<T> left{args.in + static_cast<std::int64_t>(tile.begin) * args.depth, args.depth,
                          tile.end - tile.begin};
    const Operand<T> right{kInput ? w + first : w + static_cast<std::int64_t>(first) * args.depth,
                           kInput ? args.columns : args.depth, args.columns - first};
    multiply_tile<false, kInput>(sums, left, right, args.depth);
  }
  const T* bias = args.bias == nullptr || nobody
                      ? nullptr
                      : args.bias + static_cast<std::int64_t>(tile.expert) * args.columns;
  for_pairs(sums, [&](int row, int column, float a, float b) {
    const std::int64_t r = tile.begin + row;
    const int n = first + column;
    if (r >= tile.end || n >= args.columns) return;
    if (bias != nullptr) {
      a += cuda_attention::widen(bias[n]);
      b += cuda_attention::widen(bias[n + 1]);
    }
    store_pair(args.out + r * args.columns + n, a, b);
  });
}

// wgrad: w = beta w + y^T x over the rows of each expert.
template <class T, class G>
__global__ void __launch_bounds__(kBlockThreads, 2) weight_kernel(WgradGemm<T, G> args) {
  const int expert = static_cast<int>(blockIdx.z);
  const std::int64_t begin = args.offsets[expert];
  const int count = args.offsets[expert + 1] - static_cast<int>(begin);
  const int first_row = static_cast<int>(blockIdx.y) * kSize,
            first_column = static_cast<int>(blockIdx.x) * kSize;
  if (count == 0 && args.beta == 1) return;
  const Operand<T> left{args.y + begin * args.rows_of_w + first_row, args.rows_of_w,
                        args.rows_of_w - first_row};
  const Operand<T> right{args.x + begin * args.columns + first_column, args.columns,
                         args.columns - first_column};
  Sums<kM, kN> sums;
  multiply_tile<true, true>(sums, left, right, count);
  G* w = args.w + static_cast<std::int64_t>(expert) * args.rows_of_w * args.columns;
  for_pairs(sums, [&](int row, int column, float a, float b) {
    const int m = first_row + row, n = first_column + column;
    if (m >= args.rows_of_w || n >= args.columns) return;
    G* to = w + static_cast<std::int64_t>(m) * args.columns + n;
    if (args.beta != 0) {
      a += args.beta * cuda_attention::widen(to[0]);
      b += args.beta * cuda_attention::widen(to[1]);
    }
    store_pair(to, a, b);
  });
}

template <class Args>
void launch(const Stream& stream, void (*kernel)(Args), dim3 blocks, int shared_bytes,
            const Args& args) {
  if (blocks.x == 0 || blocks.y == 0 || blocks.z == 0) return;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
             "grouped product: shared memory");
  kernel<<<blocks, kBlockThreads, static_cast<std::size_t>(shared_bytes),
           queue_of(stream).stream()>>>(args);
  check_launch("grouped product");
}

template <class T, bool kInput>
void run_product(const Stream& stream, const GroupedGemmArgs& args) {
  const RowGemm<T> work = row_gemm<T>(args, kInput);
  if (work.rows == 0) return;
  const dim3 blocks(static_cast<unsigned>(ceil_div(work.columns, kSize)),
                    static_cast<unsigned>(most_tiles(work.rows, work.experts, kSize)));
  launch(stream, product_kernel<T, kInput>, blocks, kStages * kStageBytes<false, kInput>, work);
}

template <class T, class G>
void run_weight(const Stream& stream, const GroupedGemmArgs& args) {
  const WgradGemm<T, G> work = wgrad_gemm<T, G>(args);
  const dim3 blocks(static_cast<unsigned>(ceil_div(work.columns, kSize)),
                    static_cast<unsigned>(ceil_div(work.rows_of_w, kSize)),
                    static_cast<unsigned>(args.w.shape[0]));
  launch(stream, weight_kernel<T, G>, blocks, kStages * kStageBytes<true, true>, work);
}

// Calls f(T{}) with the 16-bit type.
template <class F>
void visit_narrow(Dtype dtype, const F& f) {
  if (dtype == Dtype::kBf16) return f(Bf16{});
  f(F16{});
}

}  // namespace

bool grouped_mma_supports(const GroupedGemmArgs& args) {
  return most_tiles(args.x.shape[0], args.w.shape[0], kSize) < 65536;
}

void grouped_mma(const Stream& stream, const GroupedGemmArgs& args, GroupedGemm gemm) {
  visit_narrow(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    switch (gemm) {
      case GroupedGemm::kForward:
        return run_product<T, false>(stream, args);
      case GroupedGemm::kDgrad:
        return run_product<T, true>(stream, args);
      case GroupedGemm::kWgrad:
        if (args.w.dtype == Dtype::kF32) return run_weight<T, float>(stream, args);
        return run_weight<T, T>(stream, args);
    }
  });
}

}  // namespace bev::cuda
