// Sums and maxima over the threads of a warp or of a row of threads, in an order fixed by their
// number.
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
// Numbers win over NaN.
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

// Over the threads of equal threadIdx.y, blockDim.x of them, a multiple of a warp. All threads of
// the block must call it, each time with a `shared` that no earlier call still reads: two calls
// need two arrays or a barrier between them. shared: one element for each warp of the block.
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
