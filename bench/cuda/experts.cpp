// MoE kernels on a GPU: grouped GEMM compared with one GEMM of the same FLOPs; the same in FP8 with
// blockwise scales; permute, unpermute and quantisation compared with a plain copy.
#include <cstdio>
#include <string>
#include <vector>

#include "autograd/quantize.h"
#include "base/text.h"
#include "gpu_rig.h"
#include "kernels/activation.h"
#include "kernels/gemm.h"
#include "kernels/moe.h"

namespace bev {
namespace {

struct Mixture {
  const char* name;
  std::int64_t tokens, hidden, ffn, experts, topk;
};
// ffn: output width of the first GEMM, gate and up together.
const std::vector<Mixture> kMixtures = {{"qwen3-30b-a3b", 16384, 2048, 768, 128, 8},
                                        {"mixtral-8x7b", 8192, 4096, 14336, 8, 2}};

// How T tokens choose experts: evenly, at random, or skewed such that the share of an expert falls
// with its index, from about twice the mean to nothing.
enum class Load { kBalanced, kDrawn, kSkewed };
const char* name_of(Load load) {
  return load == Load::kBalanced ? "balanced" : load == Load::kDrawn ? "drawn" : "skewed";
}

std::vector<std::int32_t> choose(const Mixture& mixture, Load load) {
  std::vector<std::int32_t> out;
  std::uint64_t state = 1;
  for (std::int64_t t = 0; t < mixture.tokens; ++t) {
    for (std::int64_t j = 0; j < mixture.topk; ++j) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      double u = static_cast<double>(state >> 11) * 0x1p-53;
      if (load == Load::kSkewed) u *= u;
      auto expert = static_cast<std::int64_t>(static_cast<double>(mixture.experts) * u);
      if (load == Load::kBalanced) expert = (t * mixture.topk + j) % mixture.experts;
      out.push_back(static_cast<std::int32_t>(expert));
    }
  }
  return out;
}

class Bench {
 public:
  explicit Bench(Gpu& gpu) : gpu_(gpu) {
    Tensor from = gpu.noise({1 << 29}), to = gpu.noise({1 << 29});
    copy_ = 4.0 * (1 << 29) / seconds([&] { kernels().cast(gpu.stream(), from, to); });
    std::printf("copy of 1 GiB: %.2f TB/s\n", copy_ * 1e-12);
    heat();
  }

  void run(const Mixture& mixture, Load load) {
    Rows rows = sort(mixture, load);
    std::printf("%s, %s load\n", mixture.name, name_of(load));
    compare_gemms(mixture, rows, mixture.hidden, 2 * mixture.ffn, "gate|up");
    compare_gemms(mixture, rows, mixture.ffn, mixture.hidden, "down");
    scaled_gemms(mixture, rows, mixture.hidden, 2 * mixture.ffn, "gate|up in FP8");
    scaled_gemms(mixture, rows, mixture.ffn, mixture.hidden, "down in FP8");
    moves(mixture, rows);
    roundings(mixture, rows);
  }

 private:
  struct Rows {
    Tensor order, place, offsets;
  };

  static const Kernels& kernels() { return cuda_kernels(); }
  // Long enough for the clocks to settle at the power draw of the call, as in training.
  template <class Body>
  double seconds(const Body& body, double least = 0.06) {
    return gpu_.seconds(
        [&] {
          body();
          return true;
        },
        least);
  }
  // Runs until the GPU is at its power limit.
  void heat() {
    Tensor a = gpu_.noise({16384, 4096}), b = gpu_.noise({4096, 4096});
    Tensor c = gpu_.noise({16384, 4096});
    seconds([&] { kernels().gemm.gemm(gpu_.stream(), {.a = a, .b = b, .c = c}); }, 0.5);
  }

  Rows sort(const Mixture& mixture, Load load) {
    const std::vector<std::int32_t> choices = choose(mixture, load);
    const std::int64_t slots = mixture.tokens * mixture.topk;
    Tensor chosen = gpu_.empty(Dtype::kI32, {mixture.tokens, mixture.topk});
    kernels().device.upload(gpu_.stream(), choices.data(), chosen);
    Rows rows{gpu_.empty(Dtype::kI32, {slots}), gpu_.empty(Dtype::kI32, {slots}),
              gpu_.empty(Dtype::kI32, {mixture.experts + 1})};
    kernels().moe.sort_rows(
        gpu_.stream(),
        {.experts = chosen, .order = rows.order, .place = rows.place, .offsets = rows.offsets});
    return rows;
  }

