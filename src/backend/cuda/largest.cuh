// The largest number of a tensor, found by many blocks. The order in which they come does not
// matter.
#pragma once

#include "backend/cuda/reduce.cuh"

namespace bev::cuda {

// |x|, 0 for NaN.
__device__ inline float size_of_value(float x) { return isnan(x) ? 0 : fabsf(x); }

// *largest = max(*largest, value) for value >= 0; floats of that sign are ordered as their bits
// are. Most come too late to change it, and are spared the atomic.
__device__ inline void raise_to(float* largest, float value) {
  if (value > *static_cast<volatile float*>(largest)) {
    atomicMax(reinterpret_cast<int*>(largest), __float_as_int(value));
  }
}

// The same with the values of a warp. All its threads must call it; `lane` is the thread's.
__device__ inline void raise_by_warp(float* largest, float value, int lane) {
  value = reduce_warp<Max>(value);
  if (lane == 0) raise_to(largest, value);
}

}  // namespace bev::cuda
