// Models for sequence classification against transformers (tests/golden/make_label_fixtures.py):
// scores of padded batches, on one rank and under layouts; files both ways.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "backend/cpu/cpu_kernels.h"
#include "base/file.h"
#include "bridge/hf_model.h"
#include "bridge/safetensors.h"
#include "comm/world.h"
#include "data/batch.h"
#include "infer/token_scores.h"
#include "ops/label_scores.h"
#include "parallel/engine.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::string kFolder = BEV_SOURCE_DIR "/tests/golden/labels";

// The batches of a fixture as samples, and their scores.
struct Scored {
  std::vector<TokenSample> samples;
  std::vector<std::vector<double>> scores;
};
Scored read_scored(const std::string& fixture) {
  Scored out;
  for (const json& batch :
       json::parse(read_file(join_path(join_path(kFolder, fixture), "scores.json")))) {
    for (std::size_t row = 0; row < batch["input_ids"].size(); ++row) {
      Ids ids = batch["input_ids"][row];
      Ids mask = batch.contains("attention_mask") ? batch["attention_mask"][row].get<Ids>()
                                                  : Ids(ids.size(), 1);
      out.samples.push_back(masked_sample(ids, ids, mask));
      out.scores.push_back(batch["scores"][row]);
    }
  }
  return out;
}

EngineOptions options_of(const std::string& folder, const ParallelConfig& parallel) {
  EngineOptions options;
  options.model = read_hf_config(folder);
  options.parallel = parallel;
  options.gradients = false;
  options.optimizer = false;
  return options;
}

// Scores of the fixture's batches by the model in `folder`.
void expect_scores(const std::string& fixture, const std::string& folder,
                   const ParallelConfig& parallel) {
  Scored wanted = read_scored(fixture);
  run_thread_ranks(static_cast<int>(mesh_shape(parallel).size()), {60.0}, [&](World& world) {
    Engine engine(world, cpu_kernels(), options_of(folder, parallel));
    load_hf_weights(engine, folder);
    auto scores = sequence_scores(engine.model(), wanted.samples, 3);
    if (world.rank() != 0) return;
    ASSERT_EQ(scores.size(), wanted.scores.size());
    for (std::size_t i = 0; i < scores.size(); ++i) {
      ASSERT_EQ(scores[i].size(), wanted.scores[i].size());
      for (std::size_t label = 0; label < scores[i].size(); ++label) {
        EXPECT_NEAR(scores[i][label], wanted.scores[i][label], 1e-5) << "row " << i;
      }
    }
  });
}

ParallelConfig parallel_of(std::int64_t tp, std::int64_t pp, std::int64_t cp, std::int64_t dp) {
  ParallelConfig parallel;
  parallel.tensor_model_parallel_size = tp;
  parallel.sequence_parallel = tp > 1;
  parallel.pipeline_model_parallel_size = pp;
  parallel.context_parallel_size = cp;
  parallel.data_parallel_size = dp;
  return parallel;
}

class GoldenLabels : public testing::TestWithParam<std::string> {};

TEST_P(GoldenLabels, ScoresAreTransformers) {
  const std::string folder = join_path(kFolder, GetParam());
  expect_scores(GetParam(), folder, parallel_of(1, 1, 1, 1));
  expect_scores(GetParam(), folder, parallel_of(2, 1, 1, 2));
  if (!GetParam().starts_with("mistral"))
    expect_scores(GetParam(), folder, parallel_of(1, 2, 2, 1));
}

