// MoE token permutation: sorting by expert, permute (gather), unpermute (sum) and weighting of
// rows.
#include <bit>

#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/moe/moe_launchers.h"
#include "backend/cuda/moe/sort_positions.h"
#include "backend/cuda/tables.h"
#include "kernels/moe.h"

namespace bev {

namespace cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    key_slots_kernel(const std::int32_t* experts, int slots, int first_expert, int count,
                     KeyedPositions out) {
  const int s = static_cast<int>(own_pack());
  if (s >= slots) return;
  const int expert = experts[s] - first_expert;
  const bool here = experts[s] >= 0 && expert >= 0 && expert < count;
  out.keys[s] = static_cast<std::uint32_t>(here ? expert : count);
  out.positions[s] = s;
}

// A row where the key changes writes the offsets of the experts up to the new key.
__global__ void __launch_bounds__(kThreads)
    place_slots_kernel(KeyedPositions sorted, int slots, int count, std::int32_t* order,
                       std::int32_t* place, std::int32_t* offsets) {
  const int r = static_cast<int>(own_pack());
  if (r >= slots) return;
  const int key = static_cast<int>(sorted.keys[r]), slot = sorted.positions[r];
  const bool used = key < count;
  order[r] = used ? slot : -1;
  place[slot] = used ? r : -1;
  const int before = r == 0 ? -1 : static_cast<int>(sorted.keys[r - 1]);
  for (int e = before + 1; e <= key; ++e) offsets[e] = r;
  if (r == slots - 1) {
    for (int e = key + 1; e <= count; ++e) offsets[e] = slots;
  }
}

void sort_rows(const Stream& stream, const SortRowsArgs& args) {
  const std::int64_t slots = args.experts.numel(), count = args.offsets.numel() - 1;
  BEV_CHECK(args.order.numel() == slots && args.place.numel() == slots, ErrorKind::kInternal,
            "sort_rows: ", slots, " slots, ", args.order.numel(), " rows");
  if (sort_few_supports(args)) return sort_few(stream, args);
  CudaQueue& queue = queue_of(stream);
  auto* offsets = args.offsets.as<std::int32_t>();
  if (slots == 0) {
    check_cuda(cudaMemsetAsync(offsets, 0, args.offsets.bytes(), queue.stream()), "sort_rows");
    return;
  }
  auto* words = static_cast<std::uint32_t*>(
      queue.scratch(static_cast<std::size_t>(4 * slots + sort_counts(slots)) * 4));
  auto list = [&](std::int64_t at) {
    return KeyedPositions{words + at * slots,
                          reinterpret_cast<std::int32_t*>(words + (at + 1) * slots)};
  };
  const KeyedPositions first = list(0), other = list(2);
  const auto blocks = static_cast<unsigned>(ceil_div(slots, kThreads));
  key_slots_kernel<<<blocks, kThreads, 0, queue.stream()>>>(
      args.experts.as<std::int32_t>(), static_cast<int>(slots), static_cast<int>(args.first_expert),
      static_cast<int>(count), first);
  check_launch("sort_rows");
  const KeyedPositions sorted =
      sort_positions(queue, first, other, slots, count, words + 4 * slots);
  place_slots_kernel<<<blocks, kThreads, 0, queue.stream()>>>(
      sorted, static_cast<int>(slots), static_cast<int>(count), args.order.as<std::int32_t>(),
      args.place.as<std::int32_t>(), offsets);
  check_launch("sort_rows");
}

// Rows (or choices of a token) per thread, all loaded before the first is used: enough bytes in
// flight to saturate memory bandwidth.
constexpr int kRowsInFlight = 4;

// Rows in units of kRowsInFlight.
__device__ std::int64_t first_of_rows() { return first_row() * kRowsInFlight; }
__device__ std::int64_t step_of_rows() { return row_step() * kRowsInFlight; }
RowGrid grid_of_rows(std::int64_t rows, std::int64_t packs) {
  return row_grid(ceil_div(rows, kRowsInFlight), packs);
}

// Streaming store, which leaves the cache to data that is read again.
template <class T, int N>
__device__ void store_once(const Pack<T, N>& pack, T* to) {
  using Word = typename Pack<T, N>::Word;
#pragma unroll
  for (int w = 0; w < Pack<T, N>::kWords; ++w) {
    __stcs(reinterpret_cast<Word*>(to) + w, reinterpret_cast<const Word*>(pack.items)[w]);
  }
}

// Item i handles token i, whose row is read once and written to all its places, and rows [i topk,
// (i + 1) topk), which are cleared if they have no token.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const T* x, T* __restrict__ out, const std::int32_t* __restrict__ order,
                  const std::int32_t* __restrict__ place, std::int64_t tokens, std::int64_t rows,
                  std::int64_t columns, int topk, float empty) {
  const std::int64_t column = own_pack() * N;
  if (column >= columns) return;
  for (std::int64_t i = first_row(); i < tokens || i * topk < rows; i += row_step()) {
    Pack<T, N> pack, nothing;
    const bool token = i < tokens;
    if (token) pack.load(x + i * columns + column);
#pragma unroll
    for (int n = 0; n < N; ++n) nothing.set(n, empty);
    for (std::int64_t at = i * topk; at < (i + 1) * topk; ++at) {
      const int to = token ? place[at] : -1;
      if (to >= 0) store_once(pack, out + to * columns + column);
      if (at < rows && order[at] < 0) store_once(nothing, out + at * columns + column);
    }
  }
}

