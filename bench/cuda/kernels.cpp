// Memory-bound kernels of a training step on a GPU: bytes that they must move over their time,
// compared with a plain copy.
#include <cstdio>
#include <vector>

#include "base/error.h"
#include "gpu_rig.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/loss.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "tensor/moment8.h"

namespace bev {
namespace {

const Dtype kBf16 = Dtype::kBf16, kF32 = Dtype::kF32;

class Table {
 public:
  explicit Table(Gpu& gpu) : gpu_(gpu) {
    Tensor from = gpu.noise({1 << 29}), to = gpu.noise({1 << 29});
    double time = seconds([&] { kernels().cast(gpu.stream(), from, to); });
    copy_ = 4.0 * (1 << 29) / time;
    std::printf("%-44s %9.1f us  %5.2f TB/s\n", "copy of 1 GiB", time * 1e6, copy_ * 1e-12);
  }
  static const Kernels& kernels() { return cuda_kernels(); }
  template <class Body>
  void row(const char* name, double bytes, const Body& body) {
    double time = seconds(body);
    std::printf("%-44s %9.1f us  %5.2f TB/s  %3.0f%%\n", name, time * 1e6, bytes / time * 1e-12,
                100 * bytes / time / copy_);
  }

 private:
  template <class Body>
  double seconds(const Body& body) {
    return gpu_.seconds([&] {
      body();
      return true;
    });
  }
  Gpu& gpu_;
  double copy_ = 0;
};

// Parameters of a model as seen by the optimizer: large ones alternate with small ones.
std::vector<View> pieces(const Tensor& flat) {
  constexpr std::int64_t kLarge = 6 << 20, kSmall = 2048;
  std::vector<View> out;
  for (std::int64_t at = 0; at + kLarge + kSmall <= flat.numel(); at += kLarge + kSmall) {
    out.push_back(flat.view().rows(at, at + kLarge));
    out.push_back(flat.view().rows(at + kLarge, at + kLarge + kSmall));
  }
  return out;
}

void bench_optimizer(Gpu& gpu, Table& table, bool wide) {
  const std::int64_t size = 500 << 20;
  const Dtype kept = wide ? kF32 : kBf16;
  Tensor main = gpu.noise({size}, kept), grad = gpu.noise({size}, kept);
  Tensor m = gpu.noise({size}, kept), v = gpu.empty(kept, {size});
  Tensor values = wide ? gpu.noise({size}) : main;
  table.kernels().fill(gpu.stream(), v, 1);
  Tensor state = gpu.empty(Dtype::kU8, {sizeof(StepState)});
  StepState host;
  host.random_key = 7;
  host.update = 3;
  host.lr = 1e-4;
  host.weight_decay = 0.1;
  table.kernels().device.upload(gpu.stream(), &host, state);
  std::vector<View> mains = pieces(main), grads = pieces(grad), ms = pieces(m), vs = pieces(v);
  std::vector<View> copies = pieces(values);
  std::vector<AdamRange> ranges;
  double elements = 0;
  for (std::size_t i = 0; i < mains.size(); ++i) {
    ranges.push_back({.main = mains[i],
                      .grad = grads[i],
                      .m = ms[i],
                      .v = vs[i],
                      .values = copies[i],
                      .random_stream = i});
    elements += static_cast<double>(mains[i].numel());
  }
  const auto* at = static_cast<const StepState*>(state.view().data);
  table.row(wide ? "adam, f32" : "adam, bf16", elements * (wide ? 30 : 14),
            [&] { table.kernels().optim.adam(gpu.stream(), {.state = at}, ranges); });
  Tensor sum = gpu.empty(Dtype::kF64, {1});
  table.row(wide ? "sum of squares, f32" : "sum of squares, bf16", elements * (wide ? 4 : 2),
            [&] { table.kernels().optim.sum_squares(gpu.stream(), grads, sum.as<double>()); });
}

// Optimizer state offloaded to pinned host memory (bus bandwidth), and 8-bit moments.
void bench_state(Gpu& gpu, Table& table, Dtype kept, bool on_host) {
  constexpr std::int64_t kSize = 500 << 20;
  const bool packed = kept == Dtype::kU8;
  Arena pinned(table.kernels().device.pinned_memory());
  auto zeros = [&](Dtype dtype, std::int64_t size, bool there) {
    Tensor out = there ? Tensor(pinned, dtype, {size}, "bench") : gpu.empty(dtype, {size});
    table.kernels().fill(gpu.stream(), out, packed ? kLeastMomentScale : 0);
    return out;
  };
  Tensor values = gpu.noise({kSize}), grad = gpu.noise({kSize});
  Tensor main = packed ? values : zeros(kept, kSize, on_host);
  Tensor m = zeros(kept, kSize, on_host), v = zeros(kept, kSize, on_host);
  Tensor scales[2];
  for (Tensor& of : scales) of = zeros(Dtype::kU8, moment_blocks(kSize), false);
  StepState host;
  host.update = 3;
  Tensor state = gpu.empty(Dtype::kU8, {sizeof(StepState)});
  table.kernels().device.upload(gpu.stream(), &host, state);
  AdamRange range{.main = main, .grad = grad, .m = m, .v = v, .values = values};
  if (packed) {
    range.m_scales = scales[0];
    range.v_scales = scales[1];
  }
  const AdamRule rule{.state = static_cast<const StepState*>(state.view().data)};
  const double bytes = static_cast<double>(kSize) * (packed ? 4 : 24) + (on_host ? 0 : kSize * 6.0);
  char name[64];
  std::snprintf(name, sizeof name, "adam, %s%s", packed ? "bf16, moments in 8 bits" : "f32",
                on_host ? " on the host" : "");
  table.row(name, bytes, [&] { table.kernels().optim.adam(gpu.stream(), rule, {&range, 1}); });
}

void bench_loss(Gpu& gpu, Table& table, std::int64_t rows, std::int64_t vocabulary) {
  Tensor logits = gpu.noise({rows, vocabulary}), losses = gpu.empty(kF32, {rows});
  Tensor targets = gpu.empty(Dtype::kI32, {rows}), weights = gpu.empty(kF32, {rows});
  Tensor factor = gpu.empty(Dtype::kF64, {1});
  table.kernels().fill(gpu.stream(), targets, 17);
  table.kernels().fill(gpu.stream(), weights, 1);
  table.kernels().fill(gpu.stream(), factor, 1);
  const LossChunk chunk{.logits = logits.view(), .targets = targets.as<std::int32_t>()};
  char name[64];
  std::snprintf(name, sizeof name, "loss and its gradient, vocabulary %d",
                static_cast<int>(vocabulary));
  table.row(name, 2.0 * static_cast<double>(logits.view().bytes()), [&] {
    table.kernels().loss.whole(gpu.stream(), {.chunk = chunk,
                                              .weights = weights.view(),
                                              .loss_factor = factor.as<double>(),
                                              .token_loss = losses.view(),
                                              .with_gradient = true});
  });
}

void bench_norm(Gpu& gpu, Table& table, std::int64_t rows, std::int64_t hidden) {
  Tensor x = gpu.noise({rows, hidden}), residual = gpu.noise({rows, hidden});
  Tensor sum = gpu.noise({rows, hidden}), y = gpu.noise({rows, hidden});
  Tensor weight = gpu.noise({hidden}), rstd = gpu.empty(kF32, {rows});
  Tensor dweight = gpu.noise({hidden});
  const double bytes = static_cast<double>(x.view().bytes());
  char name[64];
  std::snprintf(name, sizeof name, "norm of %d with residual, forward", static_cast<int>(hidden));
  table.row(name, 4 * bytes, [&] {
    table.kernels().norm.forward(gpu.stream(), {.x = x,
                                                .residual = residual,
                                                .sum = sum,
                                                .y = y,
                                                .weight = weight,
                                                .mean = {},
                                                .rstd = rstd});
  });
  std::snprintf(name, sizeof name, "norm of %d with residual, backward", static_cast<int>(hidden));
  table.row(name, 4 * bytes, [&] {
    table.kernels().norm.backward(gpu.stream(), {.dy = x,
                                                 .s = sum,
                                                 .dsum = residual,
                                                 .weight = weight,
                                                 .mean = {},
                                                 .rstd = rstd,
                                                 .dx = y,
                                                 .dweight = dweight,
                                                 .dbias = {}});
  });
}

void bench_layer(Gpu& gpu, Table& table, std::int64_t rows, std::int64_t ffn) {
  Tensor x = gpu.noise({rows, 2 * ffn}), y = gpu.noise({rows, ffn}), dx = gpu.noise(x.shape());
  const double bytes = static_cast<double>(y.view().bytes());
  table.row("gated activation, forward", 3 * bytes, [&] {
    table.kernels().activation.forward(gpu.stream(), {x, y, Activation::kSilu, true});
  });
  table.row("gated activation, backward", 5 * bytes, [&] {
    table.kernels().activation.backward(
        gpu.stream(), {.dy = y, .x = x, .dx = dx, .kind = Activation::kSilu, .gated = true});
  });
  Tensor qkv = gpu.noise({rows, 48 * 128}), angles = gpu.noise({rows, 128}, kF32);
  table.row("rope of 40 of 48 heads of 128",
            static_cast<double>(qkv.view().bytes()) * 2 * 40 / 48 +
                static_cast<double>(angles.view().bytes()),
            [&] {
              table.kernels().rope.apply(
                  gpu.stream(), {.x = qkv, .cos_sin = angles, .heads = 40, .head_size = 128});
            });
  Tensor bias = gpu.noise({48 * 128});
  table.row("gradient of a bias of 6144", static_cast<double>(qkv.view().bytes()),
            [&] { table.kernels().elementwise.column_sum(gpu.stream(), qkv, 0, bias); });
}

void run(Gpu& gpu) {
  Table table(gpu);
  bench_optimizer(gpu, table, false);
  bench_optimizer(gpu, table, true);
  bench_state(gpu, table, Dtype::kU8, false);
  bench_state(gpu, table, Dtype::kU8, true);
  bench_state(gpu, table, kF32, true);
  bench_loss(gpu, table, 16384, 50304);
  bench_loss(gpu, table, 8192, 128256);
  bench_loss(gpu, table, 6656, 151936);
  bench_norm(gpu, table, 32768, 768);
  bench_norm(gpu, table, 32768, 896);
  bench_norm(gpu, table, 16384, 2048);
  bench_norm(gpu, table, 8192, 4096);
  bench_layer(gpu, table, 8192, 14336);
}

}  // namespace
}  // namespace bev

int main() { return bev::gpu_main("kernels", bev::run); }