  template <class Grouped, class Single>
  void compare_gemm(const std::string& name, double flops, const Grouped& grouped,
                    const Single& single) {
    const double alone = flops / seconds(single), ours = flops / seconds(grouped);
    std::printf("  %-24s %6.0f TFLOP/s, one product %6.0f: %3.0f%%\n", name.c_str(), ours * 1e-12,
                alone * 1e-12, 100 * ours / alone);
  }

  void compare_gemms(const Mixture& mixture, const Rows& rows, std::int64_t in, std::int64_t out,
                     const std::string& name) {
    const std::int64_t total = mixture.tokens * mixture.topk;
    const double flops = 2.0 * static_cast<double>(total) * static_cast<double>(in * out);
    Tensor x = gpu_.noise({total, in}), y = gpu_.noise({total, out});
    Tensor weights = gpu_.noise({mixture.experts, out, in}), weight = gpu_.noise({out, in});
    const auto* at = rows.offsets.as<std::int32_t>();
    const Stream stream = gpu_.stream();
    const MoeKernels& moe = kernels().moe;
    compare_gemm(
        name + " forward", flops,
        [&] { moe.grouped_gemm(stream, {.x = x, .w = weights, .y = y, .offsets = at}); },
        [&] { kernels().gemm.gemm(stream, {.a = x, .b = weight, .c = y, .transpose_b = true}); });
    compare_gemm(
        name + " input", flops,
        [&] { moe.grouped_dgrad(stream, {.x = x, .w = weights, .y = y, .offsets = at}); },
        [&] { kernels().gemm.gemm(stream, {.a = y, .b = weight, .c = x}); });
    compare_gemm(
        name + " weight", flops,
        [&] { moe.grouped_wgrad(stream, {.x = x, .w = weights, .y = y, .offsets = at}); },
        [&] { kernels().gemm.gemm(stream, {.a = y, .b = x, .c = weight, .transpose_a = true}); });
  }

  QuantizeRequest rounding(const View& x, Fp8Role role, bool by_rows, bool by_columns) {
    QuantizeRequest request;
    request.x = x;
    request.recipe = {Fp8Scaling::kBlockwise, Fp8Format::kE5m2, 0, true};
    request.role = role;
    request.rows = by_rows;
    request.columns = by_columns;
    return request;
  }
  QuantizeTools tools() { return {kernels(), gpu_.stream(), gpu_.arena()}; }
  static QuantizeGroups groups(const Mixture& mixture, const Rows& rows) {
    return {rows.offsets.as<std::int32_t>(), mixture.experts, mixture.tokens * mixture.topk};
  }

  void scaled_gemms(const Mixture& mixture, const Rows& rows, std::int64_t in, std::int64_t out,
                    const std::string& name) {
    const std::int64_t total = mixture.tokens * mixture.topk, experts = mixture.experts;
    const double flops = 2.0 * static_cast<double>(total) * static_cast<double>(in * out);
    Tensor x = gpu_.noise({total, in}), y = gpu_.noise({total, out});
    Tensor weights = gpu_.noise({experts, out, in});
    auto rows_of_experts = [&](const View& from, Fp8Role role) {
      QuantizeRequest request = rounding(from, role, true, true);
      request.groups = groups(mixture, rows);
      return quantize(tools(), request);
    };
    Quantized qx = rows_of_experts(x, Fp8Role::kInput), qy = rows_of_experts(y, Fp8Role::kGradient);
    Quantized qw = quantize(tools(), rounding(weights.view().reshape({experts * out, in}),
                                              Fp8Role::kWeight, true, true));
    const auto* at = rows.offsets.as<std::int32_t>();
    const Stream stream = gpu_.stream();
    const QuantizeKernels& fp8 = kernels().quantize;
    auto rate = [&](const char* what, const auto& body) {
      std::printf("  %-24s %6.0f TFLOP/s\n", concat(name, " ", what).c_str(),
                  1e-12 * flops / seconds(body));
    };
    rate("forward", [&] {
      fp8.grouped_gemm(
          stream,
          {.a = qx.by_rows(), .b = qw.by_rows(), .c = y, .offsets = at, .experts = experts});
    });
    rate("input", [&] {
      fp8.grouped_gemm(
          stream,
          {.a = qy.by_rows(), .b = qw.by_columns(), .c = x, .offsets = at, .experts = experts});
    });
    rate("weight", [&] {
      fp8.grouped_wgrad(stream,
                        {.dy = qy.by_columns(), .x = qx.by_columns(), .w = weights, .offsets = at});
    });
  }

