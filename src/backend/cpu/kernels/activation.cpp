// MLP activations, forward and backward, plain and gated, with optional router probabilities.
#include "kernels/activation.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <type_traits>

#include "backend/cpu/kernels/amax.h"
#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/sigmoid_gate.h"
#include "backend/cpu/kernels/tables.h"
#include "backend/cpu/kernels/xielu.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// Values pass through buffers of the accumulate type, so that functions are instantiated per kind,
// and loads and stores per dtype, but not for all combinations.
constexpr std::int64_t kChunk = 256;

template <class A>
BEV_INLINE A sigmoid(A x) {
  return 1 / (1 + exp_of(-x));
}

// d/dx (x sigmoid(u)) for u(x) with derivative du: s + x s (1 - s) du, computing 1 - s without
// cancellation.
template <class A>
BEV_INLINE A sigmoid_slope(A x, A u, A du) {
  const A e = exp_of(u < -80 ? A(80) : -u), s = 1 / (1 + e);
  return s * (1 + x * (e * s) * du);
}

// Normal CDF at x, given bell = exp(-x^2 / 2). For float the tail is bell times a polynomial in t =
// 1 / (1 + 0.38 |x|), fitted for minimal relative error: 1.5e-7 for any x < 0.
BEV_INLINE double normal_integral(double x, double) {
  return 0.5 * std::erfc(-x * (std::numbers::sqrt2 / 2));
}
BEV_INLINE float normal_integral(float x, float bell) {
  const float t = 1 / (1 + 0.38f * std::fabs(x));
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
template <class A>
struct Gelu {
  BEV_INLINE static A value(A x) { return x * normal_integral(x, exp_of(A(-0.5) * x * x)); }
  BEV_INLINE static A slope(A x) {
    const A bell = exp_of(A(-0.5) * x * x);
    return normal_integral(x, bell) +
           x * static_cast<A>(std::numbers::inv_sqrtpi / std::numbers::sqrt2) * bell;
  }
};

template <class A>
struct GeluTanh {
  static constexpr A kFactor =
      static_cast<A>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);  // sqrt(2 / pi)
  static constexpr A kCubic = static_cast<A>(0.044715);
  // (1 + tanh(u)) / 2 = sigmoid(2u), which has no cancellation where tanh is near -1.
  BEV_INLINE static A inner(A x) { return 2 * kFactor * (x + kCubic * x * x * x); }
  BEV_INLINE static A value(A x) { return x * sigmoid(inner(x)); }
  BEV_INLINE static A slope(A x) {
    return sigmoid_slope(x, inner(x), 2 * kFactor * (1 + 3 * kCubic * x * x));
  }
};

template <class A>
struct Silu {
  BEV_INLINE static A value(A x) { return x * sigmoid(x); }
  BEV_INLINE static A slope(A x) { return sigmoid_slope(x, x, A(1)); }
};

// NaN stays NaN.
template <class A>
struct Relu {
  BEV_INLINE static A value(A x) { return x < 0 ? 0 : x; }
  BEV_INLINE static A slope(A x) { return x > 0 ? 1 : 0; }
};

template <class A>
struct SquaredRelu {
  BEV_INLINE static A value(A x) { return x < 0 ? 0 : x * x; }
  BEV_INLINE static A slope(A x) { return x < 0 ? 0 : 2 * x; }
};

template <class A>
struct QuickGelu {
  static constexpr A kFactor = static_cast<A>(1.702);
  BEV_INLINE static A value(A x) { return x * sigmoid(kFactor * x); }
  BEV_INLINE static A slope(A x) { return sigmoid_slope(x, kFactor * x, kFactor); }
};

template <class A>
struct Tanh {
  BEV_INLINE static A value(A x) { return std::tanh(x); }
  BEV_INLINE static A slope(A x) {
    const A y = value(x);
    return 1 - y * y;
  }
};

template <class A, class Kind>
void set_values(std::int64_t n, const A* __restrict x, A* __restrict values) {
  for (std::int64_t i = 0; i < n; ++i) values[i] = Kind::value(x[i]);
}
template <class A, class Kind>
void set_slopes(std::int64_t n, const A* __restrict x, A* __restrict slopes) {
  for (std::int64_t i = 0; i < n; ++i) slopes[i] = Kind::slope(x[i]);
}
// In one loop, so that the compiler shares common subexpressions.
template <class A, class Kind>
void set_both(std::int64_t n, const A* __restrict x, A* __restrict values, A* __restrict slopes) {
  for (std::int64_t i = 0; i < n; ++i) {
    values[i] = Kind::value(x[i]);
    slopes[i] = Kind::slope(x[i]);
  }
}

