// Reductions over a warp or over a row of threads, in an order that depends only on their number.
#pragma once

#include <cstdint>

namespace bev::cuda {

constexpr int kWarp = 32;

struct Sum {
  template <class A>
  __device__ static A join(A a, A b) {
    return a + b;
  }
  static constexpr float kNothing = 0;
};
// NaN is ignored unless both are NaN.
struct Max {
  __device__ static float join(float a, float b) { return fmaxf(a, b); }
  static constexpr float kNothing = -__builtin_inff();
};

// Over groups of kLanes lanes of a warp; every lane gets the result. All lanes must take part.
template <class Join, int kLanes = kWarp, class A>
__device__ A reduce_warp(A value) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    value = Join::join(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// Reduces over the threads with equal threadIdx.y; blockDim.x must be a multiple of the warp size.
// All threads of the block must call it, with a `shared` array that no earlier call still reads:
// two calls need two arrays or a barrier in between. shared has one element per warp of the block.
template <class Join, class A>
__device__ A reduce_row(A value, A* shared) {
  value = reduce_warp<Join>(value);
  const int warps = blockDim.x / kWarp;
  if (warps == 1) return value;
  A* mine = shared + threadIdx.y * warps;
  if (threadIdx.x % kWarp == 0) mine[threadIdx.x / kWarp] = value;
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  return reduce_warp<Join>(lane < warps ? mine[lane] : static_cast<A>(Join::kNothing));
}

}  // namespace bev::cuda
