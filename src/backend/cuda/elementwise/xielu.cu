// xIELU, an activation with learned coefficients, forward and backward.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/elementwise/column_sums.h"
#include "backend/cuda/elementwise/xielu.h"

namespace bev::cuda {

namespace {

template <class T>
struct Coefficients {
  const T *alpha_p, *alpha_n, *beta, *eps;
};

__device__ inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
__device__ inline float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

struct Xielu {
  float beta, eps, p, n;

  template <class T>
  __device__ explicit Xielu(const Coefficients<T>& from)
      : beta(widen(*from.beta)),
        eps(widen(*from.eps)),
        p(softplus(widen(*from.alpha_p))),
        n(beta + softplus(widen(*from.alpha_n))) {}
  __device__ float bend(float x) const { return expm1f(fminf(x, eps)) - x; }
  __device__ float value(float x) const {
    return x > 0.0f ? p * x * x + beta * x : n * bend(x) + beta * x;
  }
  __device__ float slope(float x) const {
    if (x > 0.0f) return 2.0f * p * x + beta;
    return n * ((x < eps ? expf(x) : 0.0f) - 1.0f) + beta;
  }
};

// Memory bound: reads x, writes y.
template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const T* x, T* y, std::int64_t count, Coefficients<T> coefficients) {
  const Xielu kind(coefficients);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = own_pack(); i < count; i += step) {
    y[i] = narrow<T>(kind.value(widen(x[i])));
  }
}

// Memory bound: reads dy and x, writes dx, which may alias dy, and a pair of sums per block.
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const T* dy, const T* x, T* dx, std::int64_t count,
                    Coefficients<T> coefficients, float* p_partials, float* n_partials) {
  __shared__ float shared[2][kThreads / kWarp];
  const Xielu kind(coefficients);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  float sums[2] = {0, 0};
  for (std::int64_t i = own_pack(); i < count; i += step) {
    const float at = widen(x[i]), grad = widen(dy[i]);
    if (at > 0.0f) {
      sums[0] += grad * at * at;
    } else {
      sums[1] += grad * kind.bend(at);
    }
    dx[i] = narrow<T>(grad * kind.slope(at));
  }
  for (int part = 0; part < 2; ++part) {
    const float total = reduce_warp<Sum>(sums[part]);
    if (threadIdx.x % kWarp == 0) shared[part][threadIdx.x / kWarp] = total;
  }
  __syncthreads();
  if (threadIdx.x >= 2) return;
  float total = 0;
  for (int warp = 0; warp < kThreads / kWarp; ++warp) total += shared[threadIdx.x][warp];
  const float slope =
      logistic(widen(threadIdx.x == 0 ? *coefficients.alpha_p : *coefficients.alpha_n));
  (threadIdx.x == 0 ? p_partials : n_partials)[blockIdx.x] = total * slope;
}

template <class T>
Coefficients<T> coefficients_of(const XieluCoefficients& from) {
  return {address<T>(from.alpha_p), address<T>(from.alpha_n), address<T>(from.beta),
          address<T>(from.eps)};
}

// Depends on the shape alone, and so does the order of the sums.
unsigned blocks_of(std::int64_t count) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(ceil_div(count, 4 * kThreads), 1, kMostPartialBlocks));
}

template <class T>
void run_backward(CudaQueue& queue, const XieluBackwardArgs& args) {
  const std::int64_t count = args.x.numel();
  const unsigned blocks = blocks_of(count);
  float* partials = static_cast<float*>(queue.scratch(2 * blocks * sizeof(float)));
  backward_kernel<T><<<blocks, kThreads, 0, queue.stream()>>>(
      address<T>(args.dy), address<T>(args.x), address<T>(args.dx), count,
      coefficients_of<T>(args.coefficients), partials, partials + blocks);
  check_launch("xielu backward");
  add_partial_sums(queue, partials, blocks, 1, args.p_beta, args.dalpha_p);
  add_partial_sums(queue, partials + blocks, blocks, 1, args.n_beta, args.dalpha_n);
}

}  // namespace

void xielu_forward(const Stream& stream, const XieluForwardArgs& args) {
  const std::int64_t count = args.x.numel();
  if (count == 0) return;
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    forward_kernel<T><<<blocks_of(count), kThreads, 0, queue_of(stream).stream()>>>(
        address<T>(args.x), address<T>(args.y), count, coefficients_of<T>(args.coefficients));
  });
  check_launch("xielu forward");
}

void xielu_backward(const Stream& stream, const XieluBackwardArgs& args) {
  visit_value(args.x.dtype,
              [&](auto type) { run_backward<decltype(type)>(queue_of(stream), args); });
}

}  // namespace bev::cuda
