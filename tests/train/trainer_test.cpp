#include "train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "backend/cpu/cpu_kernels.h"
#include "base/file.h"
#include "base/text.h"
#include "data/mock_dataset.h"
#include "tests/support/layouts.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

const std::int64_t kVocabulary = test::tiny_gpt().vocab_size;

ModelConfig small_model() {
  ModelConfig model = test::tiny_gpt();
  model.num_layers = 2;
  model.hidden_dropout = 0.1;
  model.init_method_std = 0.02;
  return model;
}

// Some samples make the loss of their batch infinite.
class PoisonedDataset final : public Dataset {
 public:
  explicit PoisonedDataset(std::set<std::int64_t> bad) : bad_(std::move(bad)) {}
  std::int64_t seq_length() const override { return mock_.seq_length(); }
  std::int64_t num_samples() const override { return mock_.num_samples(); }
  TokenSample sample(std::int64_t index) const override {
    TokenSample sample = mock_.sample(index);
    if (bad_.contains(index)) sample.weights[3] = std::numeric_limits<float>::infinity();
    return sample;
  }

 private:
  MockDataset mock_{{.vocab_size = kVocabulary, .seq_length = 16, .seed = 7}};
  std::set<std::int64_t> bad_;
};

struct TrainingRun {
  std::set<std::int64_t> bad_samples;
  TrainerConfig trainer;
  Dtype dtype = Dtype::kF32;
  std::int64_t more_eval_samples = 0;  // in a last short batch of evaluations
};

struct Answer {
  TrainOutcome outcome;
  std::string metrics;         // without timings
  std::vector<float> weights;  // at the end
};

TrainingRun some_run() {
  TrainingRun run;
  run.trainer.train.train_iters = 12;
  run.trainer.train.nan_policy = NanPolicy::kSkip;
  run.trainer.batch.micro_batch_size = 2;
  run.trainer.batch.global_batch_size = 4;
  run.trainer.data.seq_length = 16;
  run.trainer.optim.lr = 0.01;
  run.trainer.optim.lr_decay_iters = 12;
  run.trainer.optim.start_weight_decay = run.trainer.optim.end_weight_decay = 0.01;
  run.trainer.log.progress = false;
  return run;
}

std::string without_times(std::string line) {
  for (const char* key : {"\"tokens_per_second\":", "\"elapsed_ms\":"}) {
    std::size_t at = line.find(key);
    if (at != std::string::npos) line.erase(at, line.find(',', at) - at);
  }
  return line;
}

Answer train(TrainingRun run, std::int64_t ahead) {
  TempFolder folder;
  Answer answer;
  run.trainer.steps_ahead = ahead;
  run.trainer.fp16 = run.dtype == Dtype::kF16;
  run.trainer.log.metrics_out = folder.path("metrics.jsonl");
  auto data = std::make_shared<PoisonedDataset>(run.bad_samples);
  auto order = std::make_shared<SampleOrder>(SampleOrderSpec{.micro_batch_size = 2});
  RunData sources;
  sources.train = data;
  sources.train_order = order;
  if (run.trainer.train.eval_interval > 0) {
    std::int64_t samples =
        run.trainer.train.eval_iters * run.trainer.batch.global_batch_size + run.more_eval_samples;
    sources.valid = {{"", data, order, samples}};
  }
  run_thread_ranks(1, {}, [&](World& world) {
    EngineOptions options;
    options.model = small_model();
    options.parallel.data_parallel_size = 1;
    options.optim = run.trainer.optim;
    options.dtype = run.dtype;
    Engine engine(world, cpu_kernels(), options);
    {
      Trainer trainer(engine, run.trainer, sources, nullptr);
      answer.outcome = trainer.run();
    }
    for (const Param* param : engine.model().store().params()) {
      Tensor wide(engine.model().rank().arena(), Dtype::kF32, param->local, "test");
      cpu_kernels().cast(engine.model().ctx().stream,
                         engine.model().store().local_value(*param).view, wide);
      answer.weights.insert(answer.weights.end(), wide.as<float>(),
                            wide.as<float>() + wide.numel());
    }
  });
  for (const std::string& line : split(read_file(run.trainer.log.metrics_out), '\n')) {
    answer.metrics += without_times(line) + "\n";
  }
  return answer;
}

TEST(Trainer, LeavesOutIterationsButReadsTheirBatches) {
  TrainingRun plain = some_run(), skipping = some_run();
  skipping.trainer.train.iterations_to_skip = {1, 5, 6, 12};
  for (std::int64_t ahead : {0, 1}) {
    Answer all = train(plain, ahead), some = train(skipping, ahead);
    EXPECT_EQ(some.outcome.iterations, 12);
    EXPECT_EQ(some.outcome.consumed_samples, all.outcome.consumed_samples);
    EXPECT_EQ(some.outcome.skipped, 0);
    std::vector<std::string> lines = split(some.metrics, '\n');
    EXPECT_EQ(std::ranges::count_if(lines, [](const auto& line) { return !line.empty(); }), 8);
    EXPECT_NE(all.weights, some.weights);
  }
}

