// A pipeline schedule of one's own: GPipe, all forwards before all backwards. It is played without
// tensors first, next to 1F1B, and then trains the same model on two pipeline ranks: the losses are
// the same, the memory is not.
#include <cstdio>
#include <vector>

#include "backend/cpu/cpu_kernels.h"
#include "data/mock_dataset.h"
#include "parallel/engine.h"
#include "parallel/pipeline/schedule_player.h"

using namespace bev;

class GPipe final : public ScheduleMaker {
 public:
  std::vector<Schedule> make(const PipelineShape& shape,
                             std::int64_t micro_batches) const override {
    std::vector<Schedule> lists(static_cast<std::size_t>(shape.ranks));
    for (std::int64_t rank = 0; rank < shape.ranks; ++rank) {
      bool first = rank == 0, last = rank == shape.ranks - 1;
      Schedule& list = lists[static_cast<std::size_t>(rank)];
      for (std::int64_t i = 0; i < micro_batches; ++i) {
        if (!first) list.push_back({ActionKind::kReceiveForward, i});
        list.push_back({ActionKind::kForward, i});
        if (!last) list.push_back({ActionKind::kSendForward, i});
      }
      for (std::int64_t i = 0; i < micro_batches; ++i) {
        if (!last) list.push_back({ActionKind::kReceiveBackward, i});
        list.push_back({ActionKind::kBackward, i});
        if (!first) list.push_back({ActionKind::kSendBackward, i});
      }
    }
    return lists;
  }
};

constexpr int kStages = 2, kMicroBatches = 6, kSteps = 5;

void show(const char* name, const std::vector<Schedule>& lists) {
  ScheduleReport report = play_schedules({.ranks = kStages}, lists, kMicroBatches, true);
  std::printf("%s: %s, %d micro-batches in flight on the first rank, bubble %.0f%%\n", name,
              report.problem.empty() ? "complete" : report.problem.c_str(),
              static_cast<int>(report.peak_in_flight.front()), 100 * report.bubble);
}

// The losses of a few steps; null: 1F1B.
std::vector<double> train(const ScheduleMaker* schedules) {
  std::vector<double> losses;
  run_thread_ranks(kStages, {}, [&](World& world) {
    EngineOptions options;
    ModelConfig& model = options.model;
    model.family = "gpt2";
    model.num_layers = 4, model.hidden_size = 48, model.ffn_hidden_size = 96;
    model.num_attention_heads = model.num_query_groups = 4, model.kv_channels = 12;
    model.vocab_size = 64, model.max_position_embeddings = 16;
    options.parallel.pipeline_model_parallel_size = kStages;
    options.parallel.data_parallel_size = 1;
    options.schedules = schedules;
    Engine engine(world, cpu_kernels(), options);
    MockDataset data({.vocab_size = model.vocab_size, .seq_length = 16, .seed = 3});
    for (std::int64_t step = 0; step < kSteps; ++step) {
      std::vector<TokenSample> samples;
      for (int i = 0; i < kMicroBatches; ++i) {
        samples.push_back(data.sample(step * kMicroBatches + i));
      }
      std::vector<MicroBatch> batches = rank_micro_batches(engine.model().ctx(), samples, 1);
      StepResult result = engine.train_step(batches, {.iteration = step + 1, .lr = 3e-3});
      if (world.rank() == 0) losses.push_back(result.loss);
    }
  });
  return losses;
}

int main() {
  GPipe own;
  show("GPipe", own.make({.ranks = kStages}, kMicroBatches));
  show("1F1B", make_schedules({.ranks = kStages}, kMicroBatches));
  std::vector<double> mine = train(&own), theirs = train(nullptr);
  for (int step = 0; step < kSteps; ++step) {
    std::printf("step %d: loss %.6f, with 1F1B %.6f\n", step + 1, mine[step], theirs[step]);
  }
  return mine == theirs ? 0 : 1;
}
