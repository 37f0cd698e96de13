// Fits the permuted rows of experts into a buffer of fixed size.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/moe/moe_launchers.h"
#include "kernels/moe.h"

namespace bev::cuda {

namespace {

// One thread per sorted row.
__global__ void __launch_bounds__(kThreads)
    fit_rows_kernel(const std::int32_t* order, std::int32_t* place, const std::int32_t* offsets,
                    std::int32_t* fitted, int rows, int count, int room, int block) {
  const int r = static_cast<int>(own_pack());
  if (r >= rows || r >= offsets[count]) return;
  int to = r, end = room;
  if (block > 0) {
    int expert = 0;  // the last one whose rows begin at or before r
    for (int above = count; above - expert > 1;) {
      const int middle = (expert + above) / 2;
      (offsets[middle] <= r ? expert : above) = middle;
    }
    to = expert * block + r - offsets[expert];
    end = (expert + 1) * block;
  }
  const int slot = order[r];
  place[slot] = to < end ? to : -1;
  if (to < end) fitted[to] = slot;
}

// Runs as one warp.
__global__ void count_lost_kernel(std::int32_t* offsets, int count, int room, int block,
                                  double* lost) {
  int sum = 0;
  for (int e = static_cast<int>(threadIdx.x); e < count && block > 0; e += kWarp) {
    sum += max(offsets[e + 1] - offsets[e] - block, 0);
  }
  for (int i = kWarp / 2; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffff, sum, i);
  if (block == 0) {
    sum = max(offsets[count] - room, 0);
    __syncwarp();
    for (int e = static_cast<int>(threadIdx.x); e <= count; e += kWarp) {
      offsets[e] = min(offsets[e], room);
    }
  }
  if (threadIdx.x == 0) *lost += static_cast<double>(sum);
}

}  // namespace

void fit_rows(const Stream& stream, const FitRowsArgs& args) {
  const std::int64_t rows = args.order.numel(), count = args.offsets.numel() - 1;
  const std::int64_t room = args.fitted.numel();
  BEV_CHECK(args.block == 0 || room == count * args.block, "fit_rows: ", room, " rows for ", count,
            " blocks of ", args.block);
  CudaQueue& queue = queue_of(stream);
  check_cuda(cudaMemsetAsync(args.fitted.data, 0xff, args.fitted.bytes(), queue.stream()),
             "fit_rows");
  auto* offsets = args.offsets.as<std::int32_t>();
  if (rows > 0) {
    fit_rows_kernel<<<static_cast<unsigned>(ceil_div(rows, kThreads)), kThreads, 0,
                      queue.stream()>>>(
        args.order.as<std::int32_t>(), args.place.as<std::int32_t>(), offsets,
        args.fitted.as<std::int32_t>(), static_cast<int>(rows), static_cast<int>(count),
        static_cast<int>(room), static_cast<int>(args.block));
    check_launch("fit_rows");
  }
  count_lost_kernel<<<1, kWarp, 0, queue.stream()>>>(offsets, static_cast<int>(count),
                                                     static_cast<int>(room),
                                                     static_cast<int>(args.block), args.lost);
  check_launch("fit_rows");
}

}  // namespace bev::cuda