void permute_rows(const Stream& stream, const PermuteRowsArgs& args) {
  const std::int64_t tokens = args.x.shape[0], rows = args.rows.shape[0];
  const std::int64_t columns = args.rows.shape[1];
  BEV_CHECK(args.x.shape[1] == columns && args.x.dtype == args.rows.dtype,
            "gather_rows: ", args.x.shape, " to ", args.rows.shape);
  if (args.rows.numel() == 0) return;
  // Only bits are moved, so i32 is copied as f32.
  const bool whole = args.x.dtype == Dtype::kI32;
  const float empty = whole ? std::bit_cast<float>(std::int32_t{-1}) : 0.0f;
  visit_value(whole ? Dtype::kF32 : args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* x = static_cast<const T*>(args.x.data);
    T* out = static_cast<T*>(args.rows.data);
    by_pack<T>(aligned(x, out), columns, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const RowGrid grid = row_grid(std::max(tokens, ceil_div(rows, args.topk)), columns / N);
      gather_kernel<T, N><<<grid.blocks, grid.threads, 0, queue_of(stream).stream()>>>(
          x, out, args.order, args.place, tokens, rows, columns, static_cast<int>(args.topk),
          empty);
    });
  });
  check_launch("gather_rows");
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const T* rows, T* y, const std::int32_t* place, std::int64_t tokens,
               std::int64_t columns, int topk) {
  const std::int64_t column = own_pack() * N;
  if (column >= columns) return;
  for (std::int64_t t = first_row(); t < tokens; t += row_step()) {
    float sums[N] = {};
    for (int first = 0; first < topk; first += kRowsInFlight) {
      Pack<T, N> packs[kRowsInFlight];
      bool there[kRowsInFlight];
#pragma unroll
      for (int k = 0; k < kRowsInFlight; ++k) {
        const std::int64_t row = first + k < topk ? place[t * topk + first + k] : -1;
        there[k] = row >= 0;
        if (there[k]) packs[k].load(rows + row * columns + column);
      }
#pragma unroll
      for (int k = 0; k < kRowsInFlight; ++k) {
        if (!there[k]) continue;
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] += packs[k][i];
      }
    }
    Pack<T, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.set(i, sums[i]);
    out.store(y + t * columns + column);
  }
}

void unpermute_rows(const Stream& stream, const UnpermuteRowsArgs& args) {
  const std::int64_t tokens = args.y.shape[0], columns = args.y.shape[1];
  BEV_CHECK(args.rows.shape[1] == columns, "sum_rows: ", args.rows.shape, " to ", args.y.shape);
  if (args.y.numel() == 0) return;
  visit_value(args.y.dtype, [&](auto type) {
    using T = decltype(type);
    const T* rows = address<T>(args.rows);
    T* y = address<T>(args.y);
    by_pack<T>(aligned(rows, y), columns, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const RowGrid grid = row_grid(tokens, columns / N);
      sum_kernel<T, N><<<grid.blocks, grid.threads, 0, queue_of(stream).stream()>>>(
          rows, y, args.place, tokens, columns, static_cast<int>(args.topk));
    });
  });
  check_launch("sum_rows");
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    scale_rows_kernel(const T* x, T* y, const float* probs, const std::int32_t* order,
                      std::int64_t rows, std::int64_t columns) {
  const std::int64_t column = own_pack() * N;
  if (column >= columns) return;
  for (std::int64_t first = first_of_rows(); first < rows; first += step_of_rows()) {
    const int count = static_cast<int>(min(rows - first, std::int64_t{kRowsInFlight}));
    Pack<T, N> packs[kRowsInFlight];
    int slots[kRowsInFlight];
    float weights[kRowsInFlight];
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) slots[k] = k < count ? order[first + k] : -1;
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      if (slots[k] < 0) continue;
      weights[k] = probs[slots[k]];
      packs[k].load(x + (first + k) * columns + column);
    }
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
#pragma unroll
      for (int i = 0; i < N; ++i) packs[k].set(i, slots[k] < 0 ? 0.0f : weights[k] * packs[k][i]);
      if (k < count) packs[k].store(y + (first + k) * columns + column);
    }
  }
}

