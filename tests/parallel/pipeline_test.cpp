// The layout never changes the answer, for pipelines: every schedule and every split of the layers
// is compared with one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "backend/cpu/cpu_kernels.h"
#include "base/philox.h"
#include "base/text.h"
#include "comm/world.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

using Kind = PipelineSchedule;
using Strategy = ShardingStrategy;

ParallelConfig pipeline(std::int64_t pp, std::int64_t chunks = 0, Kind kind = Kind::k1F1B) {
  ParallelConfig config;
  config.pipeline_model_parallel_size = pp;
  config.num_virtual_stages_per_pipeline_rank = chunks;
  config.pipeline_schedule = kind;
  config.data_parallel_size = 1;
  return config;
}

ParallelConfig with_tp2sp(ParallelConfig config) {
  config.tensor_model_parallel_size = 2;
  config.sequence_parallel = true;
  return config;
}

ParallelConfig with_dp2(ParallelConfig config, Strategy strategy) {
  config.data_parallel_size = 2;
  config.data_parallel_sharding_strategy = strategy;
  return config;
}

ParallelConfig with_text(ParallelConfig config, std::string text) {
  config.pipeline_model_parallel_layout = std::move(text);
  return config;
}

ParallelConfig with_recompute(ParallelConfig config) {
  config.recompute_granularity = RecomputeGranularity::kFull;
  return config;
}

ParallelConfig with_parts_recomputed(ParallelConfig config) {
  config.recompute_granularity = RecomputeGranularity::kSelective;
  config.recompute_modules = {"core_attn", "layernorm", "activation", "mlp"};
  return config;
}

ParallelConfig without_overlap(ParallelConfig config) {
  config.overlap_p2p_communication = false;
  return config;
}

struct PipelineCase {
  std::string name;
  ParallelConfig parallel;
};

void expect_one_ranks_answer(const ModelConfig& model, std::int64_t samples,
                             const std::vector<PipelineCase>& cases) {
  TinyRun run;
  run.model = model;
  run.global_batch_size = samples;
  run.steps = 2;
  LayoutAnswer expected = run_tiny(run);
  for (const PipelineCase& test : cases) {
    SCOPED_TRACE(test.name);
    run.parallel = test.parallel;
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "");
  }
}

ModelConfig with_layers(ModelConfig model, std::int64_t layers) {
  model.num_layers = layers;
  return model;
}

// Every schedule; tied and untied embeddings.
std::vector<PipelineCase> schedules() {
  return {
      {"pp2vpp2", pipeline(2, 2)},
      {"pp2vpp2_without_overlap", without_overlap(pipeline(2, 2))},
      {"pp4vpp2", pipeline(4, 2)},
      {"pp2vpp4", pipeline(2, 4)},
      {"pp2zbh1", pipeline(2, 0, Kind::kZeroBubbleH1)},
      {"pp4zbh1", pipeline(4, 0, Kind::kZeroBubbleH1)},
      {"pp4zbh1_without_overlap", without_overlap(pipeline(4, 0, Kind::kZeroBubbleH1))},
      {"pp2zbv", pipeline(2, 0, Kind::kZeroBubbleV)},
      {"pp4zbv", pipeline(4, 0, Kind::kZeroBubbleV)},
      {"pp4zbv_without_overlap", without_overlap(pipeline(4, 0, Kind::kZeroBubbleV))},
  };
}
TEST(Pipeline, EveryScheduleGivesOneRanksAnswerWithATiedTable) {
  expect_one_ranks_answer(with_layers(tiny_gpt(), 8), 8, schedules());
}
TEST(Pipeline, EveryScheduleGivesOneRanksAnswerWithTablesOfTheirOwn) {
  expect_one_ranks_answer(with_layers(tiny_llama(), 8), 8, schedules());
}

