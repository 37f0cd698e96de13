// Skinny GEMM for decoding: bandwidth at which weights are read by each kernel, and by a captured
// chain of norms and GEMMs, where a GEMM may overlap the norm before it.
#include <cstdio>
#include <functional>
#include <vector>

#include "backend/cuda/gemm/linear_gemm.h"
#include "gpu_rig.h"
#include "kernels/gemm.h"
#include "kernels/norm.h"

namespace bev {
namespace {

struct Weight {
  const char* name;
  std::int64_t out, in;
};
const std::vector<Weight> kWeights = {
    {"gpt2-124m qkv", 2304, 768},         {"gpt2-124m down", 768, 3072},
    {"llama3.2-1b qkv", 3072, 2048},      {"llama3.2-1b proj", 2048, 2048},
    {"llama3.2-1b gate|up", 16384, 2048}, {"llama3.2-1b down", 2048, 8192},
    {"llama3.2-1b head", 128256, 2048},   {"qwen3-30b-a3b router", 128, 2048},
    {"llama3-8b qkv", 6144, 4096},        {"llama3-8b proj", 4096, 4096},
    {"llama3-8b gate|up", 28672, 4096},   {"llama3-8b down", 4096, 14336},
    {"llama3-8b head", 128256, 4096}};

// Enough copies to exceed the caches, so that every GEMM reads from memory.
std::int64_t copies_of(const Weight& weight) {
  constexpr std::int64_t kBytes = std::int64_t{300} << 20;
  return kBytes / (2 * weight.out * weight.in) + 1;
}

// The GEMM of one layout, by every kernel that takes it.
class Case {
 public:
  Case(Gpu& gpu, const Weight& weight, std::int64_t rows)
      : gpu_(gpu),
        weight_(weight),
        copies_(copies_of(weight)),
        weights_(gpu.noise({copies_ * weight.out, weight.in})),
        x_(gpu.noise({rows, weight.in})),
        y_(gpu.noise({rows, weight.out})),
        scale_(gpu.noise({weight.in})),
        normed_(gpu.noise({rows, weight.in})),
        rstd_(gpu.empty(Dtype::kF32, {rows})) {}

  void print() {
    std::printf("%-22s %2d rows:", weight_.name, static_cast<int>(x_.shape()[0]));
    show("ring", [&] { cuda::gemm_ring(gpu_.stream(), linear(x_), false); });
    show("exact ring", [&] { cuda::gemm_ring(gpu_.stream(), linear(x_), true); });
    show("cuBLASLt", [&] { run_library(); });
    show("exact", [&] { cuda_exact_kernels().gemm.gemm(gpu_.stream(), gemm(x_)); });
    show_chain("table", cuda_kernels());
    show_chain("exact table", cuda_exact_kernels());
    std::printf("\n");
    std::fflush(stdout);
  }

 private:
  View next_weight() {
    turn_ = (turn_ + 1) % copies_;
    return weights_.view().rows(turn_ * weight_.out, (turn_ + 1) * weight_.out);
  }
  GemmArgs gemm(const Tensor& a) {
    return {.a = a,
            .b = next_weight(),
            .c = y_,
            .transpose_b = true,
            .bias = {},
            .a_columns = weight_.in};
  }
  cuda::LinearGemm linear(const Tensor& a) { return cuda::linear_gemm(gemm(a)); }
  // What adds to c, only the library takes; c is small.
  void run_library() {
    GemmArgs args = gemm(x_);
    args.beta = 1;
    cuda_kernels().gemm.gemm(gpu_.stream(), args);
  }
  void show_seconds(const char* name, double seconds) {
    const double bytes = 2.0 * static_cast<double>(weight_.out * weight_.in);
    std::printf("  %s %.1f us %.2f TB/s", name, 1e6 * seconds, bytes / seconds * 1e-12);
  }
  void show(const char* name, const std::function<void()>& body) {
    show_seconds(name, gpu_.seconds([&] {
      body();
      return true;
    }));
  }
  // Norms and GEMMs in turn, in a CUDA graph.
  void show_chain(const char* name, const Kernels& kernels) {
    constexpr std::int64_t kLinks = 32;
    const auto link = [&] {
      NormForwardArgs norm;
      norm.x = x_;
      norm.y = normed_;
      norm.weight = scale_;
      norm.rstd = rstd_;
      kernels.norm.forward(gpu_.stream(), norm);
      kernels.gemm.gemm(gpu_.stream(), gemm(normed_));
    };
    link();
    std::unique_ptr<DeviceGraph> graph = kernels.device.capture(gpu_.stream(), [&] {
      for (std::int64_t i = 0; i < kLinks; ++i) link();
    });
    const double seconds = gpu_.seconds([&] {
      graph->start();
      return true;
    });
    std::printf("  | norm and %s", name);
    show_seconds("", seconds / kLinks);
  }

  Gpu& gpu_;
  Weight weight_;
  std::int64_t copies_, turn_ = 0;
  Tensor weights_, x_, y_, scale_, normed_, rstd_;
};

void run(Gpu& gpu) {
  for (std::int64_t rows : {1, 2, 4, 8, 16, 32}) {
    for (const Weight& weight : kWeights) Case(gpu, weight, rows).print();
  }
}

}  // namespace
}  // namespace bev

int main() { return bev::gpu_main("skinny_gemm", bev::run); }
