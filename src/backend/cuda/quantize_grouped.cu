// Rows of experts to 8-bit floats. Where an expert's rows end is known on the device only, so the
// grid has blocks for all runs that there might be.
#include "backend/cuda/quantize_parts.h"
#include "backend/cuda/quantize_square.cuh"

namespace bev::cuda {

namespace {

constexpr int kSquares = 4;  // of a block

struct Groups {
  const std::int32_t* offsets;
  int experts;
  const std::int32_t* order;  // null: rows are as they are
  int topk;

  // Of the runs of all columns of the transpose.
  __device__ int first_run(int expert) const { return offsets[expert] / kSide + expert; }
  // The expert that has a run, found by the block: the last that begins with it or before.
  __device__ int expert_of(int run) const {
    int begun = 0;
    for (int first = 0; first < experts; first += kThreads) {
      const int expert = first + static_cast<int>(threadIdx.x);
      begun += __syncthreads_count(expert < experts && first_run(expert) <= run);
    }
    return begun - 1;
  }
};

// Moves to the rows that are the block's run of the transpose; false where there are none.
__device__ bool enter_run(const Groups& groups, Place& at) {
  const int run = static_cast<int>(blockIdx.x), expert = groups.expert_of(run);
  at.first_row = groups.offsets[expert] + (run - groups.first_run(expert)) * kSide;
  at.first_turned = static_cast<std::int64_t>(run) * kSide;
  at.rows = Place::within(groups.offsets[expert + 1] - at.first_row);
  return at.rows > 0;
}

// The tokens that a thread's rows are of; a thread for each row of the run finds it.
__device__ void find_tokens(const Groups& groups, const Place& at, int (&own)[kItems]) {
  __shared__ __align__(16) int tokens[kSide];
  if (threadIdx.x < at.rows) {
    tokens[threadIdx.x] = groups.order[at.first_row + threadIdx.x] / groups.topk;
  }
  __syncthreads();
  read_eight(tokens + at.down * kItems, own);
}

// A few squares of a run, one after the other, since finding out which rows it has takes long.
// Blocks that run at the same time have the same columns: k experts that gather a token's find them
// in the cache.
template <class T, __nv_fp8_interpretation_t kKind, bool kGathers>
__global__ void __launch_bounds__(kThreads, at_once<T>(kGathers ? 4 : 3))
    quantize_grouped_kernel(const T* x, std::int64_t columns, Groups groups, QuantizeScale how,
                            QuantizeTo to) {
  __shared__ __align__(16) unsigned char turned[kSide * kSide];
  __shared__ SquareScales scales;
  if constexpr (kGathers) to.rows = nullptr;  // rounded token by token
  Place at(0, columns);
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
  // A token that several experts have is rounded once, so not square by square of their rows.
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