// Fewer micro-batches than stages, and numbers that leave an incomplete group.
TEST(Pipeline, FewAndOddMicroBatchesGiveOneRanksAnswer) {
  std::vector<PipelineCase> cases = schedules();
  cases.push_back({"pp4", pipeline(4)});
  expect_one_ranks_answer(with_layers(tiny_gpt(), 8), 1, cases);
  expect_one_ranks_answer(with_layers(tiny_gpt(), 8), 3, cases);
  expect_one_ranks_answer(with_layers(tiny_gpt(), 8), 5, cases);
}

// With one token, one tensor-parallel rank has the whole sequence and the others none of it.
TEST(Pipeline, OneTokenOverTensorRanksGivesOneRanksAnswer) {
  TinyRun run;
  run.model = with_layers(tiny_gpt(), 4);
  run.sequence_length = 1;
  LayoutAnswer expected = run_tiny(run);
  for (Kind kind : {Kind::k1F1B, Kind::kZeroBubbleH1, Kind::kZeroBubbleV}) {
    run.parallel = with_tp2sp(pipeline(2, 0, kind));
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "");
  }
}

TEST(Pipeline, UnevenSplitsGiveOneRanksAnswer) {
  ParallelConfig ends = pipeline(3), counted = pipeline(3, 3);
  ends.decoder_first_pipeline_num_layers = 1;
  ends.decoder_last_pipeline_num_layers = 4;
  counted.account_for_embedding_in_pipeline_split = true;
  counted.account_for_loss_in_pipeline_split = true;  // first and last stage have no layer
  expect_one_ranks_answer(with_layers(tiny_llama(), 7), 6,
                          {{"pp2", pipeline(2)},
                           {"pp2vpp3", pipeline(2, 3)},
                           {"pp3zbh1", pipeline(3, 0, Kind::kZeroBubbleH1)},
                           {"pp3zbv", pipeline(3, 0, Kind::kZeroBubbleV)},
                           {"ends", ends},
                           {"counted", counted}});
  expect_one_ranks_answer(with_layers(tiny_gpt(), 5), 4,
                          {{"pp2vpp2", pipeline(2, 2)},
                           {"pp4", pipeline(4)},
                           {"pp2zbv", pipeline(2, 0, Kind::kZeroBubbleV)}});
}

TEST(Pipeline, EmptyStagesGiveOneRanksAnswer) {
  expect_one_ranks_answer(
      tiny_gpt(), 4,
      {{"ends_alone", with_text(pipeline(4), "E|tt|tt|L")},
       {"empty_in_the_middle", with_text(pipeline(4), "Et||ttt|L")},
       {"more_stages_than_layers", with_text(pipeline(4), "E|t|t|t||t||L")},
       {"zbh1", with_text(pipeline(4, 0, Kind::kZeroBubbleH1), "E||t*4|L")},
       {"zbv", with_text(pipeline(2, 0, Kind::kZeroBubbleV), "E|ttt|t|L")},
       {"zbv_empty_turn", with_text(pipeline(2, 0, Kind::kZeroBubbleV), "Ett|||ttL")}});
}

// Layers are distributed over stages at random, under any schedule.
TEST(Pipeline, RandomSplitsGiveOneRanksAnswer) {
  for (std::uint32_t i = 0; i < 24; ++i) {
    auto draw = [&](std::uint32_t use, std::uint32_t below) {
      return static_cast<std::int64_t>(philox({i, use, 0, 0}, 3)[0] % below);
    };
    Kind kind = static_cast<Kind>(draw(0, 3));
    std::int64_t pp = 2 + draw(1, 3), layers = 1 + draw(2, 6), samples = 1 + draw(3, 7);
    std::int64_t chunks = kind == Kind::kZeroBubbleV ? 2 : kind == Kind::k1F1B ? 1 + draw(4, 3) : 1;
    std::vector<std::int64_t> counts(static_cast<std::size_t>(pp * chunks));
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      auto stage =
          draw(5 + static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(pp * chunks));
      ++counts[static_cast<std::size_t>(stage)];
    }
    std::string text = "E";
    for (std::size_t stage = 0; stage < counts.size(); ++stage) {
      text += (stage > 0 ? "|" : "") + std::string(static_cast<std::size_t>(counts[stage]), 't');
    }
    ParallelConfig parallel = with_text(pipeline(pp, 0, kind), text + "L");
    ModelConfig model = i % 2 == 0 ? tiny_gpt() : tiny_llama();
    expect_one_ranks_answer(with_layers(model, layers), samples,
                            {{concat("case ", i, ": ", text, "L on ", pp, " ranks"), parallel}});
  }
}