void scale_rows(const Stream& stream, const ScaleRowsArgs& args) {
  const std::int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  if (args.x.numel() == 0) return;
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* x = address<T>(args.x);
    T* y = address<T>(args.y);
    by_pack<T>(aligned(x, y), columns, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      const RowGrid grid = grid_of_rows(rows, columns / N);
      scale_rows_kernel<T, N><<<grid.blocks, grid.threads, 0, queue_of(stream).stream()>>>(
          x, y, address<float>(args.probs), args.order, rows, columns);
    });
  });
  check_launch("weigh_rows");
}

__global__ void __launch_bounds__(kThreads)
    clear_unplaced_kernel(float* dprobs, const std::int32_t* place, std::int64_t slots) {
  const std::int64_t s = own_pack();
  if (s < slots && place[s] < 0) dprobs[s] = 0;
}

// One warp per row.
template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    scale_rows_backward_kernel(const T* dy, const T* x, const float* probs, T* dx, float* dprobs,
                               const std::int32_t* order, std::int64_t rows, std::int64_t columns) {
  const std::int64_t r = own_pack() / kWarp;
  if (r >= rows) return;
  const int slot = order[r];
  const float weight = slot < 0 ? 0.0f : probs[slot];
  float dot = 0;
  for (std::int64_t column = threadIdx.x % kWarp * N; column < columns; column += kWarp * N) {
    Pack<T, N> gradient, value;
    gradient.load(dy + r * columns + column);
    value.load(x + r * columns + column);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      dot += gradient[i] * value[i];
      gradient.set(i, slot < 0 ? 0.0f : weight * gradient[i]);
    }
    gradient.store(dx + r * columns + column);
  }
  dot = reduce_warp<Sum>(dot);
  if (slot >= 0 && threadIdx.x % kWarp == 0) dprobs[slot] = dot;
}

void scale_rows_backward(const Stream& stream, const ScaleRowsBackwardArgs& args) {
  const std::int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  const std::int64_t slots = args.dprobs.numel();
  cudaStream_t queue = queue_of(stream).stream();
  if (slots == 0) return;
  clear_unplaced_kernel<<<static_cast<unsigned>(ceil_div(slots, kThreads)), kThreads, 0, queue>>>(
      address<float>(args.dprobs), args.place, slots);
  if (rows == 0) return;
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const T *dy = address<T>(args.dy), *x = address<T>(args.x);
    T* dx = address<T>(args.dx);
    by_pack<T>(aligned(dy, x, dx), columns, [&](auto pack) {
      constexpr int N = decltype(pack)::value;
      scale_rows_backward_kernel<T, N>
          <<<static_cast<unsigned>(ceil_div(rows, kThreads / kWarp)), kThreads, 0, queue>>>(
              dy, x, address<float>(args.probs), dx, address<float>(args.dprobs), args.order, rows,
              columns);
    });
  });
  check_launch("weigh_rows backward");
}

void grouped_gemm(const Stream& stream, const GroupedGemmArgs& args) {
  run_grouped_gemm(stream, args, GroupedGemm::kForward);
}
void grouped_dgrad(const Stream& stream, const GroupedGemmArgs& args) {
  run_grouped_gemm(stream, args, GroupedGemm::kDgrad);
}
void grouped_wgrad(const Stream& stream, const GroupedGemmArgs& args) {
  if (!args.bias.empty()) grouped_bias(stream, args);
  if (!args.w.empty()) run_grouped_gemm(stream, args, GroupedGemm::kWgrad);
}

}  // namespace
}  // namespace cuda

MoeKernels cuda_table(Family<MoeKernels>) {
  return {.dispatch = cuda::dispatch,
          .sort_rows = cuda::sort_rows,
          .fit_rows = cuda::fit_rows,
          .permute_rows = cuda::permute_rows,
          .unpermute_rows = cuda::unpermute_rows,
          .scale_rows = cuda::scale_rows,
          .scale_rows_backward = cuda::scale_rows_backward,
          .grouped_gemm = cuda::grouped_gemm,
          .grouped_dgrad = cuda::grouped_dgrad,
          .grouped_wgrad = cuda::grouped_wgrad};
}

MoeKernels cuda_exact_moe() {
  MoeKernels table = cuda_table(Family<MoeKernels>());
  table.grouped_gemm = cuda::run_grouped_exact;
  return table;
}

}  // namespace bev
