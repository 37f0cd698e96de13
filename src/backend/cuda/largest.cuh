// The largest number of a tensor, found by many blocks. The order in which they come does not
// matter.
#pragma once

#include <cstdint>

#include "backend/cuda/reduce.cuh"
#include "backend/cuda/values.cuh"

namespace bev::cuda {

// The larger of `most` and |x|; NaN does not count.
__device__ inline float larger(float most, float x) { return fmaxf(most, fabsf(x)); }

// The largest |x| of a pack.
template <class T, int N>
__device__ float largest_size(const Pack<T, N>& pack) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    // Two at a time: without its sign a pair is two sizes.
    Pack<T, N> sizes;
    auto* words = reinterpret_cast<std::uint32_t*>(sizes.items);
#pragma unroll
    for (int w = 0; w < N / 2; ++w) {
      words[w] = reinterpret_cast<const std::uint32_t*>(pack.items)[w] & 0x7fff7fffu;
    }
    return fmaxf(0.0f, largest_of(sizes));
  } else {
    float most = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) most = larger(most, pack[i]);
    return most;
  }
}

// *largest = max(*largest, value) for value >= 0; floats of that sign are ordered as their bits
// are. Most come too late to change it, and are spared the atomic.
__device__ inline void raise_to(float* largest, float value) {
  if (value > *static_cast<volatile float*>(largest)) {
    atomicMax(reinterpret_cast<int*>(largest), __float_as_int(value));
  }
}

// The same with the values of a block, all threads of which must call it, once. One of them looks
// at *largest: if every warp did, a kernel of half a million of them would queue for that one
// place.
__device__ inline void raise_by_block(float* largest, float value) {
  constexpr int kMostWarps = 32;
  __shared__ unsigned warp_largest[kMostWarps];
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int warps = static_cast<int>(blockDim.x * blockDim.y) / kWarp;
  const unsigned own = __reduce_max_sync(0xffffffffu, __float_as_uint(value));
  if (thread % kWarp == 0) warp_largest[thread / kWarp] = own;
  __syncthreads();
  if (thread >= kWarp) return;
  const unsigned most = __reduce_max_sync(0xffffffffu, thread < warps ? warp_largest[thread] : 0u);
  if (thread == 0) raise_to(largest, __uint_as_float(most));
}

}  // namespace bev::cuda
