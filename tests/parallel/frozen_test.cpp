// Frozen parameters cost only their weights: no gradient memory, no optimizer state, no wgrad, and
// the backward ends where nothing upstream trains.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "backend/cpu/cpu_kernels.h"
#include "base/text.h"
#include "base/trace.h"
#include "comm/world.h"
#include "data/batch.h"
#include "kernels/gemm.h"
#include "kernels/tables.h"
#include "models/model.h"
#include "parallel/engine.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

constexpr std::int64_t kLayers = 4, kFirstTrained = 2;

bool in_trained_part(const std::string& name) {
  return name.starts_with(concat("decoder.layers.", kFirstTrained, ".")) ||
         name.starts_with(concat("decoder.layers.", kFirstTrained + 1, ".")) ||
         name.starts_with("decoder.final") || name.starts_with("output_layer");
}

std::unique_ptr<ModelStage> make_frozen_prefix(const ModelConfig& config, const StageRange& range,
                                               const BuildOptions& options, Param* embedding) {
  auto stage = kDecoderArchitecture.make_stage(config, range, options, embedding);
  for (Param* param : stage->params()) param->trains = in_trained_part(param->name);
  return stage;
}

const Architecture* frozen_prefix() {
  static const Architecture architecture = [] {
    Architecture made = kDecoderArchitecture;
    made.make_stage = make_frozen_prefix;
    return made;
  }();
  return &architecture;
}

ModelConfig frozen_model() {
  ModelConfig model = tiny_llama();
  model.num_layers = kLayers;
  model.untie_embeddings_and_output_weights = true;
  model.architecture = frozen_prefix();
  return model;
}

struct StepTrace {
  std::set<std::int64_t> backward_layers;  // layers in which an op's backward ran
  int backward_ops = 0, gradient_messages = 0;
  std::size_t gradient_bytes = 0, optimizer_bytes = 0;
  std::int64_t trained_elements = 0;
};

bool passes_gradients(const TraceLabel& label) {
  return label.kind == TraceKind::kAction && (label.name == std::string("send backward") ||
                                              label.name == std::string("receive backward"));
}

// Traces a step on each rank.
std::vector<StepTrace> trace_step(const ParallelConfig& parallel) {
  const int ranks = static_cast<int>(parallel.pipeline_model_parallel_size);
  std::vector<StepTrace> traces(static_cast<std::size_t>(ranks));
  run_thread_ranks(ranks, {60}, [&](World& world) {
    Trace trace(world.rank(), 1, 1);
    EngineOptions options;
    options.model = frozen_model();
    options.parallel = parallel;
    options.parallel.data_parallel_size = 1;
    options.trace = &trace;
    Engine engine(world, cpu_kernels(), options);
    StepTrace& told = traces[static_cast<std::size_t>(world.rank())];
    for (const auto& [tag, bytes] : engine.model().rank().arena().by_tag()) {
      if (tag == "weight gradients") told.gradient_bytes = bytes;
      if (tag == "optimizer") told.optimizer_bytes = bytes;
    }
    for (const Param* param : engine.model().store().params()) {
      if (param->trains) told.trained_elements += param->local.numel();
    }
    std::vector<MicroBatch> batches = rank_micro_batches(
        engine.model().ctx(), random_samples(options.model.vocab_size, 2, 9, 3), 1);
    trace.begin_step(1);
    engine.train_step(batches, {.iteration = 1, .lr = 1e-3});
    trace.end_step(1);
    for (std::size_t i = 0; i < trace.spans().size(); ++i) {
      const TraceLabel& label = trace.label(trace.spans()[i].label);
      if (label.kind == TraceKind::kBackward) {
        ++told.backward_ops;
        if (label.number >= 0) told.backward_layers.insert(label.number);
      }
      // Spans nest: a message is posted inside the action that sends or receives it.
      if (passes_gradients(label) && i + 1 < trace.spans().size()) {
        const TraceSpan& inner = trace.spans()[i + 1];
        bool nested = inner.begin_ns < trace.spans()[i].end_ns;
        TraceKind kind = trace.label(inner.label).kind;
        told.gradient_messages +=
            nested && (kind == TraceKind::kCollective || kind == TraceKind::kWait);
      }
    }
  });
  return traces;
}

