// Reward models as a user runs them: score, score --objective reward.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "bridge/safetensors.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kLabels = BEV_SOURCE_DIR "/tests/golden/labels/";
const std::string kLanguageModel = BEV_SOURCE_DIR "/tests/golden/models/llama_gqa";

Outcome bevatron(const TempFolder& folder, const std::string& words) {
  return run_shell(folder, concat(BEV_BINARY_DIR, "/bevatron ", words));
}

void expect_near(const json& actual, const json& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i].get<double>(), expected[i].get<double>(), tolerance);
  }
}

double norm_of(const TensorBytes& tensor) {
  std::vector<double> values(tensor.bytes.size() / sizeof(double));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

TEST(ScoreLabels, GivesAScoreForEveryRow) {
  TempFolder folder;
  json batches = json::parse(read_file(kLabels + "qwen2/scores.json"));
  for (const json& batch : batches) {
    json scores = batch["scores"], input = batch;
    input.erase("scores");
    write_file(folder.path("b.json"), input.dump());
    const char* flag = input.contains("attention_mask") ? "--batch" : "--tokens";
    Outcome run =
        bevatron(folder, concat("score --hf-model ", kLabels, "qwen2 ", flag, " b.json --dp 2"));
    ASSERT_EQ(run.code, 0) << run.err;
    json line = json::parse(run.out);
    EXPECT_TRUE(line["loss"].is_null());
    ASSERT_EQ(line["scores"].size(), scores.size());
    for (std::size_t i = 0; i < scores.size(); ++i) expect_near(line["scores"][i], scores[i], 1e-5);
  }
}

TEST(ScoreReward, AgreesWithTorchUnderLayouts) {
  TempFolder folder;
  for (const char* name : {"llama", "llama_pad_is_eos", "qwen3"}) {
    json wanted = json::parse(read_file(concat(kLabels, name, "/reward.json")));
    write_file(folder.path("b.json"), wanted["batch"].dump());
    for (const char* layout : {"", "--tp 2 --sequence-parallel --dp 2", "--pp 2 --cp 2"}) {
      SCOPED_TRACE(concat(name, " ", layout));
      Outcome run = bevatron(folder, concat("score --fp64 --hf-model ", kLabels, name,
                                            " --objective reward --batch b.json --grads-out ",
                                            "g.safetensors ", layout));
      ASSERT_EQ(run.code, 0) << run.err;
      json line = json::parse(run.out);
      EXPECT_NEAR(line["loss"], wanted["loss"].get<double>(), 1e-6);
      expect_near(line["rewards"]["chosen"], wanted["rewards"]["chosen"], 1e-5);
      expect_near(line["rewards"]["rejected"], wanted["rewards"]["rejected"], 1e-5);
      double whole = wanted["grad_norm"];
      EXPECT_NEAR(line["grad_norm"], whole, 1e-5 * whole);
      SafetensorsFile gradients(folder.path("g.safetensors"));
      for (const auto& [tensor, norm] : wanted["norms"].items()) {
        EXPECT_NEAR(norm_of(gradients.tensor(tensor)), norm, 1e-5 * whole) << tensor;
      }
      EXPECT_TRUE(line["metrics"].contains("accuracy"));
      EXPECT_TRUE(line["metrics"].contains("max_reward"));
    }
  }
}

TEST(ScoreReward, SaysWhichModelItNeeds) {
  TempFolder folder;
  folder.write("b.json",
               R"({"pairs": [{"prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3]}]})");
  auto fails = [&](const std::string& words, const std::string& why) {
    Outcome run = bevatron(folder, words);
    EXPECT_EQ(run.code, 2) << words;
    EXPECT_THAT(run.err, HasSubstr(why));
  };
  fails(concat("score --hf-model ", kLanguageModel, " --objective reward --batch b.json"),
        "needs a reward model");
  fails(concat("score --hf-model ", kLabels, "mistral --objective reward --batch b.json"),
        "this model has 2 labels");
  fails(concat("score --hf-model ", kLabels, "llama --objective dpo --batch b.json"),
        "needs a language model");
  fails(concat("score --hf-model ", kLabels, "llama --objective reward --batch b.json --ref-model ",
               kLanguageModel),
        "has no reference");
  folder.write("t.json", R"({"input_ids": [[5, 6]]})");
  fails(concat("score --hf-model ", kLabels, "llama --tokens t.json --logprobs"),
        "predicts no tokens");
  fails(concat("generate --hf-model ", kLabels, "llama --prompt-tokens t.json --json"),
        "has no output layer");
}

}  // namespace
}  // namespace bev
