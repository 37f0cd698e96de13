// Least digit first, 8 bits a pass. A pass counts the digits of each tile, adds the counts up in
// the order (digit, tile), and moves every key to its place, so that equal keys keep their order.
#include <utility>

#include "backend/cuda/grid.cuh"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/sort_positions.h"

namespace bev::cuda {

namespace {

constexpr int kTile = 1024, kDigits = 256, kDigitBits = 8;

// Counts [kDigits, tiles].
__global__ void __launch_bounds__(kTile)
    count_digits_kernel(const std::uint32_t* keys, int count, int shift, std::uint32_t* counts) {
  __shared__ std::uint32_t tile[kDigits];
  if (threadIdx.x < kDigits) tile[threadIdx.x] = 0;
  __syncthreads();
  const int i = blockIdx.x * kTile + threadIdx.x;
  if (i < count) atomicAdd(&tile[(keys[i] >> shift) % kDigits], 1u);
  __syncthreads();
  if (threadIdx.x < kDigits) counts[threadIdx.x * gridDim.x + blockIdx.x] = tile[threadIdx.x];
}

// counts[i] becomes the sum of all before it. One block; a thread takes neighbours.
__global__ void __launch_bounds__(kTile) add_counts_kernel(std::uint32_t* counts, int count) {
  __shared__ std::uint32_t shared[kTile / kWarp];
  const int each = (count + kTile - 1) / kTile;
  const int begin = min(count, static_cast<int>(threadIdx.x) * each),
            end = min(count, begin + each);
  std::uint32_t own = 0;
  for (int i = begin; i < end; ++i) own += counts[i];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto up_to_lane = [&](std::uint32_t sum) {
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const std::uint32_t other = __shfl_up_sync(0xffffffffu, sum, distance);
      if (lane >= distance) sum += other;
    }
    return sum;
  };
  const std::uint32_t in_warp = up_to_lane(own);
  if (lane == kWarp - 1) shared[warp] = in_warp;
  __syncthreads();
  if (warp == 0) shared[lane] = up_to_lane(shared[lane]);
  __syncthreads();
  std::uint32_t before = in_warp - own + (warp > 0 ? shared[warp - 1] : 0);
  for (int i = begin; i < end; ++i) {
    const std::uint32_t here = counts[i];
    counts[i] = before;
    before += here;
  }
}

__global__ void __launch_bounds__(kTile)
    move_kernel(KeyedPositions from, KeyedPositions to, int count, int shift,
                const std::uint32_t* begins) {
  __shared__ std::uint32_t before[kTile / kWarp][kDigits];  // in the tile's earlier warps
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

std::int64_t sort_counts(std::int64_t count) { return ceil_div(count, kTile) * kDigits; }

KeyedPositions sort_positions(CudaQueue& queue, KeyedPositions data, KeyedPositions other,
                              std::int64_t count, std::int64_t most, std::uint32_t* counts) {
  const auto tiles = static_cast<unsigned>(ceil_div(count, kTile));
  const int size = static_cast<int>(count);
  for (int shift = 0; shift == 0 || (most >> shift) > 0; shift += kDigitBits) {
    count_digits_kernel<<<tiles, kTile, 0, queue.stream()>>>(data.keys, size, shift, counts);
    add_counts_kernel<<<1, kTile, 0, queue.stream()>>>(counts, static_cast<int>(tiles) * kDigits);
    move_kernel<<<tiles, kTile, 0, queue.stream()>>>(data, other, size, shift, counts);
    check_launch("sort");
    std::swap(data, other);
  }
  return data;
}

}  // namespace bev::cuda
