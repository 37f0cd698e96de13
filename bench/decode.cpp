// Generating text with keys and values kept: tokens/s as one JSON line, in the form of
// bench/peers/decode_transformers.py, and the share of memory's speed at which weights are read.
//
// usage: decode MODEL MODE BATCH [NEW_TOKENS [DEVICE]]   MODEL: a preset; MODE: fp32 | bf16;
// DEVICE: cpu | cuda
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cpu/cpu_kernels.h"
#ifdef BEV_HAS_CUDA
#include "backend/cuda/device.h"
#endif
#include "base/clock.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "comm/world.h"
#include "infer/generator.h"
#include "models/family.h"
#include "parallel/engine.h"

namespace bev {
namespace {

constexpr std::int64_t kPromptTokens = 32;

// Time between the first new token and the last, and how many steps that were.
class StepTimes : public TokenSink {
 public:
  void on_token(std::int64_t sequence, const TokenChoice&) override {
    if (sequence != 0) return;
    last_ = monotonic_seconds();
    if (steps_++ == 0) first_ = last_;
  }
  double seconds_per_step() const { return (last_ - first_) / static_cast<double>(steps_ - 1); }

 private:
  std::int64_t steps_ = 0;
  double first_ = 0, last_ = 0;
};

// Bytes read and written per second by copying, the best of several times.
double copy_speed(Context& ctx) {
  constexpr std::int64_t kBytes = std::int64_t{256} << 20, kPiece = std::int64_t{1} << 20;
  Tensor from = ctx.upload<std::uint8_t>(std::vector<std::uint8_t>(kBytes, 1), "bench");
  Tensor to = ctx.upload<std::uint8_t>(std::vector<std::uint8_t>(kBytes, 2), "bench");
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const double start = monotonic_seconds();
    if (ctx.kernels.device.record == nullptr) {  // the threads are the host's
      ctx.stream.pool->run(kBytes / kPiece, [&](std::int64_t piece) {
        std::memcpy(to.as<std::uint8_t>() + piece * kPiece,
                    from.as<std::uint8_t>() + piece * kPiece, kPiece);
      });
    } else {
      ctx.kernels.device.copy(ctx.stream, from, to);
      ctx.download<std::uint8_t>(to.rows(0, 1));
    }
    best = std::min(best, monotonic_seconds() - start);
  }
  return 2 * static_cast<double>(kBytes) / best;
}

std::vector<std::vector<std::int32_t>> random_prompts(std::int64_t batch, std::int64_t vocabulary) {
  std::vector<std::vector<std::int32_t>> prompts(static_cast<std::size_t>(batch));
  for (std::size_t row = 0; row < prompts.size(); ++row) {
    for (std::uint64_t at = 0; at < kPromptTokens; ++at) {
      prompts[row].push_back(
          static_cast<std::int32_t>(mix_bits(row, at) % static_cast<std::uint64_t>(vocabulary)));
    }
  }
  return prompts;
}

const Kernels& kernels_of(const std::string& device) {
#ifdef BEV_HAS_CUDA
  if (device == "cuda") return cuda_kernels();
#endif
  BEV_CHECK(device == "cpu", ErrorKind::kConfig, "decode: no device ", device);
  return cpu_kernels();
}

struct Wanted {
  std::string model, mode, device;
  std::int64_t batch = 1, new_tokens = 64;
};

void run(World& world, const Wanted& wanted) {
  EngineOptions options;
  options.model = preset(wanted.model);
  options.dtype = wanted.mode == "bf16" ? Dtype::kBf16 : Dtype::kF32;
  options.threads = machine_threads();
  options.parallel.data_parallel_size = 1;
  options.gradients = options.optimizer = false;
  Engine engine(world, kernels_of(wanted.device), options);
  Generator generator(engine);
  GenerationOptions generation;
  generation.max_new_tokens = wanted.new_tokens;
  generation.ignore_eos = true;
  const auto prompts = random_prompts(wanted.batch, options.model.vocab_size);
  generator.generate(prompts, generation);
  StepTimes times;
  generator.generate(prompts, generation, &times);
  // Every weight is read at each step but an embedding that is no head too, of which a few rows
  // are.
  const auto& model = options.model;
  std::int64_t weights = 0;
  for (const Param* param : engine.store().params()) weights += param->shape.numel();
  if (model.untie_embeddings_and_output_weights) weights -= model.vocab_size * model.hidden_size;
  const double bytes = static_cast<double>(weights) * static_cast<double>(size_of(options.dtype));
  const double speed = copy_speed(engine.ctx());
  const double seconds = times.seconds_per_step();
  std::puts(fmt::format("{{\"model\": \"{}\", \"mode\": \"{}\", \"batch\": {}, \"ms\": {:.2f}, "
                        "\"tok_s\": {:.1f}, \"weights_gb_s\": {:.1f}, \"copy_gb_s\": {:.1f}, "
                        "\"share\": {:.2f}}}",
                        wanted.model, wanted.mode, wanted.batch, seconds * 1e3,
                        static_cast<double>(wanted.batch) / seconds, bytes / seconds / 1e9,
                        speed / 1e9, bytes / seconds / speed)
                .c_str());
}

}  // namespace
}  // namespace bev

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("usage: decode MODEL fp32|bf16 BATCH [NEW_TOKENS [cpu|cuda]]\n", stderr);
    return 2;
  }
  const bev::Wanted wanted{argv[1], argv[2], argc > 5 ? argv[5] : "cpu", std::atoll(argv[3]),
                           argc > 4 ? std::atoll(argv[4]) : 64};
  bev::run_thread_ranks(1, {}, [&](bev::World& world) { bev::run(world, wanted); });
  return 0;
}
