// Products with the sigmoid of a gate, forward and backward; memory bound.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/elementwise/sigmoid_gate.h"

namespace bev::cuda {

namespace {

__device__ inline float logistic(float x) { return 1.0f / (1.0f + expf(-x)); }

template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const T* x, const T* gate, T* y, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = own_pack(); i < count; i += step) {
    y[i] = narrow<T>(widen(x[i]) * logistic(widen(gate[i])));
  }
}

// dx may alias dy.
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const T* dy, const T* x, const T* gate, T* dx, T* dgate, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = own_pack(); i < count; i += step) {
    const float open = logistic(widen(gate[i])), grad = widen(dy[i]);
    dgate[i] = narrow<T>(grad * widen(x[i]) * open * (1.0f - open));
    dx[i] = narrow<T>(grad * open);
  }
}

unsigned blocks_of(std::int64_t count) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(count, 4 * kThreads), 1, 65535));
}

}  // namespace

void sigmoid_gate(const Stream& stream, const SigmoidGateArgs& args) {
  const std::int64_t count = args.x.numel();
  if (count == 0) return;
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    forward_kernel<T><<<blocks_of(count), kThreads, 0, queue_of(stream).stream()>>>(
        address<T>(args.x), address<T>(args.gate), address<T>(args.y), count);
  });
  check_launch("sigmoid_gate");
}

void sigmoid_gate_backward(const Stream& stream, const SigmoidGateBackwardArgs& args) {
  const std::int64_t count = args.x.numel();
  if (count == 0) return;
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    backward_kernel<T><<<blocks_of(count), kThreads, 0, queue_of(stream).stream()>>>(
        address<T>(args.dy), address<T>(args.x), address<T>(args.gate), address<T>(args.dx),
        address<T>(args.dgate), count);
  });
  check_launch("sigmoid_gate backward");
}

}  // namespace bev::cuda
