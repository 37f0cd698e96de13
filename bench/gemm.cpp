// CPU GEMM in the three layouts of a linear (forward, dgrad, wgrad): GFLOP/s as JSON lines, by wall
// time and by CPU time of all threads (which excludes other processes).
//
// usage: products [SECONDS] [LEVEL]   LEVEL: x86-64 level 2, 3 or 4; default: the best one
#include "kernels/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "backend/cpu/cpu_kernels.h"
#include "base/clock.h"
#include "base/philox.h"
#include "base/thread_pool.h"

namespace bev {
namespace {

struct Layout {
  const char* name;
  bool transpose_a, transpose_b;
};
constexpr Layout kLayouts[] = {
    {"forward", false, true}, {"input gradient", false, false}, {"weight gradient", true, false}};

struct Size {
  std::int64_t m, n, k;
};
constexpr Size kSizes[] = {{1024, 1024, 1024}, {4096, 768, 3072}, {4096, 3072, 768},
                           {1024, 50304, 768}, {256, 256, 256},   {256, 2304, 768},
                           {1, 3072, 3072},    {8, 3072, 3072}};

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class Matrix {
 public:
  Matrix(Dtype dtype, std::int64_t rows, std::int64_t columns)
      : dtype_(dtype),
        shape_{rows, columns},
        bytes_(static_cast<std::size_t>(rows * columns) * size_of(dtype)) {
    for (std::size_t i = 0; i < bytes_.size() / size_of(dtype); ++i) {
      const float value = static_cast<float>(mix_bits(1, i) % 255) / 128.0f - 1.0f;
      if (dtype == Dtype::kF32) {
        reinterpret_cast<float*>(bytes_.data())[i] = value;
      } else {
        reinterpret_cast<Bf16*>(bytes_.data())[i] = Bf16(value);
      }
    }
  }
  View view() { return {bytes_.data(), dtype_, shape_}; }

 private:
  Dtype dtype_;
  Shape shape_;
  std::vector<std::byte> bytes_;
};

void measure(const Kernels& kernels, ThreadPool& pool, Dtype dtype, const Layout& layout,
             const Size& size, double seconds) {
  const bool ta = layout.transpose_a, tb = layout.transpose_b;
  Matrix a(dtype, ta ? size.k : size.m, ta ? size.m : size.k);
  Matrix b(dtype, tb ? size.n : size.k, tb ? size.k : size.n);
  Matrix c(ta ? Dtype::kF32 : dtype, size.m, size.n);
  const Stream stream{.pool = &pool, .handle = nullptr};
  const auto multiply = [&] {
    kernels.gemm.gemm(stream, {.a = a.view(),
                               .b = b.view(),
                               .c = c.view(),
                               .transpose_a = ta,
                               .transpose_b = tb,
                               .beta = ta ? 1.0 : 0.0,
                               .bias = {}});
  };
  multiply();
  std::int64_t runs = 0;
  const double start = monotonic_seconds(), processor = processor_seconds();
  while (runs < 2 || monotonic_seconds() - start < seconds) {
    multiply();
    ++runs;
  }
  const double work = 2e-9 * static_cast<double>(runs * size.m * size.n * size.k);
  std::puts(fmt::format("{{\"dtype\": \"{}\", \"layout\": \"{}\", \"m\": {}, \"n\": {}, \"k\": {}, "
                        "\"gflops\": {:.0f}, \"gflops_per_core\": {:.0f}}}",
                        name_of(dtype), layout.name, size.m, size.n, size.k,
                        work / (monotonic_seconds() - start),
                        work / (processor_seconds() - processor))
                .c_str());
}

}  // namespace
}  // namespace bev

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  const bev::Kernels& kernels =
      argc > 2 ? bev::cpu_kernels(static_cast<bev::CpuLevel>(std::atoi(argv[2]) - 2))
               : bev::cpu_kernels();
  bev::ThreadPool pool(bev::machine_threads());
  for (const bev::Size& size : bev::kSizes) {
    for (const bev::Layout& layout : bev::kLayouts) {
      for (bev::Dtype dtype : {bev::Dtype::kF32, bev::Dtype::kBf16}) {
        bev::measure(kernels, pool, dtype, layout, size, seconds);
      }
    }
  }
  return 0;
}