template <class A>
struct Functions {
  void (*values)(std::int64_t, const A*, A*);
  void (*slopes)(std::int64_t, const A*, A*);
  void (*both)(std::int64_t, const A*, A*, A*);
};
template <class A, class Kind>
Functions<A> functions() {
  return {set_values<A, Kind>, set_slopes<A, Kind>, set_both<A, Kind>};
}
template <class A>
Functions<A> functions_of(Activation kind) {
  switch (kind) {
    case Activation::kGelu:
      return functions<A, Gelu<A>>();
    case Activation::kGeluTanh:
      return functions<A, GeluTanh<A>>();
    case Activation::kSilu:
      return functions<A, Silu<A>>();
    case Activation::kRelu:
      return functions<A, Relu<A>>();
    case Activation::kSquaredRelu:
      return functions<A, SquaredRelu<A>>();
    case Activation::kQuickGelu:
      return functions<A, QuickGelu<A>>();
    case Activation::kTanh:
      return functions<A, Tanh<A>>();
    case Activation::kXielu:
      break;
  }
  BEV_FAIL(ErrorKind::kInternal, "activation: unknown kind ", static_cast<int>(kind));
}

// n > 0 values in the accumulate type: in place, or widened into the buffer.
template <class T, class A = accumulate_t<T>>
BEV_INLINE const A* load(std::int64_t n, const T* from, A* __restrict buffer) {
  if constexpr (std::is_same_v<T, A>) {
    return from;
  } else {
    std::int64_t i = 0;
    do buffer[i] = widen(from[i]);
    while (++i < n);
    return buffer;
  }
}

// Clamping of gate and up, if `on`, and the offset of up.
template <class A>
struct Limits {
  bool on;
  A clamp, offset;

  explicit Limits(const GateLimits& limits)
      : on(limits.clamp > 0),
        clamp(static_cast<A>(limits.clamp)),
        offset(static_cast<A>(limits.offset)) {}
  BEV_INLINE A up(A x) const {
    return (on ? (x < -clamp ? -clamp : x > clamp ? clamp : x) : x) + offset;
  }
  BEV_INLINE bool passes_up(A x) const { return !on || (x >= -clamp && x <= clamp); }
  BEV_INLINE bool passes_gate(A x) const { return !on || x <= clamp; }
  // n > 0 values of the gate: in place, or clamped in the buffer.
  BEV_INLINE const A* gate(std::int64_t n, const A* x, A* buffer) const {
    if (!on) return x;
    std::int64_t i = 0;
    do buffer[i] = x[i] > clamp ? clamp : x[i];
    while (++i < n);
    return buffer;
  }
};

// Factors of the rows of y.
template <class A>
struct Weights {
  const A* probs;
  const std::int32_t* order;  // null: no weights

  explicit Weights(const RowWeights& weights)
      : probs(weights.order ? weights.probs.as<A>() : nullptr), order(weights.order) {}
  bool any() const { return order != nullptr; }
  bool none(std::int64_t row) const { return any() && order[row] < 0; }
  A at(std::int64_t row) const { return any() ? probs[order[row]] : A(1); }
};

// Calls body(row, column, count) for chunks of a [rows, columns] matrix. A single row is split into
// pieces, several rows are split between rows.
template <class Body>
void for_chunks(const Stream& stream, std::int64_t rows, std::int64_t columns, const Body& body) {
  const auto walk = [&](std::int64_t row, std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; c += kChunk) body(row, c, std::min(kChunk, end - c));
  };
  if (rows == 1) {
    for_ranges(stream, columns, kFlatPiece / 4,
               [&](std::int64_t begin, std::int64_t end) { walk(0, begin, end); });
  } else {
    for_ranges(stream, rows, rows_per_piece(columns * 4),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) walk(row, 0, columns);
               });
  }
}

// A plain activation is treated as one long row, unless rows have weights.
struct Sizes {
  std::int64_t rows, columns;

  Sizes(const View& y, bool by_row)
      : rows(by_row ? y.shape[0] : 1), columns(by_row ? y.shape.row_numel() : y.numel()) {}
};

template <class T>
void run_forward(const Stream& stream, const ActivationForwardArgs& args) {
  using A = accumulate_t<T>;
  const Functions<A> kind = functions_of<A>(args.kind);
  const Limits<A> limits(args.limits);
  const Weights<A> weights(args.weights);
  const Sizes sizes(args.y, args.gated || weights.any());
  const std::int64_t rows = sizes.rows, columns = sizes.columns;
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  for_chunks(stream, rows, columns, [&](std::int64_t row, std::int64_t column, std::int64_t n) {
    alignas(64) A buffer[kChunk], values[kChunk];
    const T* gate = x + row * columns * (args.gated ? 2 : 1) + column;
    T* to = y + row * columns + column;
    if (weights.none(row)) {
      std::fill_n(to, n, narrow<T>(A(0)));
      return;
    }
    const A weight = weights.at(row);
    const A* from = load(n, gate, buffer);
    if (args.gated) {
      kind.values(n, limits.gate(n, from, buffer), values);
      const T* up = gate + columns;
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) {
        to[i] = narrow<T>(values[i] * limits.up(widen(up[i])) * weight);
      }
    } else {
      kind.values(n, from, values);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) to[i] = narrow<T>(values[i] * weight);
    }
  });
}

