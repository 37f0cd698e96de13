// amax: the maximum of |x| over a tensor, by many blocks with an atomic maximum, so the result does
// not depend on their order.
#pragma once

#include <cstdint>

#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"

namespace bev::cuda {

// max(most, |x|); NaN is ignored.
__device__ inline float larger(float most, float x) { return fmaxf(most, fabsf(x)); }

// Maximum of |x| in a pack.
template <class T, int N>
__device__ float pack_amax(const Pack<T, N>& pack) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    // In pairs: a word with both sign bits cleared holds two magnitudes.
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

// *largest = max(*largest, value) for value >= 0; non-negative floats order like their bits. Most
// values do not exceed *largest any more, and skip the atomic.
__device__ inline void raise_amax(float* amax, float value) {
  if (value > *static_cast<volatile float*>(amax)) {
    atomicMax(reinterpret_cast<int*>(amax), __float_as_int(value));
  }
}

// Same for the values of a block; all its threads must call it, once. Only one of them reads
// *largest: with one read per warp, half a million warps would serialise on that address.
__device__ inline void raise_amax_by_block(float* amax, float value) {
  constexpr int kMostWarps = 32;
  __shared__ unsigned warp_amax[kMostWarps];
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int warps = static_cast<int>(blockDim.x * blockDim.y) / kWarp;
  const unsigned own = __reduce_max_sync(0xffffffffu, __float_as_uint(value));
  if (thread % kWarp == 0) warp_amax[thread / kWarp] = own;
  __syncthreads();
  if (thread >= kWarp) return;
  const unsigned most = __reduce_max_sync(0xffffffffu, thread < warps ? warp_amax[thread] : 0u);
  if (thread == 0) raise_amax(amax, __uint_as_float(most));
}

}  // namespace bev::cuda
