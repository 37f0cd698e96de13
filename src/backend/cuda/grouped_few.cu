// Grouped GEMM for decoding, with few rows per expert: reads the weight of each chosen expert once.
#include "backend/cuda/few_rows.cuh"
#include "backend/cuda/grid.cuh"
#include "backend/cuda/grouped_tiles.cuh"
#include "backend/cuda/moe_parts.h"

namespace bev::cuda {

namespace {

// With more rows per expert, kernels with larger tiles are faster.
constexpr std::int64_t kMostRows = 8;
constexpr int kWarps = 8;

// Grid: column tiles, row tiles.
template <class T, int kTiles>
__global__ void __launch_bounds__(kWarps* kWarp) few_kernel(RowProduct<T> args) {
  const RowTile tile = find_tile<kTiles * few_rows::kTileRows>(
      args.offsets, args.experts, args.rows, static_cast<int>(blockIdx.y));
  if (tile.expert < 0) return;
  const int first = static_cast<int>(blockIdx.x) * few_rows::kColumns;
  const bool nobody = tile.expert == args.experts;
  const std::int64_t weight_row = static_cast<std::int64_t>(tile.expert) * args.columns + first;
  const few_rows::Operands<T> in{args.in + static_cast<std::int64_t>(tile.begin) * args.depth,
                                 args.w + weight_row * args.depth, tile.end - tile.begin,
                                 args.columns - first, nobody ? 0 : args.depth};
  T* out = args.out + static_cast<std::int64_t>(tile.begin) * args.columns + first;
  const T* bias = args.bias == nullptr || nobody ? nullptr : args.bias + weight_row;
  few_rows::multiply<kWarps, kTiles>(in, [&](int row, int column, float sum) {
    if (bias != nullptr) sum += cuda_attention::widen(bias[column]);
    out[static_cast<std::int64_t>(row) * args.columns + column] = cuda_attention::narrow<T>(sum);
  });
}

template <class T, int kTiles>
void launch(const Stream& stream, const RowProduct<T>& work) {
  // A tile has at least one row.
  const std::int64_t tiles =
      std::min<std::int64_t>(work.rows, most_tiles(work.rows, work.experts, 8 * kTiles));
  const dim3 blocks(static_cast<unsigned>(ceil_div(work.columns, few_rows::kColumns)),
                    static_cast<unsigned>(tiles));
  few_kernel<T, kTiles><<<blocks, kWarps * kWarp, 0, queue_of(stream).stream()>>>(work);
  check_launch("grouped product of few rows");
}

template <class T>
void run(const Stream& stream, const GroupedArgs& args) {
  const RowProduct<T> work = row_product<T>(args, false);
  // With 2 rows per expert on average, some experts already have more than 8.
  if (work.rows <= 2 * work.experts) return launch<T, 1>(stream, work);
  launch<T, 2>(stream, work);
}

}  // namespace

bool grouped_few_serves(const GroupedArgs& args) {
  return args.x.shape[0] <= kMostRows * args.w.shape[0] && args.x.shape[0] < 65536;
}

void grouped_few(const Stream& stream, const GroupedArgs& args) {
  if (args.x.dtype == Dtype::kBf16) return run<Bf16>(stream, args);
  run<F16>(stream, args);
}

}  // namespace bev::cuda
