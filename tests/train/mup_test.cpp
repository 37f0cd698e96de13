// MuP: sizes of what a model computes do not depend on its width (coordinate check).
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "backend/cpu/cpu_kernels.h"
#include "data/batch.h"
#include "parallel/engine.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

// Root mean squares of results, by layer and op.
class Sizes final : public TensorSink {
 public:
  void see(const Context& ctx, std::string_view op, bool in_backward, const View& view) override {
    if (in_backward || view.dtype != Dtype::kF32) return;
    double sum = 0;
    for (float value : ctx.download<float>(view)) sum += double{value} * value;
    all[concat(ctx.layer, " ", op)] = std::sqrt(sum / static_cast<double>(view.numel()));
  }
  std::map<std::string, double> all;
};

ModelConfig model_of(std::int64_t width, bool mup) {
  ModelConfig model = tiny_llama();
  model.num_layers = 2;
  model.hidden_size = width;
  model.num_attention_heads = width / 16;
  model.num_query_groups = 0;
  model.kv_channels = 16;
  model.ffn_hidden_size = 2 * width;
  model.init_method_std = 0.1;
  model.mup.use_mup = mup;
  model.mup.base_hidden_size = 64;
  model.mup.base_head_dim = 16;
  return model;
}

// After a few steps of Adam.
std::map<std::string, double> sizes_at(std::int64_t width, bool mup) {
  Sizes sizes;
  run_thread_ranks(1, {}, [&](World& world) {
    EngineOptions options;
    options.model = model_of(width, mup);
    options.parallel.data_parallel_size = 1;
    options.threads = 2;
    Engine engine(world, cpu_kernels(), options);
    std::vector<MicroBatch> batches = rank_micro_batches(
        engine.model().ctx(), random_samples(options.model.vocab_size, 4, 16, 3), 4);
    StepInput input{.iteration = 1, .lr = 1e-2};
    for (; input.iteration <= 4; ++input.iteration) engine.train_step(batches, input);
    engine.show_tensors(batches, input, sizes);
  });
  return sizes.all;
}

// The largest slope of the logarithm of a size over that of the width.
double steepest(bool mup) {
  const std::vector<std::int64_t> widths = {64, 128, 256, 512, 1024};
  std::map<std::string, std::vector<double>> by_op;
  for (std::int64_t width : widths) {
    for (const auto& [op, size] : sizes_at(width, mup)) by_op[op].push_back(std::log(size));
  }
  double most = 0;
  for (const auto& [op, logs] : by_op) {
    EXPECT_EQ(logs.size(), widths.size()) << op;
    // Least squares over equal distances of log(2).
    const double slope = (2 * (logs[4] - logs[0]) + logs[3] - logs[1]) / 10 / std::log(2.0);
    if (std::abs(slope) > std::abs(most)) most = slope;
  }
  return most;
}

TEST(MuP, KeepsTheSizesOfAllResultsOverTheWidth) {
  EXPECT_GT(std::abs(steepest(false)), 0.3);
  EXPECT_LT(std::abs(steepest(true)), 0.1);
}

// Learning rates 2^first, 2^(first + 1), .., and the mean loss of the last steps of a run with
// each.
constexpr int kFirstRate = -11, kRates = 8, kSteps = 40, kLastSteps = 8;

double loss_with(std::int64_t width, bool mup, double rate) {
  double loss = 0;
  run_thread_ranks(1, {}, [&](World& world) {
    EngineOptions options;
    options.model = model_of(width, mup);
    options.parallel.data_parallel_size = 1;
    options.threads = 2;
    Engine engine(world, cpu_kernels(), options);
    std::vector<MicroBatch> batches = rank_micro_batches(
        engine.model().ctx(), random_samples(options.model.vocab_size, 8, 24, 3), 8);
    for (int step = 1; step <= kSteps; ++step) {
      StepInput input{.iteration = step, .lr = rate, .clip_grad = 1};
      const StepResult result = engine.train_step(batches, input);
      if (step > kSteps - kLastSteps) loss += result.loss / kLastSteps;
    }
  });
  return std::isfinite(loss) ? loss : 1e9;
}

// The exponent of the best learning rate of a width.
int best_rate(std::int64_t width, bool mup) {
  int best = kFirstRate;
  double least = 1e18;
  for (int exponent = kFirstRate; exponent < kFirstRate + kRates; ++exponent) {
    const double loss = loss_with(width, mup, std::exp2(exponent));
    if (loss < least) least = loss, best = exponent;
  }
  // A best rate at an end of the grid says nothing about where the best is.
  EXPECT_GT(best, kFirstRate) << "width " << width;
  EXPECT_LT(best, kFirstRate + kRates - 1) << "width " << width;
  return best;
}

// Widths that differ by 8 differ by more than a factor of 2 without it.
TEST(MuP, DISABLED_KeepsTheBestLearningRateOverTheWidth) {
  const int narrow = best_rate(64, true), wide = best_rate(512, true);
  EXPECT_LE(std::abs(wide - narrow), 1) << "2^" << narrow << " and 2^" << wide;
  const int plain = best_rate(512, false);
  EXPECT_GT(best_rate(64, false) - plain, 1) << "2^" << plain;
}

}  // namespace
}  // namespace bev::test
