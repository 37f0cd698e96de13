// Products with the sigmoid of a gate, forward and backward.
#include "backend/cpu/kernels/sigmoid_gate.h"

#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/pieces.h"
#include "kernels/activation.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
template <class A>
BEV_INLINE A logistic(A x) {
  return 1 / (1 + exp_of(-x));
}
}  // namespace

void sigmoid_gate(const Stream& stream, const SigmoidGateArgs& args) {
  visit_float(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const T *x = args.x.as<T>(), *gate = args.gate.as<T>();
    T* y = args.y.as<T>();
    for_ranges(stream, args.x.numel(), kFlatPiece, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        y[i] = narrow<T>(widen(x[i]) * logistic(widen(gate[i])));
      }
    });
  });
}

void sigmoid_gate_backward(const Stream& stream, const SigmoidGateBackwardArgs& args) {
  visit_float(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    using A = accumulate_t<T>;
    const T *dy = args.dy.as<T>(), *x = args.x.as<T>(), *gate = args.gate.as<T>();
    T *dx = args.dx.as<T>(), *dgate = args.dgate.as<T>();
    for_ranges(stream, args.x.numel(), kFlatPiece, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const A open = logistic(widen(gate[i])), grad = widen(dy[i]);
        dgate[i] = narrow<T>(grad * widen(x[i]) * open * (1 - open));
        dx[i] = narrow<T>(grad * open);
      }
    });
  });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
