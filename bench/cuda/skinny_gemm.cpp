// Skinny GEMM for decoding: bandwidth at which weights are read, compared with cuBLASLt.
#include <cstdio>
#include <vector>

#include "gpu_rig.h"
#include "kernels/gemm.h"

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
    {"llama3-8b gate|up", 28672, 4096},   {"llama3-8b down", 4096, 14336}};

// Enough copies to exceed the caches, so that every GEMM reads from memory.
std::int64_t copies_of(const Weight& weight) {
  constexpr std::int64_t kBytes = std::int64_t{300} << 20;
  return kBytes / (2 * weight.out * weight.in) + 1;
}

void bench(Gpu& gpu, const Weight& weight, std::int64_t rows) {
  const std::int64_t copies = copies_of(weight);
  Tensor weights = gpu.noise({copies * weight.out, weight.in});
  Tensor x = gpu.noise({rows, weight.in}), y = gpu.noise({rows, weight.out});
  // Padded rows are not supported by our kernel, so they select cuBLASLt.
  Tensor longer = gpu.noise({rows, weight.in + 64});
  std::int64_t turn = 0;
  auto microseconds = [&](const Tensor& a) {
    return 1e6 * gpu.seconds([&] {
      turn = (turn + 1) % copies;
      View w = weights.view().rows(turn * weight.out, (turn + 1) * weight.out);
      cuda_kernels().gemm.gemm(
          gpu.stream(),
          {.a = a, .b = w, .c = y, .transpose_b = true, .bias = {}, .a_columns = weight.in});
      return true;
    });
  };
  const double bytes = 2.0 * static_cast<double>(weight.out * weight.in);
  const double ours = microseconds(x), library = microseconds(longer);
  std::printf("%-24s %2d rows: %7.1f us %5.2f TB/s, cuBLASLt %7.1f us %5.2f TB/s\n", weight.name,
              static_cast<int>(rows), ours, bytes / ours * 1e-6, library, bytes / library * 1e-6);
}

void run(Gpu& gpu) {
  for (std::int64_t rows : {1, 8, 16}) {
    for (const Weight& weight : kWeights) bench(gpu, weight, rows);
  }
}

}  // namespace
}  // namespace bev

int main() { return bev::gpu_main("few_rows", bev::run); }