TEST(Pipeline, OtherAxesAndRecomputationGiveOneRanksAnswer) {
  std::vector<PipelineCase> cases;
  for (auto [name, config] :
       {std::pair{"vpp2 ", pipeline(2, 2)}, std::pair{"zbh1 ", pipeline(2, 0, Kind::kZeroBubbleH1)},
        std::pair{"zbv ", pipeline(2, 0, Kind::kZeroBubbleV)}}) {
    std::string text = name;
    cases.push_back({text + "tp2sp", with_tp2sp(config)});
    cases.push_back({text + "dp2zero1", with_dp2(config, Strategy::kOptim)});
    cases.push_back({text + "dp2zero3", with_dp2(config, Strategy::kOptimGradsParams)});
    cases.push_back({text + "recompute", with_recompute(config)});
    cases.push_back({text + "selective", with_parts_recomputed(config)});
    cases.push_back(
        {text + "all", with_tp2sp(with_recompute(with_dp2(config, Strategy::kOptimGradsParams)))});
  }
  expect_one_ranks_answer(tiny_gpt(), 8, cases);
}

TEST(Pipeline, DropoutGivesOneRanksAnswer) {
  ModelConfig model = with_layers(tiny_llama(), 8);
  model.hidden_dropout = 0.2;
  model.attention_dropout = 0.3;
  expect_one_ranks_answer(model, 4,
                          {{"pp4vpp2", pipeline(4, 2)},
                           {"pp4zbh1", pipeline(4, 0, Kind::kZeroBubbleH1)},
                           {"pp2zbv", with_recompute(pipeline(2, 0, Kind::kZeroBubbleV))}});
}

// Micro-batches of different lengths: each rank derives the shapes from its own data.
TEST(Pipeline, UnequalLengthsGiveOneRanksAnswer) {
  StepSamples samples;
  for (std::int64_t length : {11, 4, 17, 2, 9, 30}) {
    samples.push_back(random_samples(61, 1, length, static_cast<std::uint64_t>(length)).front());
  }
  LayoutRun run;
  run.engine.model = tiny_gpt();
  run.engine.dtype = Dtype::kF64;
  run.engine.parallel = pipeline(1);
  run.steps = 2;
  std::vector<StepSamples> batches = {samples, samples};
  LayoutAnswer expected = run_layout(run, cpu_kernels(), batches);
  for (const ParallelConfig& parallel :
       {pipeline(2, 2), pipeline(4, 0, Kind::kZeroBubbleH1), pipeline(2, 0, Kind::kZeroBubbleV),
        with_tp2sp(pipeline(2, 2))}) {
    run.engine.parallel = parallel;
    EXPECT_EQ(answer_difference(expected, run_layout(run, cpu_kernels(), batches)), "");
  }
}

