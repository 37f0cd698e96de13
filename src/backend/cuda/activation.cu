#include "backend/cuda/grid.cuh"
#include "backend/cuda/largest.cuh"
#include "backend/cuda/tables.h"
#include "backend/cuda/values.cuh"
#include "kernels/activation.h"

namespace bev {

namespace cuda {
namespace {

// __fdividef is 0 for the largest denominators, which is right here.
__device__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// d/dx (x sigmoid(u)) for u(x) with slope du: s + x s (1 - s) du, 1 - s without cancellation.
__device__ float sigmoid_slope(float x, float u, float du) {
  const float e = __expf(u < -80 ? 80.0f : -u), s = __fdividef(1.0f, 1.0f + e);
  return s * (1 + x * (e * s) * du);
}

// The normal distribution's integral up to x, given bell = exp(-x^2 / 2); the polynomial is that of
// the CPU's kernel, where it is explained.
__device__ float normal_integral(float x, float bell) {
  const float t = __fdividef(1.0f, 1.0f + 0.38f * fabsf(x));
  float p = 0.0249339137f;
  p = p * t - 0.152605027f;
  p = p * t + 0.376211166f;
  p = p * t - 0.444195718f;
  p = p * t + 0.217855707f;
  p = p * t - 0.0597784668f;
  p = p * t + 0.107717007f;
  p = p * t + 0.12638928f;
  p = p * t + 0.151884779f;
  p = p * t + 0.151587367f;
  const float tail = p * t * bell;
  return x < 0 ? tail : 1 - tail;
}

// Each kind: value(x) and its derivative slope(x).
struct Gelu {
  __device__ static float bell(float x) { return __expf(-0.5f * x * x); }
  __device__ static float value(float x) { return x * normal_integral(x, bell(x)); }
  __device__ static float slope(float x) {
    constexpr float kInverseRoot = 0.398942280401432678f;  // 1 / sqrt(2 pi)
    return normal_integral(x, bell(x)) + x * kInverseRoot * bell(x);
  }
};
// (1 + tanh(u)) / 2 is sigmoid(2u), which loses no digits where tanh is near -1.
struct GeluTanh {
  static constexpr float kFactor = 0.797884560802865356f;  // sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;
  __device__ static float inner(float x) { return 2 * kFactor * (x + kCubic * x * x * x); }
  __device__ static float value(float x) { return x * sigmoid(inner(x)); }
  __device__ static float slope(float x) {
    return sigmoid_slope(x, inner(x), 2 * kFactor * (1 + 3 * kCubic * x * x));
  }
};
struct Silu {
  __device__ static float value(float x) { return x * sigmoid(x); }
  __device__ static float slope(float x) { return sigmoid_slope(x, x, 1); }
};
// NaN stays NaN.
struct Relu {
  __device__ static float value(float x) { return x < 0 ? 0 : x; }
  __device__ static float slope(float x) { return x > 0 ? 1 : 0; }
};
struct SquaredRelu {
  __device__ static float value(float x) { return x < 0 ? 0 : x * x; }
  __device__ static float slope(float x) { return x < 0 ? 0 : 2 * x; }
};
struct QuickGelu {
  static constexpr float kFactor = 1.702f;
  __device__ static float value(float x) { return x * sigmoid(kFactor * x); }
  __device__ static float slope(float x) { return sigmoid_slope(x, kFactor * x, kFactor); }
};

// Calls body(Kind{}). The branch is the same for all threads and is taken once for a pack, so that
// kinds need no kernels of their own.
template <class Body>
__device__ void visit_kind(Activation kind, const Body& body) {
  switch (kind) {
    case Activation::kGelu:
      return body(Gelu{});
    case Activation::kGeluTanh:
      return body(GeluTanh{});
    case Activation::kSilu:
      return body(Silu{});
    case Activation::kRelu:
      return body(Relu{});
    case Activation::kSquaredRelu:
      return body(SquaredRelu{});
    case Activation::kQuickGelu:
      return body(QuickGelu{});
  }
}

// How gate and up are limited; `on` says whether they are.
struct Limits {
  bool on;
  float clamp, offset;

  __device__ float gate(float x) const { return on && x > clamp ? clamp : x; }
  __device__ float up(float x) const {
    if (on) x = x > clamp ? clamp : x < -clamp ? -clamp : x;
    return x + offset;
  }
  __device__ bool passes_gate(float x) const { return !on || x <= clamp; }
  __device__ bool passes_up(float x) const { return !on || (x >= -clamp && x <= clamp); }
};
Limits limits_of(const GateLimits& limits) {
  return {limits.clamp > 0, static_cast<float>(limits.clamp), static_cast<float>(limits.offset)};
}

template <class T, int N>
__device__ float largest_size(const Pack<T, N>& pack) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) largest = fmaxf(largest, size_of_value(pack[i]));
  return largest;
}

__device__ int own_lane() {
  return static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x) % kWarp;
}

