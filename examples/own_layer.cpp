// An op of one's own, with its gradient: a gate that a layer learns for each channel,
//
//   y = x * s(w),  s(w) = 1 / (1 + exp(-w)),   dx = dy * s(w),   dw = sum over rows of dy * x *
//   s'(w)
//
// It runs on the CPU's memory. The gradient is compared with differences of the loss.
#include <cmath>
#include <cstdio>
#include <memory>

#include "autograd/recompute.h"
#include "backend/cpu/cpu_kernels.h"
#include "base/thread_pool.h"
#include "kernels/device.h"
#include "kernels/optim.h"
#include "ops/sequence_layout.h"
#include "parallel/store/param_store.h"

using namespace bev;

struct Gate {
  explicit Gate(std::int64_t channels) {
    weight.name = "gate.weight";
    weight.shape = {channels};
    weight.init = {InitKind::kNormal, 0.5};
  }
  Var forward(Context& ctx, const Var& x) const;
  Param weight;
};

double sigmoid(double w) { return 1 / (1 + std::exp(-w)); }

// y [T, H] of x [T, H], rows shared out to the rank's threads.
void scale_rows(const Context& ctx, const View& x, const View& weight, const View& y) {
  std::int64_t columns = x.shape[1];
  ctx.stream.pool->run(x.shape[0], [&](std::int64_t row) {
    for (std::int64_t c = 0; c < columns; ++c) {
      std::int64_t at = row * columns + c;
      y.as<double>()[at] = x.as<double>()[at] * sigmoid(weight.as<double>()[c]);
    }
  });
}

Var Gate::forward(Context& ctx, const Var& x) const {
  Tensor y = ctx.allocate(x.dtype(), x.shape(), "activations");
  scale_rows(ctx, x.tensor, ctx.weights.use(weight).view, y);
  // Replicated over tp, so is what it multiplies: the placement stays.
  Var out = make_output(ctx, "gate", std::move(y), x.placement, x.tracked() || weight.trains);
  if (!out.tracked()) return out;
  ctx.tape->record(
      "gate", ctx.layer,
      [w = &weight, saved = Saved(x), in = GradSlot(x), result = GradSlot(out)](Backward& back) {
        Tensor dy = back.take(result);
        if (dy.empty()) return;
        Tensor x_again = saved.get(back.ctx);
        // A schedule may defer the wgrad, so the closure owns what it needs.
        back.deferred_wgrad([w, x_again, dy, at = in.placement](Context& later) {
          GradSink sink = later.grads.sink(*w, gradient_placement(*w, at));
          std::int64_t rows = dy.shape()[0], columns = dy.shape()[1];
          for (std::int64_t c = 0; c < columns; ++c) {
            double sum = 0, s = sigmoid(later.weights.use(*w).view.as<double>()[c]);
            for (std::int64_t r = 0; r < rows; ++r) {
              sum += dy.as<double>()[r * columns + c] * x_again.as<double>()[r * columns + c];
            }
            double& to = sink.view.as<double>()[c];
            to = (sink.beta == 0 ? 0 : sink.beta * to) + sum * s * (1 - s);
          }
          later.grads.done(*w, std::move(sink));
        });
        Tensor dx = back.ctx.allocate(dy.dtype(), dy.shape(), "gradients");
        scale_rows(back.ctx, dy, back.ctx.weights.use(*w).view, dx);
        back.add(in, std::move(dx));
      });
  return out;
}

int main() {
  constexpr std::int64_t kRows = 6, kChannels = 5;
  bool right = true;
  run_thread_ranks(1, {}, [&](World& world) {
    const Kernels& kernels = cpu_kernels();
    std::unique_ptr<Device> device = kernels.device.open({.threads = 2});
    Arena arena(device->memory());
    Mesh mesh(world, {}, device.get());
    Gate gate(kChannels);
    StoreOptions options;
    options.dtype = options.grad_dtype = Dtype::kF64;
    ParamStore store({&gate.weight}, mesh, arena, kernels, device->stream(), options);
    store.initialise(1);
    StepState state;
    Context ctx{kernels, device->stream(), arena, arena, mesh, store, store, &state, Dtype::kF64};
    Tensor x = ctx.allocate(Dtype::kF64, {kRows, kChannels}, "activations");
    kernels.optim.normal(ctx.stream, {.x = x.view().flat(), .key = 5});
    // The loss is the sum of all elements, so the gradient of y is one.
    auto loss = [&] {
      Var y = gate.forward(ctx, {x, Placement(), -1, nullptr});
      double sum = 0;
      for (std::int64_t i = 0; i < y.tensor.numel(); ++i) sum += y.tensor.as<double>()[i];
      return sum;
    };
    Tape tape;
    store.begin_step(1);
    {
      TapeScope scope(ctx, &tape);
      Var y = gate.forward(ctx, tape.track(x, batch_placement()));
      Tensor ones = ctx.allocate(Dtype::kF64, y.shape(), "gradients");
      kernels.fill(ctx.stream, ones, 1);
      tape.add_gradient(ctx, GradSlot(y), ones, y.placement.dual());
      tape.backward(ctx);
    }
    store.finish_gradients();
    double* weights = store.local_value(gate.weight).view.as<double>();
    for (std::int64_t c = 0; c < kChannels; ++c) {
      constexpr double kStep = 1e-5;
      double kept = weights[c], here = store.local_gradient(gate.weight).view.as<double>()[c];
      weights[c] = kept + kStep;
      double above = loss();
      weights[c] = kept - kStep;
      double below = loss();
      weights[c] = kept;
      double expected = (above - below) / (2 * kStep);
      std::printf("channel %d: gradient %.8f, by differences %.8f\n", static_cast<int>(c), here,
                  expected);
      right &= std::abs(here - expected) < 1e-7;
    }
  });
  return right ? 0 : 1;
}