// Evaluation and hidden states, under every placement of the stages.
TEST(Pipeline, ForwardsGiveOneRanksLossAndHiddenStates) {
  StepSamples samples = random_samples(61, 3, 9, 4);
  struct Sum : OutputSink {
    void on_outputs(std::int64_t micro_batch, std::span<const Var> outputs) override {
      const Tensor& hidden = outputs[0].tensor;
      const double* values = hidden.as<double>();
      sums.emplace_back(micro_batch, std::accumulate(values, values + hidden.numel(), 0.0));
    }
    std::vector<std::pair<std::int64_t, double>> sums;
  };
  auto forward = [&](const ParallelConfig& parallel) {
    std::pair<double, std::vector<std::pair<std::int64_t, double>>> answer;
    auto ranks = static_cast<int>(parallel.pipeline_model_parallel_size);
    run_thread_ranks(ranks, {60.0}, [&](World& world) {
      EngineOptions options;
      options.model = tiny_gpt();
      options.parallel = parallel;
      options.dtype = Dtype::kF64;
      options.gradients = false;
      Engine engine(world, cpu_kernels(), options);
      std::vector<MicroBatch> batches = rank_micro_batches(engine.model().ctx(), samples, 1);
      StepResult result = engine.evaluate(batches);
      Sum sink;
      engine.model().forward_outputs(batches, sink);
      EXPECT_EQ(sink.sums.empty(), !engine.model().pipeline().holds_head(world.rank()));
      if (!sink.sums.empty()) answer = {result.loss, sink.sums};
    });
    return answer;
  };
  auto expected = forward(pipeline(1));
  ASSERT_EQ(expected.second.size(), 3u);
  for (const ParallelConfig& parallel :
       {pipeline(4), pipeline(2, 2), pipeline(2, 0, Kind::kZeroBubbleV)}) {
    auto actual = forward(parallel);
    EXPECT_NEAR(actual.first, expected.first, 1e-12 * expected.first);
    ASSERT_EQ(actual.second.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(actual.second[i].first, static_cast<std::int64_t>(i));
      EXPECT_NEAR(actual.second[i].second, expected.second[i].second, 1e-9);
    }
  }
}

// Stage 2 of a V is after stage 3 in rank order, and before it in the order of computation.
TEST(Pipeline, TheFirstBadTensorIsFoundInTheOrderOfStages) {
  run_thread_ranks(2, {60.0}, [&](World& world) {
    EngineOptions options;
    options.model = tiny_llama();
    options.parallel = pipeline(2, 0, Kind::kZeroBubbleV);
    Engine engine(world, cpu_kernels(), options);
    for (const Param* param : engine.model().store().params()) {
      if (param->name != "decoder.layers.2.mlp.linear_fc2.weight") continue;
      engine.model().store().local_value(*param).view.as<float>()[0] = NAN;
    }
    std::vector<MicroBatch> batches =
        rank_micro_batches(engine.model().ctx(), random_samples(53, 2, 9, 1), 1);
    EXPECT_THAT(engine.find_nonfinite(batches, {1, 1e-3, 0, 1, 0}),
                testing::HasSubstr("rank 1, layer 2, op row_parallel"));
  });
}

// An embedding used at both ends by one rank needs no other rank, and its gradient comes in two
// parts.
TEST(Pipeline, ATiedTableIsHeldOnceWhereBothEndsAreOnOneRank) {
  auto tables = [](const ParallelConfig& parallel, std::int64_t rank) {
    ModelOptions options;
    options.model = tiny_gpt();
    options.parallel = parallel;
    Stages stages =
        build_stages(options, pipeline_layout(options.model.num_layers, parallel), rank);
    std::vector<Param> found;
    for (const Param* param : params_of(stages)) {
      if (param->name == "embedding.word_embeddings.weight") found.push_back(*param);
    }
    return found;
  };
  for (const ParallelConfig& parallel : {pipeline(1), pipeline(2, 0, Kind::kZeroBubbleV)}) {
    std::vector<Param> table = tables(parallel, 0);
    ASSERT_EQ(table.size(), 1u);
    EXPECT_EQ(table[0].uses, 2);
    EXPECT_FALSE(table[0].shared || table[0].copy);
  }
  EXPECT_TRUE(tables(pipeline(2, 0, Kind::kZeroBubbleV), 1).empty());
  for (std::int64_t rank : {0, 1}) {
    std::vector<Param> table = tables(pipeline(2, 2), rank);
    ASSERT_EQ(table.size(), 1u);
    EXPECT_EQ(table[0].uses, 1);
    EXPECT_TRUE(table[0].shared);
    EXPECT_EQ(table[0].copy, rank == 1);
  }
}

}  // namespace
}  // namespace bev::test
