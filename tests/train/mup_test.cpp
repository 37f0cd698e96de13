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

}  // namespace
}  // namespace bev::test