TEST_P(GoldenLabels, ExportsAreTheSameModel) {
  const std::string folder = join_path(kFolder, GetParam());
  TempFolder out;
  ExportTarget target;
  target.folder = out.path("model");
  convert_hf(folder, target);
  EXPECT_TRUE(differing_fields(read_hf_config(folder), read_hf_config(target.folder)).empty());
  SafetensorsFile before(join_path(folder, "model.safetensors"));
  SafetensorsFile after(join_path(target.folder, "model.safetensors"));
  EXPECT_EQ(before.tensor("score.weight").shape, after.tensor("score.weight").shape);
  // A configuration of our own says the same.
  HfConfig own = HfConfig::parse(export_config(read_hf_config(folder), Dtype::kF32, ""), "own");
  EXPECT_EQ(own.texts("architectures"), read_config_json(folder).texts("architectures"));
  EXPECT_TRUE(differing_fields(read_hf_config(folder), from_hf(own)).empty());
  expect_scores(GetParam(), target.folder, parallel_of(1, 1, 1, 1));
}

std::string case_name(const testing::TestParamInfo<std::string>& info) { return info.param; }

INSTANTIATE_TEST_SUITE_P(Transformers, GoldenLabels, testing::ValuesIn(list_directory(kFolder)),
                         case_name);

TEST(Labels, ALanguageModelGetsANewHeadAndKeepsTheRest) {
  const std::string folder = BEV_SOURCE_DIR "/tests/golden/models/llama_gqa";
  run_thread_ranks(1, {}, [&](World& world) {
    EngineOptions options = options_of(folder, {});
    options.model.num_labels = 1;
    Engine engine(world, cpu_kernels(), options);
    load_hf_weights(engine, folder);
    ParamGather gather(engine.model(), ParamGather::What::kValue);
    Tensor head = gather.gather("score.weight");
    const auto* values = static_cast<const float*>(head.view().data);
    double squares = 0;
    for (std::int64_t i = 0; i < head.numel(); ++i) squares += values[i] * values[i];
    double deviation = std::sqrt(squares / static_cast<double>(head.numel()));
    EXPECT_NEAR(deviation / options.model.init_method_std, 1, 0.5);
  });
}

TEST(Labels, ANewHeadKeepsTheRestOfTheConfiguration) {
  const std::string folder = BEV_SOURCE_DIR "/tests/golden/models/llama_gqa";
  ModelConfig model = read_hf_config(folder);
  model.num_labels = 1;
  model.pad_token = 2;
  HfConfig config = HfConfig::parse(export_config(model, Dtype::kF32, folder), "export");
  EXPECT_EQ(config.texts("architectures"),
            std::vector<std::string>{"LlamaForSequenceClassification"});
  EXPECT_EQ(config.integer("pad_token_id", -1), 2);
  EXPECT_EQ(config.integer("eos_token_id", -1),
            read_config_json(folder).integer("eos_token_id", -1));
  EXPECT_EQ(from_hf(config).num_labels, 1);
}

TEST(Labels, AFolderThatPromisesAHeadMustHaveOne) {
  TempFolder folder;
  HfConfig config = read_config_json(BEV_SOURCE_DIR "/tests/golden/models/llama_gqa");
  config.set("architectures", std::vector<std::string>{"LlamaForSequenceClassification"});
  folder.write("config.json", config.dump());
  folder.write("model.safetensors",
               read_file(BEV_SOURCE_DIR "/tests/golden/models/llama_gqa/model.safetensors"));
  run_thread_ranks(1, {}, [&](World& world) {
    EngineOptions options = options_of(folder.path(""), {});
    EXPECT_EQ(options.model.num_labels, 2);  // transformers' default
    Engine engine(world, cpu_kernels(), options);
    expect_error(ErrorKind::kInput, {"score.weight is missing"},
                 [&] { load_hf_weights(engine, folder.path("")); });
  });
}

TEST(Labels, TheScoredTokenIsTheLastThatIsNotPad) {
  EXPECT_EQ(scored_token(Ids{5, 6, 7}, -1), 2u);
  EXPECT_EQ(scored_token(Ids{5, 0, 6, 0, 0}, 0), 2u);
  EXPECT_EQ(scored_token(Ids{0, 0}, 0), 0u);
  EXPECT_EQ(scored_token(Ids{}, 0), 0u);
}

}  // namespace
}  // namespace bev