template <class T>
void run_backward(const Stream& stream, const ActivationBackwardArgs& args) {
  using A = accumulate_t<T>;
  const Functions<A> kind = functions_of<A>(args.kind);
  const Limits<A> limits(args.limits);
  const Sizes sizes(args.dy, args.gated);
  const std::int64_t rows = sizes.rows, columns = sizes.columns;
  const T *x = args.x.as<T>(), *dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  for_chunks(stream, rows, columns, [&](std::int64_t row, std::int64_t column, std::int64_t n) {
    alignas(64) A buffer[kChunk], limited[kChunk], values[kChunk], slopes[kChunk];
    const std::int64_t at = row * columns * (args.gated ? 2 : 1) + column;
    const A* gate = load(n, x + at, buffer);
    const T *grad = dy + row * columns + column, *up = x + at + columns;
    T *dgate = dx + at, *dup = dgate + columns;
    if (args.gated) {
      kind.both(n, limits.gate(n, gate, limited), values, slopes);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) {
        const A g = widen(grad[i]), u = widen(up[i]);
        dgate[i] = narrow<T>(limits.passes_gate(gate[i]) ? slopes[i] * g * limits.up(u) : 0);
        dup[i] = narrow<T>(limits.passes_up(u) ? values[i] * g : 0);
      }
    } else {
      kind.slopes(n, gate, slopes);
#pragma GCC ivdep
      for (std::int64_t i = 0; i < n; ++i) dgate[i] = narrow<T>(slopes[i] * widen(grad[i]));
    }
  });
}

// One row of run_weighted_backward: computes dx and returns the gradient of the row's weight.
template <class T>
struct WeightedRow {
  using A = accumulate_t<T>;
  Functions<A> kind;
  Limits<A> limits;
  bool gated;

  A run(std::int64_t columns, const T* dy, const T* x, T* dx, A weight) const {
    A sum = 0;
    for (std::int64_t c = 0; c < columns; c += kChunk) {
      sum += run_chunk(std::min(kChunk, columns - c), columns, dy + c, x + c, dx + c, weight);
    }
    return sum;
  }

 private:
  A run_chunk(std::int64_t n, std::int64_t columns, const T* dy, const T* x, T* dx,
              A weight) const {
    alignas(64) A buffer[kChunk], limited[kChunk], values[kChunk], slopes[kChunk];
    const A* gate = load(n, x, buffer);
    const T* up = x + columns;
    kind.both(n, gated ? limits.gate(n, gate, limited) : gate, values, slopes);
    A sum = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const A d = widen(dy[i]), g = weight * d;
      if (gated) {
        const A u = widen(up[i]);
        sum += d * values[i] * limits.up(u);
        dx[i] = narrow<T>(limits.passes_gate(gate[i]) ? slopes[i] * g * limits.up(u) : 0);
        dx[columns + i] = narrow<T>(limits.passes_up(u) ? values[i] * g : 0);
      } else {
        sum += d * values[i];
        dx[i] = narrow<T>(slopes[i] * g);
      }
    }
    return sum;
  }
};

template <class T>
void run_weighted_backward(const Stream& stream, const ActivationBackwardArgs& args) {
  using A = accumulate_t<T>;
  const WeightedRow<T> one{functions_of<A>(args.kind), Limits<A>(args.limits), args.gated};
  const Weights<A> weights(args.weights);
  const Sizes sizes(args.dy, true);
  const std::int64_t rows = sizes.rows, columns = sizes.columns;
  const std::int64_t width = args.gated ? 2 * columns : columns;
  A* dprobs = args.dprobs.as<A>();
  std::fill_n(dprobs, args.dprobs.numel(), A(0));
  for_ranges(stream, rows, rows_per_piece(columns * 4), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      T* dx = args.dx.as<T>() + row * width;
      if (weights.none(row)) {
        std::fill_n(dx, width, narrow<T>(A(0)));
        continue;
      }
      dprobs[weights.order[row]] = one.run(columns, args.dy.as<T>() + row * columns,
                                           args.x.as<T>() + row * width, dx, weights.at(row));
    }
  });
}

void forward(const Stream& stream, const ActivationForwardArgs& args) {
  visit_float(args.x.dtype, [&](auto zero) { run_forward<decltype(zero)>(stream, args); });
  if (args.amax != nullptr) raise_amax(stream, args.y, args.amax);
}
void backward(const Stream& stream, const ActivationBackwardArgs& args) {
  visit_float(args.x.dtype, [&](auto zero) {
    using T = decltype(zero);
    args.weights.order ? run_weighted_backward<T>(stream, args) : run_backward<T>(stream, args);
  });
  if (args.amax != nullptr) raise_amax(stream, args.dx, args.amax);
}

}  // namespace

ActivationKernels kernel_table(Family<ActivationKernels>) {
  return {.forward = forward,
          .backward = backward,
          .xielu_forward = xielu_forward,
          .xielu_backward = xielu_backward,
          .sigmoid_gate = sigmoid_gate,
          .sigmoid_gate_backward = sigmoid_gate_backward};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