// Plain: x read, y written. Gated: two elements of x read for one of y.
template <class T, int N, bool kGated>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const T* x, T* y, std::int64_t rows, std::int64_t packs, Activation kind,
                   Limits limits, float* amax) {
  const std::int64_t pack = own_pack();
  float largest = 0;
  for (std::int64_t r = first_row(); r < rows && pack < packs; r += row_step()) {
    const T* from = x + (r * packs * (kGated ? 2 : 1) + pack) * N;
    Pack<T, N> gate, up;
    gate.load(from);
    if constexpr (kGated) up.load(from + packs * N);
    visit_kind(kind, [&](auto function) {
      using Kind = decltype(function);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if constexpr (kGated) {
          gate.set(i, Kind::value(limits.gate(gate[i])) * limits.up(up[i]));
        } else {
          gate.set(i, Kind::value(gate[i]));
        }
      }
    });
    gate.store(y + (r * packs + pack) * N);
    if (amax != nullptr) largest = fmaxf(largest, largest_size(gate));
  }
  if (amax != nullptr) raise_by_warp(amax, largest, own_lane());
}

// Plain: dy and x read, dx written. Gated: dy, gate and up read, the gradients of both written.
template <class T, int N, bool kGated>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const T* dy, const T* x, T* dx, std::int64_t rows, std::int64_t packs,
                    Activation kind, Limits limits, float* amax) {
  const std::int64_t pack = own_pack();
  float largest = 0;
  for (std::int64_t r = first_row(); r < rows && pack < packs; r += row_step()) {
    const std::int64_t at = (r * packs * (kGated ? 2 : 1) + pack) * N;
    Pack<T, N> grad, gate, up;
    grad.load(dy + (r * packs + pack) * N);
    gate.load(x + at);
    if constexpr (kGated) up.load(x + at + packs * N);
    visit_kind(kind, [&](auto function) {
      using Kind = decltype(function);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float g = grad[i], before = gate[i];
        if constexpr (kGated) {
          const float limited = limits.gate(before), u = up[i];
          gate.set(i, limits.passes_gate(before) ? Kind::slope(limited) * g * limits.up(u) : 0);
          up.set(i, limits.passes_up(u) ? Kind::value(limited) * g : 0);
        } else {
          gate.set(i, Kind::slope(before) * g);
        }
      }
    });
    gate.store(dx + at);
    if constexpr (kGated) up.store(dx + at + packs * N);
    if (amax == nullptr) continue;
    largest = fmaxf(largest, largest_size(gate));
    if constexpr (kGated) largest = fmaxf(largest, largest_size(up));
  }
  if (amax != nullptr) raise_by_warp(amax, largest, own_lane());
}

// A plain activation is one long row.
struct Sizes {
  std::int64_t rows, columns;
};
Sizes sizes_of(const View& y, bool gated) {
  return gated ? Sizes{y.shape[0], y.shape.row_numel()} : Sizes{1, y.numel()};
}

template <class T, int N>
void launch_forward(CudaQueue& queue, const ActivationForwardArgs& args, Sizes sizes) {
  const std::int64_t packs = sizes.columns / N;
  const RowGrid grid = row_grid(sizes.rows, packs);
  const auto kernel = args.gated ? forward_kernel<T, N, true> : forward_kernel<T, N, false>;
  kernel<<<grid.blocks, grid.threads, 0, queue.stream()>>>(address<T>(args.x), address<T>(args.y),
                                                           sizes.rows, packs, args.kind,
                                                           limits_of(args.limits), args.amax);
  check_launch("activation forward");
}

template <class T, int N>
void launch_backward(CudaQueue& queue, const ActivationBackwardArgs& args, Sizes sizes) {
  const std::int64_t packs = sizes.columns / N;
  const RowGrid grid = row_grid(sizes.rows, packs);
  const auto kernel = args.gated ? backward_kernel<T, N, true> : backward_kernel<T, N, false>;
  kernel<<<grid.blocks, grid.threads, 0, queue.stream()>>>(
      address<T>(args.dy), address<T>(args.x), address<T>(args.dx), sizes.rows, packs, args.kind,
      limits_of(args.limits), args.amax);
  check_launch("activation backward");
}

void forward(const Stream& stream, const ActivationForwardArgs& args) {
  const Sizes sizes = sizes_of(args.y, args.gated);
  if (args.y.numel() == 0) return;
  visit_value(args.x.dtype, [&](auto type) {
    by_pack<decltype(type)>(aligned(args.x.data, args.y.data), sizes.columns, [&](auto count) {
      launch_forward<decltype(type), decltype(count)::value>(queue_of(stream), args, sizes);
    });
  });
}

void backward(const Stream& stream, const ActivationBackwardArgs& args) {
  const Sizes sizes = sizes_of(args.dy, args.gated);
  if (args.dy.numel() == 0) return;
  visit_value(args.x.dtype, [&](auto type) {
    by_pack<decltype(type)>(
        aligned(args.x.data, args.dy.data, args.dx.data), sizes.columns, [&](auto count) {
          launch_backward<decltype(type), decltype(count)::value>(queue_of(stream), args, sizes);
        });
  });
}

}  // namespace
}  // namespace cuda

ActivationKernels cuda_activation_kernels() {
  return {.forward = cuda::forward, .backward = cuda::backward};
}

}  // namespace bev
