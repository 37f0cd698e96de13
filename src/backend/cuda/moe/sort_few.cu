// Sorting of few rows by expert, as in decoding: a single block counts, for each slot, the slots
// that precede it.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/moe/moe_launchers.h"
#include "kernels/moe.h"

namespace bev::cuda {

namespace {

constexpr int kMostSlots = 128;

__global__ void __launch_bounds__(kThreads)
    sort_few_kernel(const std::int32_t* experts, int slots, int first_expert, int count,
                    std::int32_t* order, std::int32_t* place, std::int32_t* offsets) {
  __shared__ int keys[kMostSlots];  // local expert; `count` for other experts and for -1
  const int slot = static_cast<int>(threadIdx.x);
  int key = count;
  if (slot < slots) {
    const int expert = experts[slot] - first_expert;
    if (experts[slot] >= 0 && expert >= 0 && expert < count) key = expert;
    keys[slot] = key;
  }
  __syncthreads();
  if (slot < slots) {
    int row = 0;
    for (int i = 0; i < slots; ++i) row += keys[i] < key || (keys[i] == key && i < slot);
    order[row] = key < count ? slot : -1;
    place[slot] = key < count ? row : -1;
  }
  for (int expert = slot; expert <= count; expert += static_cast<int>(blockDim.x)) {
    int before = 0;
    for (int i = 0; i < slots; ++i) before += keys[i] < expert;
    offsets[expert] = before;
  }
}

}  // namespace

bool sort_few_supports(const SortRowsArgs& args) {
  return args.experts.numel() > 0 && args.experts.numel() <= kMostSlots;
}

void sort_few(const Stream& stream, const SortRowsArgs& args) {
  const auto slots = static_cast<int>(args.experts.numel());
  const auto count = static_cast<int>(args.offsets.numel() - 1);
  sort_few_kernel<<<1, kThreads, 0, queue_of(stream).stream()>>>(
      args.experts.as<std::int32_t>(), slots, static_cast<int>(args.first_expert), count,
      args.order.as<std::int32_t>(), args.place.as<std::int32_t>(),
      args.offsets.as<std::int32_t>());
  check_launch("sort_rows");
}

}  // namespace bev::cuda
