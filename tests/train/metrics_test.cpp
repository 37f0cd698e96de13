// A metric of a program's own reaches log line, JSON lines and TensorBoard under every layout.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "backend/cpu/cpu_kernels.h"
#include "base/file.h"
#include "base/text.h"
#include "data/mock_dataset.h"
#include "tests/support/layouts.h"
#include "tests/support/temp_folder.h"
#include "tests/support/watched_model.h"
#include "train/trainer.h"

namespace bev {
namespace {

constexpr std::int64_t kIterations = 3, kSamples = 4;  // of a global batch

// The first index % 5 tokens of a sample have no weight.
class MaskedDataset final : public Dataset {
 public:
  std::int64_t seq_length() const override { return mock_.seq_length(); }
  std::int64_t num_samples() const override { return mock_.num_samples(); }
  TokenSample sample(std::int64_t index) const override {
    TokenSample sample = mock_.sample(index);
    for (std::size_t t = 0; t < static_cast<std::size_t>(index % 5); ++t) sample.weights[t] = 0;
    return sample;
  }
  static double masked_in(std::int64_t iteration) {
    double count = 0;
    for (std::int64_t i = 0; i < kSamples; ++i) {
      count += static_cast<double>(((iteration - 1) * kSamples + i) % 5);
    }
    return count;
  }

 private:
  MockDataset mock_{{.vocab_size = test::tiny_llama().vocab_size, .seq_length = 16, .seed = 7}};
};

struct Output {
  std::string log, tensorboard;
  std::vector<nlohmann::json> metrics;  // one object for each iteration
};

Output train(const ParallelConfig& parallel) {
  TempFolder folder;
  TrainerConfig config;
  config.train.train_iters = kIterations;
  config.batch.micro_batch_size = 1;
  config.batch.global_batch_size = kSamples;
  config.data.seq_length = 16;
  config.optim.lr = 0.01;
  config.optim.lr_decay_iters = kIterations;
  config.optim.start_weight_decay = config.optim.end_weight_decay = 0.01;
  config.log.log_interval = 1;
  config.log.progress = false;
  config.log.metrics_out = folder.path("metrics.jsonl");
  config.log.tensorboard_dir = folder.path("tensorboard");
  auto data = std::make_shared<MaskedDataset>();
  auto order = std::make_shared<SampleOrder>(
      SampleOrderSpec{.data_parallel_size = parallel.data_parallel_size});
  testing::internal::CaptureStderr();
  run_thread_ranks(static_cast<int>(mesh_shape(parallel).size()), {60.0}, [&](World& world) {
    EngineOptions options;
    options.model = test::tiny_llama();
    options.model.architecture = test::watched_architecture();
    options.dtype = Dtype::kF64;
    options.parallel = parallel;
    options.optim = config.optim;
    options.objective = &test::watched_objective();
    options.metrics = {test::masked_tokens(), test::mixer_input_norm()};
    Engine engine(world, cpu_kernels(), options);
    RunData sources;
    sources.train = data;
    sources.train_order = order;
    Trainer(engine, config, sources, nullptr).run();
  });
  Output out;
  out.log = testing::internal::GetCapturedStderr();
  for (const auto& entry : std::filesystem::directory_iterator(config.log.tensorboard_dir)) {
    out.tensorboard += read_file(entry.path());
  }
  for (const std::string& line : split(read_file(config.log.metrics_out), '\n')) {
    if (!line.empty()) out.metrics.push_back(nlohmann::json::parse(line));
  }
  return out;
}

// The values of a tag, step after step: each follows its name as a float.
std::vector<float> scalars(const std::string& events, const std::string& tag) {
  std::string name = std::string("\x0a") + static_cast<char>(tag.size()) + tag + "\x15";
  std::vector<float> found;
  for (std::size_t at = events.find(name); at != std::string::npos; at = events.find(name, at)) {
    at += name.size();
    std::memcpy(&found.emplace_back(), events.data() + at, sizeof(float));
  }
  return found;
}

ParallelConfig one_rank() {
  ParallelConfig parallel;
  parallel.data_parallel_size = 1;
  return parallel;
}

TEST(Metrics, OfAProgramAreLoggedUnderEveryLayout) {
  ParallelConfig tp = one_rank(), pp = one_rank(), cp = one_rank(), dp = one_rank();
  tp.tensor_model_parallel_size = 2;
  pp.pipeline_model_parallel_size = 2;
  cp.context_parallel_size = 2;
  dp.data_parallel_size = 2;
  std::vector<nlohmann::json> expected = train(one_rank()).metrics;
  ASSERT_EQ(expected.size(), 3u);
  for (const ParallelConfig& parallel : {tp, pp, cp, dp}) {
    Output out = train(parallel);
    ASSERT_EQ(out.metrics.size(), expected.size());
    std::vector<float> counts = scalars(out.tensorboard, "masked-tokens");
    std::vector<float> norms = scalars(out.tensorboard, "mixer-input-norm");
    ASSERT_EQ(counts.size(), expected.size());
    ASSERT_EQ(norms.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      double masked = MaskedDataset::masked_in(static_cast<std::int64_t>(i) + 1);
      double norm = expected[i].at("mixer_input_norm").get<double>();
      EXPECT_EQ(out.metrics[i].at("masked_tokens"), masked);
      EXPECT_NEAR(out.metrics[i].at("mixer_input_norm").get<double>(), norm, 1e-9 * norm);
      EXPECT_EQ(counts[i], static_cast<float>(masked));
      EXPECT_NEAR(norms[i], norm, 1e-6 * norm);
      EXPECT_NE(out.log.find(concat(" masked tokens: ", masked, " | mixer input norm: ")),
                std::string::npos)
          << out.log;
    }
  }
}

}  // namespace
}  // namespace bev
