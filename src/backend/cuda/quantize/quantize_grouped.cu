// FP8 quantisation of expert rows (grouped). Row counts are only known on the device, so the grid
// has a block for every run that could exist.
#include "backend/cuda/quantize/quantize_launchers.h"
#include "backend/cuda/quantize/quantize_square.cuh"

namespace bev::cuda {

namespace {

constexpr int kSquares = 4;  // per block

struct Groups {
  const std::int32_t* offsets;
  int experts;
  const std::int32_t* order;  // null: rows are not gathered
  int topk;

  // Index of the expert's first run among all runs of the transpose.
  __device__ int first_run(int expert) const { return offsets[expert] / kSide + expert; }
  // The expert that owns a run: the last one that begins at or before it. Computed by the whole
  // block.
  __device__ int expert_of(int run) const {
    int begun = 0;
    for (int first = 0; first < experts; first += kThreads) {
      const int expert = first + static_cast<int>(threadIdx.x);
      begun += __syncthreads_count(expert < experts && first_run(expert) <= run);
    }
    return begun - 1;
  }
};

// Moves `at` to the rows of the block's run of the transpose; returns false if it has none.
__device__ bool enter_run(const Groups& groups, SquareTile& at) {
  const int run = static_cast<int>(blockIdx.x), expert = groups.expert_of(run);
  at.first_row = groups.offsets[expert] + (run - groups.first_run(expert)) * kSide;
  at.first_turned = static_cast<std::int64_t>(run) * kSide;
  at.rows = SquareTile::within(groups.offsets[expert + 1] - at.first_row);
  return at.rows > 0;
}

// Tokens of the thread's rows; one thread per row of the run looks them up.
__device__ void find_tokens(const Groups& groups, const SquareTile& at, int (&own)[kItems]) {
  __shared__ __align__(16) int tokens[kSide];
  if (threadIdx.x < at.rows) {
    tokens[threadIdx.x] = groups.order[at.first_row + threadIdx.x] / groups.topk;
  }
  __syncthreads();
  read_eight(tokens + at.down * kItems, own);
}

// Processes several squares of a run in sequence, since locating its rows is slow. Concurrent
// blocks have the same columns, so the k experts of a token find its elements in the cache.
template <class T, __nv_fp8_interpretation_t kKind, bool kGathers>
__global__ void __launch_bounds__(kThreads, at_once<T>(kGathers ? 4 : 3))
    quantize_grouped_kernel(const T* x, std::int64_t columns, Groups groups, QuantizeScale how,
                            QuantizeTo to) {
  __shared__ __align__(16) unsigned char turned[kSide * kSide];
  __shared__ SquareScales scales;
  if constexpr (kGathers) to.rows = nullptr;  // quantised once per token, in quantize_rows
  SquareTile at(0, columns);
  at.columns = kSide;
  if (!enter_run(groups, at)) return;
  alignas(16) int tokens[kItems];
  if constexpr (kGathers) find_tokens(groups, at, tokens);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * (kSquares * kSide);
  const std::int64_t end = min(begin + kSquares * kSide, columns);
#pragma unroll 1
  for (at.first_column = begin; at.first_column < end; at.first_column += kSide) {
    Numbers<T> numbers;
    if constexpr (kGathers) {
      numbers.load(at, [&](int i) {
        return x + static_cast<std::int64_t>(tokens[i]) * at.width + at.column();
      });
    } else {
      numbers.load(x, at);
    }
    quantize_numbers<T, ScaleBlock::kRun, kKind>(numbers, at, how, turned, scales, to);
    __syncthreads();
  }
}

template <class T, __nv_fp8_interpretation_t kKind>
void launch(CudaQueue& queue, const QuantizeArgs& args) {
  const QuantizeGroups& from = args.groups;
  const Groups groups{from.offsets, static_cast<int>(from.experts), from.order,
                      static_cast<int>(from.topk)};
  const std::int64_t columns = args.x.shape[1];
  const auto kernel = from.order != nullptr ? quantize_grouped_kernel<T, kKind, true>
                                            : quantize_grouped_kernel<T, kKind, false>;
  const dim3 blocks(static_cast<unsigned>(run_begin(from.rows, from.experts) / kSide),
                    static_cast<unsigned>(ceil_div(columns, kSquares * kSide)));
  kernel<<<blocks, kThreads, 0, queue.stream()>>>(address<T>(args.x), columns, groups,
                                                  quantize_scale(args), quantize_to(args));
  check_launch("quantize");
}

}  // namespace

void quantize_grouped(CudaQueue& queue, const QuantizeArgs& args) {
  if (args.groups.experts == 0 || args.groups.rows == 0) return;
  // With a gather, a token of several experts is quantised once by quantize_rows, not once per row.
  const bool gathers = args.groups.order != nullptr;
  if (gathers && !args.rows.empty()) quantize_rows(queue, args);
  if (gathers && args.columns.empty()) return;
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.format == Fp8Format::kE4m3) return launch<T, __NV_E4M3>(queue, args);
    launch<T, __NV_E5M2>(queue, args);
  });
}

}  // namespace bev::cuda
