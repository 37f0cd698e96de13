// Training step on the CPU: tokens/s and GFLOP/s as one JSON line, in the format of
// bench/peers/cpu_torch_step.py.
//
// usage: step MODEL MODE B T [SECONDS [MICRO_BATCHES]]   MODEL: gpt2-124m | tiny-llama; MODE: fp32
// | bf16
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "backend/cpu/cpu_kernels.h"
#include "base/clock.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "comm/world.h"
#include "data/batch.h"
#include "models/families/family.h"
#include "parallel/engine.h"

namespace bev {
namespace {

ModelConfig bench_model(const std::string& name, std::int64_t length) {
  ModelConfig model = preset(name == "tiny-llama" ? "llama-tiny" : name);
  // Same as the peer: vocabulary padded to 128, as many positions as tokens.
  if (name == "gpt2-124m") model.vocab_size = 50304;
  model.max_position_embeddings = length;
  return model;
}

double matrix_flops_per_token(const ModelConfig& model, std::int64_t length) {
  auto layers = static_cast<double>(model.num_layers),
       hidden = static_cast<double>(model.hidden_size);
  double inner = (model.gated ? 3.0 : 2.0) * hidden * static_cast<double>(model.ffn_size());
  double matrix =
      layers * (4 * hidden * hidden + inner) + static_cast<double>(model.vocab_size) * hidden;
  return 6 * matrix + 12 * layers * hidden * static_cast<double>(length);
}

// Peak resident memory of the process.
double peak_memory_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void run(World& world, const std::string& name, const std::string& mode, std::int64_t rows,
         std::int64_t length, double seconds, std::int64_t micro_batches) {
  EngineOptions options;
  options.model = bench_model(name, length);
  options.dtype = mode == "bf16" ? Dtype::kBf16 : Dtype::kF32;
  options.threads = machine_threads();
  options.parallel.data_parallel_size = 1;
  Engine engine(world, cpu_kernels(), options);
  std::vector<TokenSample> samples;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t t = 0; t <= length; ++t) {
      std::uint64_t draw = mix_bits(static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(t));
      tokens.push_back(static_cast<std::int32_t>(
          draw % static_cast<std::uint64_t>(options.model.vocab_size - 50)));
    }
    samples.push_back(window_sample(tokens));
  }
  std::vector<MicroBatch> batches =
      rank_micro_batches(engine.model().ctx(), samples, rows / micro_batches);
  std::int64_t iteration = 0;
  auto step = [&] { engine.train_step(batches, {++iteration, 1e-4, 0.01, 1.0, 0.0}); };
  step();
  step();
  std::vector<double> times;
  double start = monotonic_seconds();
  while (times.size() < 3 || monotonic_seconds() - start < seconds) {
    double begin = monotonic_seconds();
    step();
    times.push_back(monotonic_seconds() - begin);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  double median = times[times.size() / 2];
  auto tokens = static_cast<double>(rows * length);
  std::puts(fmt::format("{{\"model\": \"{}\", \"mode\": \"{}\", \"B\": {}, \"T\": {}, \"ms\": "
                        "{:.0f}, \"tok_s\": {:.1f}, "
                        "\"gflops\": {:.0f}, \"peak_mib\": {:.0f}, \"rss_mib\": {:.0f}}}",
                        name, mode, rows, length, median * 1e3, tokens / median,
                        tokens * matrix_flops_per_token(options.model, length) / median / 1e9,
                        static_cast<double>(engine.model().rank().arena().peak()) / (1 << 20),
                        peak_memory_mib())
                .c_str());
}

}  // namespace
}  // namespace bev

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fputs("usage: step gpt2-124m|tiny-llama fp32|bf16 B T [SECONDS [MICRO_BATCHES]]\n",
               stderr);
    return 2;
  }
  double seconds = argc > 5 ? std::atof(argv[5]) : 10;
  std::int64_t micro_batches = argc > 6 ? std::atoll(argv[6]) : 1;
  bev::run_thread_ranks(1, {}, [&](bev::World& world) {
    bev::run(world, argv[1], argv[2], std::atoll(argv[3]), std::atoll(argv[4]), seconds,
             micro_batches);
  });
  return 0;
}
