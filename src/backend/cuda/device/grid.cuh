// Grids for elementwise kernels: over flat ranges, and over matrices by rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/device/launch_overlap.cuh"
#include "base/divide.h"

namespace bev::cuda {

constexpr int kThreads = 256;

// Packs per thread, all loaded before the first is stored: enough bytes in flight to saturate
// memory bandwidth.
constexpr int kPacksInFlight = 2;

// Work::read(element) -> Work::Values and Work::write(element, values) handle kCount consecutive
// elements. A Work with kCount 1 handles the tail of a range.
template <class Work>
__global__ void __launch_bounds__(kThreads) flat_kernel(Work work, std::int64_t packs) {
  join_kernel_chain();
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads * kPacksInFlight) + threadIdx.x;
  typename Work::Values values[kPacksInFlight];
#pragma unroll
  for (int k = 0; k < kPacksInFlight; ++k) {
    const std::int64_t pack = first + k * kThreads;
    if (pack < packs) values[k] = work.read(pack * Work::kCount);
  }
#pragma unroll
  for (int k = 0; k < kPacksInFlight; ++k) {
    const std::int64_t pack = first + k * kThreads;
    if (pack < packs) work.write(pack * Work::kCount, values[k]);
  }
}

template <class Work>
void launch_flat(CudaQueue& queue, const char* name, const Work& work, std::int64_t packs) {
  const std::int64_t blocks = ceil_div(packs, kThreads * kPacksInFlight);
  if (blocks == 0) return;
  launch_overlapped(queue, name, flat_kernel<Work>, static_cast<unsigned>(blocks), kThreads, 0,
                    work, packs);
}

// Grid over a matrix: x over the packs of a row, y over rows (grid-stride).
struct RowGrid {
  dim3 blocks, threads;
};
inline RowGrid row_grid(std::int64_t rows, std::int64_t packs) {
  unsigned wide = 1;
  while (wide < kThreads && wide < packs) wide *= 2;
  const unsigned high = kThreads / wide;
  constexpr std::int64_t kMostBlocks = 65535;
  return {dim3(static_cast<unsigned>(ceil_div(packs, wide)),
               static_cast<unsigned>(std::min(ceil_div(rows, high), kMostBlocks))),
          dim3(wide, high)};
}
__device__ inline std::int64_t first_row() {
  return static_cast<std::int64_t>(blockIdx.y) * blockDim.y + threadIdx.y;
}
__device__ inline std::int64_t row_step() {
  return static_cast<std::int64_t>(gridDim.y) * blockDim.y;
}
__device__ inline std::int64_t own_pack() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

}  // namespace bev::cuda
