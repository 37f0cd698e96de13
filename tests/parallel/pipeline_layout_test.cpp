#include "parallel/pipeline/pipeline_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "parallel/pipeline/layout_text.h"

namespace bev {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = PipelineSchedule;

ParallelConfig pipeline(std::int64_t pp, std::int64_t chunks = 0, Kind kind = Kind::k1F1B) {
  ParallelConfig config;
  config.pipeline_model_parallel_size = pp;
  config.num_virtual_stages_per_pipeline_rank = chunks;
  config.pipeline_schedule = kind;
  return config;
}

ParallelConfig with_text(std::int64_t pp, std::string text) {
  ParallelConfig config = pipeline(pp);
  config.pipeline_model_parallel_layout = std::move(text);
  return config;
}

std::vector<std::int64_t> counts(std::int64_t layers, const ParallelConfig& config) {
  PipelineLayout layout = pipeline_layout(layers, config);
  std::vector<std::int64_t> list;
  std::int64_t next = 0;
  for (std::size_t i = 0; i < layout.stages.size(); ++i) {
    const StageRange& stage = layout.stages[i];
    EXPECT_EQ(stage.first_layer, next);
    EXPECT_EQ(stage.first, i == 0);
    EXPECT_EQ(stage.last, i + 1 == layout.stages.size());
    next = stage.end_layer;
    list.push_back(stage.end_layer - stage.first_layer);
  }
  EXPECT_EQ(next, layers);
  EXPECT_EQ(static_cast<std::int64_t>(list.size()), layout.shape.stages());
  return list;
}

TEST(PipelineLayout, SplitsAnyNumberOfLayersEvenly) {
  EXPECT_THAT(counts(8, pipeline(1)), ElementsAre(8));
  EXPECT_THAT(counts(8, pipeline(4)), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(counts(7, pipeline(3)), ElementsAre(3, 2, 2));
  EXPECT_THAT(counts(7, pipeline(2, 3)), ElementsAre(2, 1, 1, 1, 1, 1));
  EXPECT_THAT(counts(5, pipeline(2, 0, Kind::kZeroBubbleV)), ElementsAre(2, 1, 1, 1));
  ParallelConfig by_layers = pipeline(2);
  by_layers.num_layers_per_virtual_pipeline_stage = 3;
  EXPECT_EQ(pipeline_layout(24, by_layers).shape.chunks, 4);
}

// Embeddings are where tokens are looked up, and where a tied head is.
TEST(PipelineLayout, PlacesDepthsOfMultiTokenPrediction) {
  struct Placed {
    ParallelConfig config;
    std::vector<std::int64_t> depths, tied, untied;
  };
  const Placed cases[] = {
      {pipeline(3), {0, 0, 3}, {0, 2}, {0, 2}},
      {with_text(3, "Et|tt|tL"), {0, 0, 3}, {0, 2}, {0, 2}},
      {with_text(5, "Et*4|mm||m|L"), {0, 2, 0, 1, 0}, {0, 1, 3, 4}, {0, 1, 3}},
      {with_text(4, "Et*4m|mmL||"), {}, {}, {}},
      {with_text(2, "Et|t*3|m*3|L"), {0, 0, 3, 0}, {0, 1}, {0}},
  };
  ModelConfig model;
  model.num_layers = 4;
  model.mtp_num_layers = 3;
  for (const Placed& placed : cases) {
    if (placed.depths.empty()) {
      EXPECT_THROW(pipeline_layout(4, placed.config), Error);
      continue;
    }
    PipelineLayout layout = pipeline_layout(4, placed.config);
    std::int64_t next = 0;
    for (std::size_t i = 0; i < layout.stages.size(); ++i) {
      Range depths = layout.stages[i].depths(model);
      EXPECT_EQ(depths.begin, next);
      EXPECT_EQ(depths.size(), placed.depths[i]);
      next = depths.end;
    }
    EXPECT_EQ(next, 3);
    model.untie_embeddings_and_output_weights = false;
    EXPECT_EQ(layout.embedding_ranks(model), placed.tied);
    model.untie_embeddings_and_output_weights = true;
    EXPECT_EQ(layout.embedding_ranks(model), placed.untied);
  }
}

TEST(PipelineLayout, GivesTheFirstAndTheLastRankTheirCount) {
  ParallelConfig config = pipeline(4);
  config.decoder_first_pipeline_num_layers = 3;
  EXPECT_THAT(counts(24, config), ElementsAre(3, 7, 7, 7));
  config.decoder_last_pipeline_num_layers = 5;
  EXPECT_THAT(counts(24, config), ElementsAre(3, 8, 8, 5));
  config.num_virtual_stages_per_pipeline_rank = 2;
  EXPECT_THAT(counts(24, config), ElementsAre(2, 4, 4, 3, 1, 4, 4, 2));
  // In a V the first rank has the first and the last stage.
  config = pipeline(2, 0, Kind::kZeroBubbleV);
  config.decoder_first_pipeline_num_layers = 2;
  EXPECT_THAT(counts(10, config), ElementsAre(1, 4, 4, 1));
}

TEST(PipelineLayout, CountsEmbeddingAndLossAsLayers) {
  ParallelConfig config = pipeline(4);
  config.account_for_embedding_in_pipeline_split = true;
  EXPECT_THAT(counts(15, config), ElementsAre(3, 4, 4, 4));
  config.account_for_loss_in_pipeline_split = true;
  EXPECT_THAT(counts(14, config), ElementsAre(3, 4, 4, 3));
  EXPECT_THAT(counts(2, config), ElementsAre(0, 1, 1, 0));
}

TEST(PipelineLayout, ReadsMegatronsText) {
  std::vector<std::int64_t> megatron = counts(61, with_text(31, "Et*3|(tt|)*29,L"));
  EXPECT_EQ(megatron.size(), 31u);
  EXPECT_EQ(megatron[0], 3);
  EXPECT_EQ(megatron[29], 2);
  EXPECT_EQ(megatron[30], 0);
  EXPECT_THAT(counts(3, with_text(2, "E||t*2,|tL")), ElementsAre(0, 0, 2, 1));
  EXPECT_THAT(counts(8, with_text(2, "E(t*2|)*3(tt)L")), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(counts(4, with_text(4, "E((t)*2|)*2|L")), ElementsAre(2, 2, 0, 0));
}

std::string problem_of(std::int64_t layers, const ParallelConfig& config,
                       std::vector<std::int64_t> micro_batches = {}) {
  std::vector<std::string> problems = pipeline_problems(layers, config, micro_batches);
  return problems.empty() ? "" : problems.front();
}

TEST(PipelineProblems, NameTheFlagAndWhatWouldWork) {
  EXPECT_THAT(
      problem_of(4, pipeline(5)),
      HasSubstr("--pipeline-model-parallel-size: 5 stages for --num-layers 4; use at most 4"));
  EXPECT_THAT(problem_of(8, pipeline(4, 3)),
              HasSubstr("4 ranks x 3 stages for --num-layers 8; use at most 2"));
  EXPECT_THAT(problem_of(8, pipeline(1, 2)),
              HasSubstr("need --pipeline-model-parallel-size above 1"));
  EXPECT_THAT(problem_of(8, pipeline(2, 3, Kind::kZeroBubbleV)), HasSubstr("zb-v has two stages"));
  EXPECT_THAT(problem_of(8, pipeline(2, 2, Kind::kZeroBubbleH1)), HasSubstr("zb-h1 has one stage"));
  EXPECT_THAT(problem_of(4, with_text(4, "Et|t|t|mtmL")), HasSubstr("(m) must stand behind"));
  EXPECT_THAT(problem_of(4, with_text(4, "Et|ttm|t|L")), HasSubstr("(m) must stand behind"));
  EXPECT_THAT(counts(4, with_text(4, "Et|t|t|tm*2,L")), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(mtp_problems("Et|tm*2L", 1), ElementsAre(HasSubstr("has 2 layers")));
  EXPECT_THAT(mtp_problems("Et|tmL", 1), IsEmpty());
  EXPECT_THAT(mtp_problems("Et|tL", 1), IsEmpty());
  EXPECT_THAT(problem_of(4, with_text(2, "Ett|tL")), HasSubstr("has 3 layers (t)"));
  EXPECT_THAT(problem_of(4, with_text(2, "tt|Ett")), HasSubstr("the embedding (E)"));
  EXPECT_THAT(problem_of(4, with_text(2, "Ett|Ltt")), HasSubstr("the head and loss (L)"));
  EXPECT_THAT(problem_of(4, with_text(2, "Ett|(ttL")), HasSubstr("a bracket is not closed"));
  EXPECT_THAT(problem_of(4, with_text(2, "Et*|tttL")), HasSubstr("cannot repeat by '|tttL'"));
  EXPECT_THAT(problem_of(4, with_text(2, "Etx*2|tL")), HasSubstr("cannot read 'x*2|tL'"));
  EXPECT_THAT(problem_of(4, with_text(2, ",")), HasSubstr("has 0 layers"));
  EXPECT_THAT(problem_of(4, with_text(2, "Et|t|ttL")), HasSubstr("3 stages do not divide"));
  ParallelConfig config = pipeline(4);
  config.num_layers_per_virtual_pipeline_stage = 5;
  EXPECT_THAT(problem_of(24, config), HasSubstr("use 1, 2, 3 or 6"));
}

TEST(PipelineProblems, FindContradictions) {
  ParallelConfig config = with_text(2, "Ett|ttL");
  EXPECT_THAT(pipeline_problems(4, config), IsEmpty());
  config.decoder_first_pipeline_num_layers = 2;
  EXPECT_THAT(problem_of(4, config), HasSubstr("--decoder-first-pipeline-num-layers: contradicts "
                                               "--pipeline-model-parallel-layout"));
  config = pipeline(2);
  config.decoder_last_pipeline_num_layers = 4;
  EXPECT_THAT(problem_of(4, config), HasSubstr("use at most 3 together"));
  EXPECT_THAT(problem_of(1, config),
              HasSubstr("use fewer stages or --pipeline-model-parallel-layout"));
  config.decoder_last_pipeline_num_layers = 1;
  config.decoder_first_pipeline_num_layers = 2;
  EXPECT_THAT(problem_of(4, config), HasSubstr("they must add up to 4"));
  config.account_for_loss_in_pipeline_split = true;
  EXPECT_THAT(problem_of(4, config), HasSubstr("contradicts --account-for-loss"));
  config = pipeline(2, 3);
  config.pipeline_model_parallel_layout = "Ett|ttL";
  EXPECT_THAT(problem_of(4, config), HasSubstr("3 contradicts the 2 stages"));
  EXPECT_THROW(pipeline_layout(4, config), Error);
}

TEST(PipelineProblems, HoldMegatronsRulesOfGroups) {
  ParallelConfig config = pipeline(4, 2);
  EXPECT_THAT(pipeline_problems(8, config, {{4, 8, 12}}), IsEmpty());
  EXPECT_THAT(problem_of(8, config, {3}), HasSubstr("give at least 4 micro-batches"));
  EXPECT_THAT(problem_of(8, config, {8, 10}), HasSubstr("leave 2 of 10 micro-batches"));
  config.microbatch_group_size = 6;
  EXPECT_THAT(pipeline_problems(8, config, {{6, 10, 11, 12}}), IsEmpty());
  EXPECT_THAT(problem_of(8, config, {5}), HasSubstr("use 4 to 5"));
  config.microbatch_group_size = 3;
  EXPECT_THAT(problem_of(8, config), HasSubstr("3 is less than"));
  config = pipeline(4);
  config.microbatch_group_size = 4;
  EXPECT_THAT(problem_of(8, config), HasSubstr("is for 1f1b with several stages"));
  // Other schedules accept any number.
  EXPECT_THAT(pipeline_problems(8, pipeline(4), {{1, 2, 5}}), IsEmpty());
  EXPECT_THAT(pipeline_problems(8, pipeline(4, 0, Kind::kZeroBubbleV), {{1, 2, 5}}), IsEmpty());
}

TEST(InferenceLayout, IsPlain) {
  ParallelConfig config = with_text(2, "E|tt|tt|L");
  config.pipeline_schedule = Kind::kZeroBubbleV;
  config.context_parallel_size = 2;
  config.data_parallel_size = 3;
  ParallelConfig plain = inference_layout(config);
  EXPECT_EQ(plain.context_parallel_size, 1);
  EXPECT_EQ(plain.data_parallel_size, 6);
  EXPECT_THAT(counts(4, plain), ElementsAre(2, 2));
  EXPECT_EQ(plain.model_ranks() * plain.data_parallel_size,
            config.model_ranks() * config.data_parallel_size);
}

}  // namespace
}  // namespace bev