const std::set<std::int64_t> kTrainedLayers = {kFirstTrained, kFirstTrained + 1};

TEST(Frozen, TheBackwardEndsWhereNothingBeforeTrains) {
  StepTrace step = trace_step({}).front();
  EXPECT_EQ(step.backward_layers, kTrainedLayers);
}

TEST(Frozen, RecomputedLayersThatDoNotTrainRunOnce) {
  ParallelConfig parallel;
  parallel.recompute_granularity = RecomputeGranularity::kFull;
  parallel.recompute_num_layers = 1;
  StepTrace step = trace_step(parallel).front();
  EXPECT_EQ(step.backward_layers, kTrainedLayers);
}

TEST(Frozen, StagesBeforeTheFirstThatTrainsGetNoGradients) {
  ParallelConfig parallel;
  parallel.pipeline_model_parallel_size = 2;  // all of the first stage is frozen
  for (PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZeroBubbleH1}) {
    parallel.pipeline_schedule = schedule;
    std::vector<StepTrace> steps = trace_step(parallel);
    EXPECT_EQ(steps[0].backward_ops, 0);
    EXPECT_EQ(steps[1].backward_layers, kTrainedLayers);
    for (const StepTrace& step : steps) EXPECT_EQ(step.gradient_messages, 0);
  }
  // With four stages only the last two exchange gradients.
  parallel.pipeline_schedule = PipelineSchedule::k1F1B;
  parallel.pipeline_model_parallel_size = 4;
  std::vector<StepTrace> steps = trace_step(parallel);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(steps[rank].backward_ops > 0, rank >= 2) << rank;
    EXPECT_EQ(steps[rank].gradient_messages > 0, rank >= 2) << rank;
  }
}

TEST(Frozen, HasNoMemoryForGradientsAndOptimizer) {
  StepTrace step = trace_step({}).front();
  auto elements = static_cast<std::size_t>(step.trained_elements);
  // f32 gradients and two f32 moments, with little padding.
  EXPECT_GE(step.gradient_bytes, 4 * elements);
  EXPECT_LE(step.gradient_bytes, 4 * elements + 4096);
  EXPECT_GE(step.optimizer_bytes, 8 * elements);
  EXPECT_LE(step.optimizer_bytes, 8 * elements + 8192);
}

// Counts GEMMs of the form A^T B, which only wgrad uses.
int wgrad_gemms = 0;  // of one rank with one thread
void count_wgrads(const Stream& stream, const GemmArgs& args) {
  wgrad_gemms += args.transpose_a;
  cpu_kernels().gemm.gemm(stream, args);
}

int count_step_wgrads(const ModelConfig& model) {
  GemmKernels gemm = cpu_kernels().gemm;
  gemm.gemm = count_wgrads;
  const Kernels kernels = with_table(cpu_kernels(), gemm);
  wgrad_gemms = 0;
  TinyRun run;
  run.model = model;
  run.kernels = &kernels;
  run.steps = 1;
  run.global_batch_size = 1;
  run_tiny(run);
  return wgrad_gemms;
}

TEST(Frozen, HasNoWgradGemms) {
  ModelConfig model = frozen_model();
  int some = count_step_wgrads(model);
  model.architecture = nullptr;
  int all = count_step_wgrads(model);
  EXPECT_EQ(all, 4 * kLayers + 1);  // qkv, proj, fc1, fc2; output layer
  EXPECT_EQ(some, 4 * (kLayers - kFirstTrained) + 1);
}

}  // namespace
}  // namespace bev::test
