// xIELU, an activation with learned coefficients, forward and backward.
#include "backend/cpu/kernels/xielu.h"

#include <cmath>

#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/pieces.h"
#include "kernels/activation.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

template <class A>
A softplus(A x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}
template <class A>
A logistic(A x) {
  return 1 / (1 + std::exp(-x));
}

template <class T, class A = accumulate_t<T>>
struct Xielu {
  A alpha_p, alpha_n, beta, eps, p, n;

  explicit Xielu(const XieluCoefficients& from)
      : alpha_p(widen(from.alpha_p.as<T>()[0])),
        alpha_n(widen(from.alpha_n.as<T>()[0])),
        beta(widen(from.beta.as<T>()[0])),
        eps(widen(from.eps.as<T>()[0])),
        p(softplus(alpha_p)),
        n(beta + softplus(alpha_n)) {}

  // What n multiplies where x <= 0.
  A bend(A x) const { return std::expm1(std::min(x, eps)) - x; }
  A value(A x) const { return x > 0 ? p * x * x + beta * x : n * bend(x) + beta * x; }
  A slope(A x) const {
    if (x > 0) return 2 * p * x + beta;
    return n * ((x < eps ? std::exp(x) : A{0}) - 1) + beta;
  }
};

template <class T>
void run_forward(const Stream& stream, const XieluForwardArgs& args) {
  const Xielu<T> kind(args.coefficients);
  const T* x = args.x.as<T>();
  T* y = args.y.as<T>();
  for_ranges(stream, args.x.numel(), kFlatPiece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = narrow<T>(kind.value(widen(x[i])));
  });
}

// target [1] = beta * old + sum.
template <class A>
void store(A sum, double beta, const View& target) {
  if (target.empty()) return;
  visit_float(target.dtype, [&](auto zero) {
    using G = decltype(zero);
    G* to = target.as<G>();
    const A old = beta == 0 ? A{0} : static_cast<A>(beta) * static_cast<A>(widen(*to));
    *to = narrow<G>(static_cast<accumulate_t<G>>(old + sum));
  });
}

template <class T>
void run_backward(const Stream& stream, const XieluBackwardArgs& args) {
  using A = accumulate_t<T>;
  const Xielu<T> kind(args.coefficients);
  const T *x = args.x.as<T>(), *dy = args.dy.as<T>();
  T* dx = args.dx.as<T>();
  const std::int64_t count = args.x.numel(), pieces = ceil_div(count, kFlatPiece);
  A* sums = reinterpret_cast<A*>(
      stream.pool->scratch(static_cast<std::size_t>(2 * pieces + 2) * sizeof(A)));
  for_ranges(stream, count, kFlatPiece, [&](std::int64_t begin, std::int64_t end) {
    A above = 0, below = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const A at = widen(x[i]), grad = widen(dy[i]);
      above += at > 0 ? grad * at * at : A{0};
      below += at > 0 ? A{0} : grad * kind.bend(at);
      dx[i] = narrow<T>(grad * kind.slope(at));
    }
    sums[2 * (begin / kFlatPiece)] = above;
    sums[2 * (begin / kFlatPiece) + 1] = below;
  });
  A above = 0, below = 0;
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    above += sums[2 * piece];
    below += sums[2 * piece + 1];
  }
  store(above * logistic(kind.alpha_p), args.p_beta, args.dalpha_p);
  store(below * logistic(kind.alpha_n), args.n_beta, args.dalpha_n);
}

}  // namespace

void xielu_forward(const Stream& stream, const XieluForwardArgs& args) {
  visit_float(args.x.dtype, [&](auto zero) { run_forward<decltype(zero)>(stream, args); });
}
void xielu_backward(const Stream& stream, const XieluBackwardArgs& args) {
  visit_float(args.x.dtype, [&](auto zero) { run_backward<decltype(zero)>(stream, args); });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
