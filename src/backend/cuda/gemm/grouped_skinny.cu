// Grouped GEMM for decoding, with few rows per expert: reads the weight of each chosen expert once.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/gemm/grouped_tiles.cuh"
#include "backend/cuda/gemm/skinny_tile.cuh"
#include "backend/cuda/moe/moe_launchers.h"

namespace bev::cuda {

namespace {

// With more rows per expert, kernels with larger tiles are faster.
constexpr std::int64_t kMostRows = 8;
constexpr int kWarps = 8;

// Grid: column tiles, row tiles.
template <class T, int kTiles>
__global__ void __launch_bounds__(kWarps* kWarp) skinny_kernel(RowGemm<T> args) {
  const RowTile tile = find_tile<kTiles * skinny_tile::kTileRows>(
      args.offsets, args.experts, args.rows, static_cast<int>(blockIdx.y));
  if (tile.expert < 0) return;
  const int first = static_cast<int>(blockIdx.x) * skinny_tile::kColumns;
  const bool nobody = tile.expert == args.experts;
  const std::int64_t weight_row = static_cast<std::int64_t>(tile.expert) * args.columns + first;
  const skinny_tile::Operands<T> in{args.in + static_cast<std::int64_t>(tile.begin) * args.depth,
                                    args.w + weight_row * args.depth, tile.end - tile.begin,
                                    args.columns - first, nobody ? 0 : args.depth};
  T* out = args.out + static_cast<std::int64_t>(tile.begin) * args.columns + first;
  const T* bias = args.bias == nullptr || nobody ? nullptr : args.bias + weight_row;
  skinny_tile::multiply<kWarps, kTiles>(in, [&](int row, int column, float sum) {
    if (bias != nullptr) sum += cuda_attention::widen(bias[column]);
    out[static_cast<std::int64_t>(row) * args.columns + column] = cuda_attention::narrow<T>(sum);
  });
}

template <class T, int kTiles>
void launch(const Stream& stream, const RowGemm<T>& work) {
  // A tile has at least one row.
  const std::int64_t tiles =
      std::min<std::int64_t>(work.rows, most_tiles(work.rows, work.experts, 8 * kTiles));
  const dim3 blocks(static_cast<unsigned>(ceil_div(work.columns, skinny_tile::kColumns)),
                    static_cast<unsigned>(tiles));
  skinny_kernel<T, kTiles><<<blocks, kWarps * kWarp, 0, queue_of(stream).stream()>>>(work);
  check_launch("grouped product of few rows");
}

template <class T>
void run(const Stream& stream, const GroupedGemmArgs& args) {
  const RowGemm<T> work = row_gemm<T>(args, false);
  // With 2 rows per expert on average, some experts already have more than 8.
  if (work.rows <= 2 * work.experts) return launch<T, 1>(stream, work);
  launch<T, 2>(stream, work);
}

}  // namespace

bool grouped_skinny_supports(const GroupedGemmArgs& args) {
  return args.x.shape[0] <= kMostRows * args.w.shape[0] && args.x.shape[0] < 65536;
}

void grouped_skinny(const Stream& stream, const GroupedGemmArgs& args) {
  if (args.x.dtype == Dtype::kBf16) return run<Bf16>(stream, args);
  run<F16>(stream, args);
}

}  // namespace bev::cuda
