// Stable LSD radix sort, 8 bits per pass. A pass counts the digits of each tile, takes a prefix sum
// of the counts in the order (digit, tile), and scatters every key, so that equal keys keep their
// order.
#include <utility>

#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/moe/sort_positions.h"

namespace bev::cuda {

namespace {

constexpr int kTile = 1024, kDigits = 256, kDigitBits = 8;

// Counts of a pass: keys by digit and tile [kDigits, tiles], and by digit.
struct Counts {
  std::uint32_t *tiles, *digits;
};

__global__ void __launch_bounds__(kTile)
    count_digits_kernel(const std::uint32_t* keys, int count, int shift, Counts counts) {
  __shared__ std::uint32_t tile[kDigits];
  if (threadIdx.x < kDigits) tile[threadIdx.x] = 0;
  __syncthreads();
  const int i = blockIdx.x * kTile + threadIdx.x;
  if (i < count) atomicAdd(&tile[(keys[i] >> shift) % kDigits], 1u);
  __syncthreads();
  if (threadIdx.x >= kDigits) return;
  const std::uint32_t own = tile[threadIdx.x];
  counts.tiles[threadIdx.x * gridDim.x + blockIdx.x] = own;
  if (own > 0) atomicAdd(&counts.digits[threadIdx.x], own);
}

// Exclusive prefix sum of the tile counts in the order (digit, tile). One warp per digit.
__global__ void __launch_bounds__(kWarp) add_counts_kernel(Counts counts, int tiles) {
  const int digit = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x);
  std::uint32_t before = 0;
  for (int d = lane; d < digit; d += kWarp) before += counts.digits[d];
  before = reduce_warp<Sum>(before);
  std::uint32_t* own = counts.tiles + static_cast<std::int64_t>(digit) * tiles;
  for (int first = 0; first < tiles; first += kWarp) {
    const int i = first + lane;
    const std::uint32_t here = i < tiles ? own[i] : 0;
    std::uint32_t up_to = here;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const std::uint32_t other = __shfl_up_sync(0xffffffffu, up_to, distance);
      if (lane >= distance) up_to += other;
    }
    if (i < tiles) own[i] = before + up_to - here;
    before += __shfl_sync(0xffffffffu, up_to, kWarp - 1);
  }
}

__global__ void __launch_bounds__(kTile)
    move_kernel(KeyedPositions from, KeyedPositions to, int count, int shift,
                const std::uint32_t* begins) {
  __shared__ std::uint32_t before[kTile / kWarp][kDigits];  // in earlier warps of the tile
  for (int i = threadIdx.x; i < kTile / kWarp * kDigits; i += kTile) {
    before[i / kDigits][i % kDigits] = 0;
  }
  __syncthreads();
  const int i = blockIdx.x * kTile + threadIdx.x;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const bool inside = i < count;
  const std::uint32_t key = inside ? from.keys[i] : 0;
  const std::uint32_t digit = inside ? (key >> shift) % kDigits : kDigits;
  const std::uint32_t peers = __match_any_sync(0xffffffffu, digit);
  const int rank = __popc(peers & ((1u << lane) - 1));
  if (inside && rank == 0) before[warp][digit] = __popc(peers);
  __syncthreads();
  if (threadIdx.x < kDigits) {
    std::uint32_t sum = 0;
    for (int w = 0; w < kTile / kWarp; ++w) {
      const std::uint32_t here = before[w][threadIdx.x];
      before[w][threadIdx.x] = sum;
      sum += here;
    }
  }
  __syncthreads();
  if (!inside) return;
  const std::uint32_t place = begins[digit * gridDim.x + blockIdx.x] + before[warp][digit] + rank;
  to.keys[place] = key;
  to.positions[place] = from.positions[i];
}

}  // namespace

std::int64_t sort_counts(std::int64_t count) { return (ceil_div(count, kTile) + 1) * kDigits; }

KeyedPositions sort_positions(CudaQueue& queue, KeyedPositions data, KeyedPositions other,
                              std::int64_t count, std::int64_t most, std::uint32_t* counts) {
  const auto tiles = static_cast<unsigned>(ceil_div(count, kTile));
  const int size = static_cast<int>(count);
  const Counts sums{counts + kDigits, counts};
  for (int shift = 0; shift == 0 || (most >> shift) > 0; shift += kDigitBits) {
    check_cuda(cudaMemsetAsync(sums.digits, 0, kDigits * sizeof(std::uint32_t), queue.stream()),
               "sort");
    count_digits_kernel<<<tiles, kTile, 0, queue.stream()>>>(data.keys, size, shift, sums);
    add_counts_kernel<<<kDigits, kWarp, 0, queue.stream()>>>(sums, static_cast<int>(tiles));
    move_kernel<<<tiles, kTile, 0, queue.stream()>>>(data, other, size, shift, sums.tiles);
    check_launch("sort");
    std::swap(data, other);
  }
  return data;
}

}  // namespace bev::cuda
