// Rows of experts to 8-bit floats, gathered from their tokens on the way. Where an expert's rows
// end is known on the device only, so the grid has a block for every square that there might be.
#include "backend/cuda/quantize_parts.h"
#include "backend/cuda/quantize_square.cuh"

namespace bev::cuda {

namespace {

struct Groups {
  const std::int32_t* offsets;
  int experts;
  const std::int32_t* order;
  int topk;

  // Of the runs of all columns of the transpose.
  __device__ int first_run(int expert) const { return offsets[expert] / kSide + expert; }
  __device__ std::int64_t source(std::int64_t row) const {
    if (order == nullptr) return row;
    const std::int32_t slot = order[row];
    return slot < 0 ? -1 : slot / topk;
  }
};

// Moves to the rows that are the block's run of the transpose; false where there are none.
__device__ bool enter_run(const Groups& groups, Place& at) {
  const int run = static_cast<int>(blockIdx.y);
  int expert = 0, end = groups.experts;
  while (end - expert > 1) {
    const int middle = (expert + end) / 2;
    (groups.first_run(middle) <= run ? expert : end) = middle;
  }
  at.first_row = groups.offsets[expert] + (run - groups.first_run(expert)) * kSide;
  at.first_turned = static_cast<std::int64_t>(run) * kSide;
  at.rows = groups.offsets[expert + 1];
  return at.first_row < at.rows;
}

template <class T, __nv_fp8_interpretation_t kKind>
__global__ void __launch_bounds__(kThreads)
    quantize_grouped_kernel(const T* x, std::int64_t columns, Groups groups, QuantizeScale how,
                            QuantizeTo to) {
  __shared__ __align__(16) unsigned char turned[kSide * kSide];
  __shared__ float warp_largest[kWarps];
  Place at(0, columns);
  if (!enter_run(groups, at)) return;
  Numbers<T> numbers;
  numbers.load(x, at, [&](std::int64_t row) { return groups.source(row); });
  quantize_numbers<T, ScaleBlock::kRun, kKind>(numbers, at, how, turned, warp_largest, to);
}

template <class T, __nv_fp8_interpretation_t kKind>
void launch(CudaQueue& queue, const QuantizeArgs& args) {
  const QuantizeGroups& from = args.groups;
  const Groups groups{from.offsets, static_cast<int>(from.experts), from.order,
                      static_cast<int>(from.topk)};
  const std::int64_t columns = args.x.shape[1];
  quantize_grouped_kernel<T, kKind>
      <<<squares(run_begin(from.rows, from.experts), columns), kThreads, 0, queue.stream()>>>(
          address<T>(args.x), columns, groups, quantize_scale(args), quantize_to(args));
  check_launch("quantize");
}

}  // namespace

void quantize_grouped(CudaQueue& queue, const QuantizeArgs& args) {
  if (args.groups.experts == 0 || args.groups.rows == 0) return;
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.format == Fp8Format::kE4m3) return launch<T, __NV_E4M3>(queue, args);
    launch<T, __NV_E5M2>(queue, args);
  });
}

}  // namespace bev::cuda