void expect_equal(const Answer& one, const Answer& other) {
  EXPECT_EQ(one.metrics, other.metrics);
  EXPECT_EQ(one.weights, other.weights);
  EXPECT_EQ(one.outcome.iterations, other.outcome.iterations);
  EXPECT_EQ(one.outcome.skipped, other.outcome.skipped);
  EXPECT_EQ(one.outcome.consumed_samples, other.outcome.consumed_samples);
  EXPECT_EQ(one.outcome.reason, other.outcome.reason);
}

void check_running_ahead(const TrainingRun& run) {
  Answer waiting = train(run, 0);
  for (std::int64_t ahead : {1, 3}) {
    SCOPED_TRACE(ahead);
    expect_equal(waiting, train(run, ahead));
  }
}

TEST(Trainer, RunningAheadChangesNothing) {
  TrainingRun run = some_run();
  check_running_ahead(run);
  EXPECT_EQ(train(run, 1).outcome.skipped, 0);
}

// Steps enqueued after a bad one are discarded and enqueued again with the learning rate and
// weights of a run that waits.
TEST(Trainer, RunningAheadPassesBadStepsAsWaitingDoes) {
  TrainingRun run = some_run();
  run.bad_samples = {2, 17, 23, 24, 47};  // iterations 1, 5, 6, 7, 12
  check_running_ahead(run);
  EXPECT_EQ(train(run, 1).outcome.skipped, 5);
}

TEST(Trainer, RunningAheadFindsTheLossScale) {
  TrainingRun run = some_run();
  run.dtype = Dtype::kF16;
  run.trainer.optim.hysteresis = 1;
  run.trainer.optim.loss_scale_window = 2;
  run.trainer.optim.initial_loss_scale = 1ll << 24;
  check_running_ahead(run);
  std::int64_t skipped = train(run, 1).outcome.skipped;
  EXPECT_GT(skipped, 2);
  EXPECT_LT(skipped, 12);
}

TEST(Trainer, RunningAheadStopsWhereItShould) {
  TrainingRun run = some_run();
  run.trainer.train.eval_interval = 3;
  run.trainer.train.eval_iters = 2;
  run.trainer.train.exit_interval = 7;
  run.bad_samples = {33};
  check_running_ahead(run);
  EXPECT_EQ(train(run, 1).outcome.iterations, 7);
}

TEST(Trainer, ABadStepIsNamedAlsoWhenLaterOnesWereBegun) {
  TrainingRun run = some_run();
  run.trainer.train.nan_policy = NanPolicy::kStop;
  run.bad_samples = {13};  // iteration 4
  check_running_ahead(run);
  for (std::int64_t ahead : {0, 1, 3}) {
    Answer answer = train(run, ahead);
    EXPECT_NE(answer.outcome.failure.find("iteration 4: loss"), std::string::npos)
        << answer.outcome.failure;
    EXPECT_EQ(answer.outcome.last_iteration, 3);
    EXPECT_EQ(answer.outcome.consumed_samples, 12);
  }
  // The state is that of a run of three iterations.
  TrainingRun shorter = some_run();
  shorter.trainer.train.exit_interval = 3;
  EXPECT_EQ(train(run, 1).weights, train(shorter, 1).weights);
}

TEST(Trainer, TooManySkippedStepsInARowEndTheRun) {
  TrainingRun run = some_run();
  run.trainer.train.max_consecutive_skips = 2;
  run.bad_samples = {4, 8, 17, 20, 24, 44};  // iterations 2, 3, 5, 6, 7, 12
  check_running_ahead(run);
  Answer answer = train(run, 1);
  EXPECT_NE(answer.outcome.failure.find("iteration 7: loss"), std::string::npos)
      << answer.outcome.failure;
  EXPECT_EQ(answer.outcome.last_iteration, 7);
  EXPECT_EQ(answer.outcome.skipped, 5);
  run.trainer.train.max_consecutive_skips = 3;
  EXPECT_EQ(train(run, 1).outcome.failure, "");
  run.trainer.train.max_consecutive_skips = 0;  // no limit
  EXPECT_EQ(train(run, 1).outcome.failure, "");
}

// Overflows count only when the loss scale cannot go down any more.
TEST(Trainer, OverflowsOfTheLossScaleAreNoSkipsInARow) {
  TrainingRun run = some_run();
  run.dtype = Dtype::kF16;
  run.trainer.optim.hysteresis = 1;
  run.trainer.optim.initial_loss_scale = 1ll << 24;
  run.trainer.train.nan_policy = NanPolicy::kStop;
  run.trainer.train.max_consecutive_skips = 1;
  Answer answer = train(run, 1);
  EXPECT_EQ(answer.outcome.failure, "");
  EXPECT_GT(answer.outcome.skipped, 2);
  run.trainer.optim.min_loss_scale = 1ll << 24;
  answer = train(run, 1);
  EXPECT_NE(answer.outcome.failure.find("--max-consecutive-skips 1"), std::string::npos)
      << answer.outcome.failure;
  EXPECT_EQ(answer.outcome.skipped, 2);
}

