// FP8 quantisation in row form only, with a scale per run of 128. Eight threads share a run,
// sixteen elements each. A token that several experts chose is quantised once and written to all
// its rows.
#include "backend/cuda/quantize/quantize_launchers.h"
#include "backend/cuda/quantize/quantize_square.cuh"
#include "base/divide.h"

namespace bev::cuda {

namespace {

constexpr int kWide = 16;  // elements per thread

struct RowsFrom {
  std::int64_t count, columns;
  const std::int32_t* end;    // device: rows from *end on are unused; null: all rows are used
  const std::int32_t* place;  // destinations [count, topk], -1: none; null: row r stays at r
  int topk;

  __device__ std::int64_t rows() const { return end != nullptr ? *end : count; }
};

template <__nv_fp8_interpretation_t kKind, class T>
__device__ uint4 quantized(const Pack<T, kWide>& x, float scale) {
  auto four = [&](int k) {
    return quantized_four<kKind>(number(x, k), number(x, k + 1), number(x, k + 2), number(x, k + 3),
                                 scale);
  };
  return make_uint4(four(0), four(4), four(8), four(12));
}

template <class T, __nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(kThreads)
    quantize_rows_kernel(const T* x, RowsFrom from, QuantizeScale how, QuantizeTo to) {
  constexpr int kLanes = kSide / kWide;
  const std::int64_t column = own_pack() * kWide, rows = from.rows();
  if (column / kSide * kSide >= from.columns) return;
  const bool inside = column < from.columns;  // of a ragged run
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  float* scales = to.row_scales + column / kSide * to.row_stride;
  for (std::int64_t row = first_row(); row < rows; row += row_step()) {
    Pack<T, kWide> numbers = {};
    if (inside) numbers.load(x + row * from.columns + column);
    const float own = pack_amax(numbers);
    if (isinf(own)) make_infinities_nan(numbers);
    const Scale scale = how.of(reduce_warp<Max, kLanes>(own));
    const uint4 bytes = quantized<kKind>(numbers, scale.scale);
    auto store = [&](std::int64_t at) {
      if (inside) *reinterpret_cast<uint4*>(to.rows + at * from.columns + column) = bytes;
      if (lane == 0) scales[at] = scale.inverse;
    };
    if (from.place == nullptr) {
      store(row);
      continue;
    }
    // Each lane loads one destination, so that stores do not wait for a chain of dependent loads.
    for (int first = 0; first < from.topk; first += kLanes) {
      const int k = first + lane;
      const int mine = k < from.topk ? from.place[row * from.topk + k] : -1;
#pragma unroll
      for (int other = 0; other < kLanes; ++other) {
        const int at = __shfl_sync(0xffffffffu, mine, other, kLanes);
        if (at >= 0) store(at);
      }
    }
  }
}

// Like row_grid(), but without idle threads if a row has fewer packs than a block has threads.
RowGrid grid_of_runs(std::int64_t rows, std::int64_t columns) {
  const auto packs = static_cast<unsigned>(ceil_div(columns, kSide) * (kSide / kWide));
  const unsigned wide = std::min<unsigned>(packs, kThreads), high = kThreads / wide;
  constexpr std::int64_t kMostBlocks = 65535;
  return {dim3(ceil_div(packs, wide),
               static_cast<unsigned>(std::min(ceil_div(rows, high), kMostBlocks))),
          dim3(wide, high)};
}

}  // namespace

void quantize_rows(CudaQueue& queue, const QuantizeArgs& args) {
  const QuantizeGroups& groups = args.groups;
  const std::int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  const bool gathers = groups.order != nullptr;
  BEV_CHECK(!gathers || groups.place != nullptr, ErrorKind::kInternal, "quantize: places of rows");
  const RowsFrom from{rows, columns,
                      groups.used() && !gathers ? groups.offsets + groups.experts : nullptr,
                      gathers ? groups.place : nullptr, static_cast<int>(groups.topk)};
  if (rows == 0) return;
  const RowGrid grid = grid_of_runs(rows, columns);
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel = args.format == Fp8Format::kE4m3 ? quantize_rows_kernel<T, __NV_E4M3>
                                                        : quantize_rows_kernel<T, __NV_E5M2>;
    kernel<<<grid.blocks, grid.threads, 0, queue.stream()>>>(
        address<T>(args.x), from, quantize_scale(args), quantize_to(args));
  });
  check_launch("quantize");
}

}  // namespace bev::cuda