  template <class Body>
  void move(const char* name, double bytes, const Body& body) {
    const double rate = bytes / seconds(body);
    std::printf("  %-24s %5.2f TB/s, %3.0f%% of a copy\n", name, rate * 1e-12, 100 * rate / copy_);
  }

  // Bytes count every tensor once, although the row of a token is read topk times.
  void moves(const Mixture& mixture, const Rows& rows) {
    const std::int64_t total = mixture.tokens * mixture.topk, topk = mixture.topk;
    Tensor x = gpu_.noise({mixture.tokens, mixture.hidden});
    Tensor sorted = gpu_.noise({total, mixture.hidden});
    Tensor inner = gpu_.noise({total, mixture.ffn}), dinner = gpu_.noise({total, mixture.ffn});
    Tensor probs = gpu_.noise({mixture.tokens, topk}, Dtype::kF32);
    Tensor dprobs = gpu_.noise({mixture.tokens, topk}, Dtype::kF32);
    const auto *order = rows.order.as<std::int32_t>(), *place = rows.place.as<std::int32_t>();
    const Stream stream = gpu_.stream();
    const MoeKernels& moe = kernels().moe;
    const double moved = static_cast<double>(x.view().bytes() + sorted.view().bytes());
    const double row_bytes = static_cast<double>(inner.view().bytes());
    move("gather rows", moved, [&] {
      moe.permute_rows(stream,
                       {.x = x, .rows = sorted, .order = order, .place = place, .topk = topk});
    });
    move("sum rows", moved, [&] { moe.unpermute_rows(stream, {sorted, x, place, topk}); });
    Tensor up = gpu_.noise({total, 2 * mixture.ffn}), dup = gpu_.noise({total, 2 * mixture.ffn});
    ActivationForwardArgs forward{up, inner, Activation::kSilu, true};
    ActivationBackwardArgs backward{dinner, up, dup, Activation::kSilu, true};
    forward.weights = backward.weights = {probs, order};
    backward.dprobs = dprobs;
    const ActivationKernels& activation = kernels().activation;
    move("activation", 3 * row_bytes, [&] { activation.forward(stream, forward); });
    move("activation, backward", 5 * row_bytes, [&] { activation.backward(stream, backward); });
  }

  // Quantisation of permuted tokens, and of rows in place.
  void roundings(const Mixture& mixture, const Rows& rows) {
    const std::int64_t total = mixture.tokens * mixture.topk;
    Tensor x = gpu_.noise({mixture.tokens, mixture.hidden});
    Tensor inner = gpu_.noise({total, mixture.ffn});
    auto rate = [&](const char* name, const Tensor& from, bool gathers, bool both) {
      QuantizeRequest request = rounding(from, Fp8Role::kInput, true, both);
      request.groups = groups(mixture, rows);
      if (gathers) {
        request.groups.order = rows.order.as<std::int32_t>();
        request.groups.place = rows.place.as<std::int32_t>();
      }
      request.groups.topk = mixture.topk;
      Quantized to = quantize(tools(), request);
      const double bytes = static_cast<double>(from.view().bytes() + to.rows.view().bytes() +
                                               (both ? to.columns.view().bytes() : 0));
      move(name, bytes, [&] { quantize_into(tools(), request, to); });
    };
    rate("round gathered rows", x, true, false);
    rate("both ways", x, true, true);
    rate("round rows", inner, false, false);
    rate("both ways", inner, false, true);
    round_weights(mixture);
  }

  void round_weights(const Mixture& mixture) {
    Tensor weights = gpu_.noise({mixture.experts * mixture.hidden, mixture.ffn});
    const QuantizeRequest request = rounding(weights, Fp8Role::kWeight, true, true);
    Quantized to = quantize(tools(), request);
    move("round weights", 2.0 * static_cast<double>(weights.view().bytes()),
         [&] { quantize_into(tools(), request, to); });
  }

  Gpu& gpu_;
  double copy_ = 0;
};

void run(Gpu& gpu) {
  Bench bench(gpu);
  for (const Mixture& mixture : kMixtures) {
    for (Load load : {Load::kBalanced, Load::kDrawn, Load::kSkewed}) bench.run(mixture, load);
  }
}

}  // namespace
}  // namespace bev

int main() { return bev::gpu_main("experts", bev::run); }
