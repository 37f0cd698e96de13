// Skinny GEMM for decoding: up to 16 rows times a weight [N, K] that is read once.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/gemm/gemm_skinny.h"
#include "backend/cuda/gemm/skinny_tile.cuh"

namespace bev::cuda {

namespace {

constexpr int kWarps = 16;

template <class T, class C>
struct SkinnyGemm {
  const T *a, *b, *bias;
  C* c;
  int rows, depth, columns;
  std::int64_t c_stride;
  float alpha;
};

// Grid: column tiles.
template <class T, class C, int kTiles>
__global__ void __launch_bounds__(kWarps* kWarp) skinny_kernel(SkinnyGemm<T, C> args) {
  const int first = static_cast<int>(blockIdx.x) * skinny_tile::kColumns;
  const skinny_tile::Operands<T> in{args.a, args.b + static_cast<std::int64_t>(first) * args.depth,
                                    args.rows, args.columns - first, args.depth};
  skinny_tile::multiply<kWarps, kTiles>(in, [&](int row, int column, float sum) {
    sum *= args.alpha;
    if (args.bias != nullptr) sum += cuda_attention::widen(args.bias[first + column]);
    args.c[row * args.c_stride + first + column] = cuda_attention::narrow<C>(sum);
  });
}

template <class T, class C>
void run(const Stream& stream, const GemmArgs& args) {
  const std::int64_t columns = args.b.shape[0];
  const SkinnyGemm<T, C> work{address<T>(args.a),
                              address<T>(args.b),
                              address<T>(args.bias),
                              address<C>(args.c),
                              static_cast<int>(args.a.shape[0]),
                              static_cast<int>(args.a.shape[1]),
                              static_cast<int>(columns),
                              args.c.shape[1],
                              static_cast<float>(args.alpha)};
  auto* kernel =
      work.rows <= skinny_tile::kTileRows ? skinny_kernel<T, C, 1> : skinny_kernel<T, C, 2>;
  kernel<<<static_cast<unsigned>(ceil_div(columns, skinny_tile::kColumns)), kWarps * kWarp, 0,
           queue_of(stream).stream()>>>(work);
  check_launch("product of few rows");
}

template <class T>
void run(const Stream& stream, const GemmArgs& args) {
  if (args.c.dtype == Dtype::kF32) return run<T, float>(stream, args);
  run<T, T>(stream, args);
}

}  // namespace

bool gemm_skinny_supports(const GemmArgs& args) {
  constexpr std::int64_t kMostRows = 2 * skinny_tile::kTileRows;
  // Measured on an H200 (bench/skinny_tile): cuBLASLt is faster on larger weights and slower on
  // smaller ones.
  constexpr std::int64_t kMostWeights = std::int64_t{1} << 24;
  const bool whole_words =
      args.a.shape[1] % 8 == 0 && aligned(static_cast<const std::byte*>(args.a.data),
                                          static_cast<const std::byte*>(args.b.data));
  const bool linear = !args.transpose_a && args.transpose_b && args.beta == 0 &&
                      (args.a_columns == 0 || args.a_columns == args.a.shape[1]);
  return linear && args.a.shape[0] <= kMostRows && args.b.numel() <= kMostWeights &&
         size_of(args.a.dtype) == 2 && whole_words;
}

void gemm_skinny(const Stream& stream, const GemmArgs& args) {
  if (args.a.dtype == Dtype::kBf16) return run<Bf16>(stream, args);
  run<F16>(stream, args);
}

}  // namespace bev::cuda
