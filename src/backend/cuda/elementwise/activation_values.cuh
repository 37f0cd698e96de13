// Activation functions and their derivatives, for the elementwise kernels and for fused
// quantisation.
#pragma once

#include "backend/cuda/device/values.cuh"
#include "kernels/activation.h"

namespace bev::cuda {

// __fdividef returns 0 for very large denominators, which is the correct limit here.
__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// d/dx (x sigmoid(u)) for u(x) with derivative du: s + x s (1 - s) du, computing 1 - s without
// cancellation.
__device__ inline float sigmoid_slope(float x, float u, float du) {
  const float e = __expf(u < -80 ? 80.0f : -u), s = __fdividef(1.0f, 1.0f + e);
  return s * (1 + x * (e * s) * du);
}

// Normal CDF at x, given bell = exp(-x^2 / 2); the polynomial is that of the CPU kernel, where it
// is explained.
__device__ inline float normal_integral(float x, float bell) {
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

// Each kind has value(x) and its derivative slope(x).
struct Gelu {
  __device__ static float bell(float x) { return __expf(-0.5f * x * x); }
  __device__ static float value(float x) { return x * normal_integral(x, bell(x)); }
  __device__ static float slope(float x) {
    constexpr float kInverseRoot = 0.398942280401432678f;  // 1 / sqrt(2 pi)
    return normal_integral(x, bell(x)) + x * kInverseRoot * bell(x);
  }
};
// (1 + tanh(u)) / 2 = sigmoid(2u), which has no cancellation where tanh is near -1.
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
struct Tanh {
  __device__ static float value(float x) { return tanhf(x); }
  __device__ static float slope(float x) {
    const float y = tanhf(x);
    return 1 - y * y;
  }
};

// Calls body(Kind{}). The branch is uniform over all threads and taken once per pack, so kinds need
// no instantiations of their own.
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
    case Activation::kTanh:
      return body(Tanh{});
    case Activation::kXielu:
      break;
  }
}

// Clamping of gate and up, if `on`, and the offset of up.
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
inline Limits limits_of(const GateLimits& limits) {
  return {limits.clamp > 0, static_cast<float>(limits.clamp), static_cast<float>(limits.offset)};
}

// Replaces gate by y times the weight. up is only read if kGated.
template <bool kGated, class T, int N>
__device__ void activate(Activation kind, const Limits& limits, Pack<T, N>& gate,
                         const Pack<T, N>& up, float weight = 1) {
  visit_kind(kind, [&](auto function) {
    using Kind = decltype(function);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kGated) {
        gate.set(i, Kind::value(limits.gate(gate[i])) * limits.up(up[i]) * weight);
      } else {
        gate.set(i, Kind::value(gate[i]) * weight);
      }
    }
  });
}

// Replaces gate and up by their gradients. Returns the gradient of the weight.
template <bool kGated, class T, int N>
__device__ float activate_backward(Activation kind, const Limits& limits, const Pack<T, N>& grad,
                                   Pack<T, N>& gate, Pack<T, N>& up, float weight = 1) {
  float sum = 0;
  visit_kind(kind, [&](auto function) {
    using Kind = decltype(function);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = weight * grad[i], before = gate[i];
      if constexpr (kGated) {
        const float limited = limits.gate(before), value = Kind::value(limited), u = up[i];
        sum += grad[i] * value * limits.up(u);
        gate.set(i, limits.passes_gate(before) ? Kind::slope(limited) * g * limits.up(u) : 0);
        up.set(i, limits.passes_up(u) ? value * g : 0);
      } else {
        sum += grad[i] * Kind::value(before);
        gate.set(i, Kind::slope(before) * g);
      }
    }
  });
  return sum;
}

}  // namespace bev::cuda