TEST(Trainer, StopsWhenValidationDoesNotImprove) {
  TrainingRun run = some_run();
  run.trainer.optim.lr = 0;  // nothing is learned
  run.trainer.train.eval_interval = 2;
  run.trainer.train.eval_iters = 1;
  run.more_eval_samples = 3;
  run.trainer.train.eval.early_stop_patience = 3;
  check_running_ahead(run);
  Answer answer = train(run, 1);
  EXPECT_EQ(answer.outcome.reason, StopReason::kPatience);
  EXPECT_EQ(answer.outcome.iterations, 8);
  EXPECT_EQ(answer.outcome.validation.best_iteration, 2);
  // A run that is resumed there has no patience left, unless it is given more.
  run.trainer.start.emplace();
  run.trainer.start->iteration = 8;
  run.trainer.start->scaler.scale = 1;
  run.trainer.start->validation = answer.outcome.validation;
  EXPECT_EQ(train(run, 1).outcome.iterations, 0);
  run.trainer.train.eval.early_stop_patience = 4;
  EXPECT_EQ(train(run, 1).outcome.iterations, 2);
}

TEST(Trainer, DecoupledLearningRatesFollowTheScheduleBetweenTheirEnds) {
  TrainingRun run = some_run();
  run.trainer.optim.groups.decoupled_lr = 0.04;
  run.trainer.optim.groups.decoupled_min_lr = 0.02;
  Answer answer = train(run, 1);
  EXPECT_NE(answer.metrics.find("\"lr\":0.01,\"decoupled_lr\":0.04,"), std::string::npos);
  EXPECT_NE(answer.metrics.find("\"lr\":0.005,\"decoupled_lr\":0.03,"), std::string::npos);
  EXPECT_NE(answer.weights, train(some_run(), 1).weights);
}

// Samples of 3 to 22 tokens, some of two documents.
class UnevenDataset final : public Dataset {
 public:
  std::int64_t seq_length() const override { return 0; }
  std::int64_t num_samples() const override { return 1000; }
  TokenSample sample(std::int64_t index) const override {
    const std::int64_t length = 3 + index * 7 % 20;
    TokenSample sample =
        random_samples(kVocabulary, 1, length, static_cast<std::uint64_t>(index)).front();
    const auto first = static_cast<std::int32_t>(length / 3);
    sample.documents = {static_cast<std::int32_t>(length)};
    if (index % 3 == 0) sample.documents = {first, sample.documents[0] - first};
    return sample;
  }
};

TrainOutcome train_uneven(const ParallelConfig& parallel) {
  TrainerConfig config = some_run().trainer;
  config.train.train_iters = 6;
  config.train.eval_interval = 3;
  config.train.eval_iters = 2;
  config.batch.micro_batch_size = 1;
  config.batch.global_batch_size = 8;
  config.data.seq_length = 32;
  auto data = std::make_shared<UnevenDataset>();
  auto order = std::make_shared<SampleOrder>(SampleOrderSpec{.micro_batch_size = 1});
  RunData sources;
  sources.train = data;
  sources.train_order = order;
  sources.valid = {{"", data, order, 19}};
  TrainOutcome outcome;
  run_thread_ranks(static_cast<int>(mesh_shape(parallel).size()), {60.0}, [&](World& world) {
    EngineOptions options;
    options.model = small_model();
    options.parallel = parallel;
    options.optim = config.optim;
    options.dtype = Dtype::kF64;
    Engine engine(world, cpu_kernels(), options);
    Trainer trainer(engine, config, sources, nullptr);
    TrainOutcome mine = trainer.run();
    if (world.rank() == 0) outcome = std::move(mine);
  });
  return outcome;
}

TEST(Trainer, SharesOutSequencesOfUnequalLength) {
  ParallelConfig parallel;
  parallel.data_parallel_size = 1;
  const TrainOutcome one = train_uneven(parallel);
  parallel.data_parallel_size = parallel.context_parallel_size = 2;
  parallel.hybrid_context_parallel = true;
  parallel.max_seqlen_per_dp_cp_rank = 12;
  const TrainOutcome shared = train_uneven(parallel);
  EXPECT_EQ(shared.iterations, 6);
  EXPECT_EQ(shared.consumed_samples, one.consumed_samples);
  EXPECT_EQ(shared.consumed_tokens, one.consumed_tokens);
  ASSERT_EQ(shared.evaluations.size(), one.evaluations.size());
  EXPECT_NEAR(shared.evaluations.back().loss, one.evaluations.back().loss, 1e-9);
  ASSERT_EQ(shared.curves.train.size(), one.curves.train.size());
  for (std::size_t i = 0; i < one.curves.train.size(); ++i) {
    EXPECT_NEAR(shared.curves.train[i].y, one.curves.train[i].y, 1e-9);
  }
  EXPECT_GT(one.consumed_tokens, 0);
}

}  // namespace
}  // namespace bev
