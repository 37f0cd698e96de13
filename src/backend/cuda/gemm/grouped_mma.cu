// Grouped GEMM with mma.sync (sm_80 and later) for 16-bit operands, one launch for all experts.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/gemm/grouped_tiles.cuh"
#include "backend/cuda/gemm/mma_tile.cuh"
#include "backend/cuda/moe/moe_launchers.h"
#include "base/divide.h"

namespace bev::cuda {

namespace {

using namespace mma_tile;

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
