// LoRA from the command line: runs that go on, checkpoints under other layouts, merging, refusals.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

namespace fs = std::filesystem;

class AdapterProgram : public testing::Test {
 protected:
  AdapterProgram() {
    fs::copy(BEV_SOURCE_DIR "/tests/golden/models/llama_gqa", folder_.path("base"));
    fs::copy(BEV_SOURCE_DIR "/tests/golden/adapters/llama", folder_.path("peft"));
  }
  Outcome run(const std::string& words) {
    bool chosen = words.starts_with("convert") || words.find("--device ") != words.npos;
    return run_shell(folder_,
                     concat(BEV_BINARY_DIR, "/bevatron ", words, chosen ? "" : " --device cpu"));
  }
  nlohmann::json json(const std::string& words) {
    Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << words << "\n" << outcome.err;
    return nlohmann::json::parse(outcome.out.substr(outcome.out.rfind("\n{") + 1));
  }
  std::string weights(const std::string& name) {
    return read_file(folder_.path(name + "/adapter_model.safetensors"));
  }
  static constexpr const char* kTrain =
      "train --hf-model base --token-batches base/token_batches.json --lora-rank 3 --lora-dropout "
      "0.2 --lora-target-modules q_proj v_proj down_proj --lr 1e-2 --lr-decay-style constant";

  TempFolder folder_;
};

TEST_F(AdapterProgram, ARunThatGoesOnGivesTheUnbrokenRunsAdapter) {
  ASSERT_EQ(run(concat(kTrain, " --train-iters 4 --export-adapter whole")).code, 0);
  ASSERT_EQ(run(concat(kTrain, " --train-iters 2 --save part")).code, 0);
  Outcome rest = run("train --load part --tokenizer null:96 --train-iters 4 --export-adapter rest");
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(weights("whole"), weights("rest"));
  // Under another layout the checkpoint loads, and the next steps are the same but for rounding.
  Outcome other = run(concat(kTrain, " --load part --train-iters 4 --tp 2 --dp 2 --fp64"));
  EXPECT_EQ(other.code, 0) << other.err;
  double saved = json("score --load part --tokens base/tokens.json")["loss"];
  double plain = json("score --hf-model base --tokens base/tokens.json")["loss"];
  EXPECT_NE(saved, plain);
}

TEST_F(AdapterProgram, ANewAdapterChangesNoBit) {
  Outcome made = run(concat(kTrain, " --train-iters 1 --lr 0 --export-adapter fresh"));
  ASSERT_EQ(made.code, 0) << made.err;
  const char* score = "score --hf-model base --tokens base/tokens.json";
  EXPECT_EQ(json(score)["loss"], json(concat(score, " --adapter fresh"))["loss"]);
}

// With B = 0 and magnitudes that are the norms, what dropout takes from W x it gives back: the
// model begins as it was. Plain dropout of the inputs would change it.
TEST_F(AdapterProgram, ANewAdapterWithMagnitudesAndDropoutBeginsAsTheModel) {
  auto losses = [&](const std::string& more) {
    Outcome outcome =
        run(concat("train --hf-model base --token-batches base/token_batches.json --lora-rank 3 "
                   "--lora-target-modules all-linear --use-dora --fp64 --lr 1e-2 --train-iters 2 "
                   "--metrics-out m.jsonl ",
                   more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::vector<double> out;
    for (const std::string& line : split(read_file(folder_.path("m.jsonl")), '\n')) {
      if (!line.empty()) out.push_back(nlohmann::json::parse(line)["loss"]);
    }
    fs::remove(folder_.path("m.jsonl"));
    return out;
  };
  const std::vector<double> without = losses(""), with = losses("--lora-dropout 0.4");
  ASSERT_EQ(with.size(), 2u);
  EXPECT_NEAR(with[0], without[0], 1e-11);
  EXPECT_GT(std::abs(with[1] - without[1]), 1e-6);
}

TEST_F(AdapterProgram, MergedWeightsGiveTheAdaptedModelsLoss) {
  nlohmann::json merged =
      json("convert --hf-model base --adapter peft --merge-lora --export-hf merged");
  EXPECT_EQ(merged["modules"], 21);
  EXPECT_LT(merged["max_abs_logit_diff"].get<double>(), 1e-5);
  EXPECT_NEAR(json("score --hf-model merged --tokens base/tokens.json")["loss"].get<double>(),
              json("score --hf-model base --adapter peft --tokens base/tokens.json")["loss"], 1e-6);
  EXPECT_EQ(read_file(folder_.path("merged/config.json")).find("lora"), std::string::npos);
}

TEST_F(AdapterProgram, RefusesByName) {
  const std::pair<std::string, std::string> kCases[] = {
      {concat(kTrain, " --train-iters 1 --export-hf out"),
       "--export-hf: the run trains an adapter"},
      {concat(kTrain, " --train-iters 1 --adapter peft"), "--lora-rank is a setting of --adapter"},
      {"train --hf-model base --token-batches base/token_batches.json --lora-alpha 3",
       "--lora-alpha is for low-rank adapters"},
      {"train --hf-model base --token-batches base/token_batches.json --lora-rank 2 "
       "--lora-target-modules query",
       "no linear layer of the model has such a name"},
      {"train --hf-model base --token-batches base/token_batches.json --lora-rank 2 "
       "--lora-target-regex '('",
       "--lora-target-regex"},
      {"train --hf-model base --token-batches base/token_batches.json --lora-rank 2 --use-dora "
       "--lora-init pissa",
       "--use-dora: excludes --lora-init pissa"},
      {"train --hf-model base --token-batches base/token_batches.json --lora-rank 2 "
       "--lora-target-modules q_proj lm_head",
       "--lora-target-modules: lm_head has no adapters"},
      {"train --hf-model base --token-batches base/token_batches.json --lora-rank 2 "
       "--lora-modules-to-save k_proj",
       "k_proj is neither an embedding, a norm nor a head"},
      {"train --hf-model base --token-batches base/token_batches.json --lora-rank 2 "
       "--lora-modules-to-save wte",
       "--lora-modules-to-save: no module of the model has the name wte"},
      {"convert --hf-model base --merge-lora --export-hf out", "--merge-lora: needs --adapter"},
      {"convert --hf-model base --adapter peft --export-hf out", "--adapter: is for --merge-lora"},
      {"score --hf-model base --adapter base --tokens base/tokens.json", "adapter_config.json"},
  };
  for (const auto& [words, message] : kCases) {
    Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << words << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(message), std::string::npos) << words << "\n" << outcome.err;
  }
  EXPECT_FALSE(fs::exists(folder_.path("out")));
}

// What trains is whole copies too, in runs that go on and in merged weights; the base is as it was.
TEST_F(AdapterProgram, ModulesThatTrainAsAWholeAreSavedResumedAndMerged) {
  const std::string train = concat(kTrain, " --lora-modules-to-save embed_tokens norm lm_head");
  ASSERT_EQ(run(concat(train, " --train-iters 4 --export-adapter whole")).code, 0);
  ASSERT_EQ(run(concat(train, " --train-iters 2 --save part")).code, 0);
  Outcome rest = run("train --load part --tokenizer null:96 --train-iters 4 --export-adapter rest");
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(weights("whole"), weights("rest"));
  auto config = nlohmann::json::parse(read_file(folder_.path("whole/adapter_config.json")));
  EXPECT_EQ(config["modules_to_save"], nlohmann::json({"embed_tokens", "norm", "lm_head"}));
  nlohmann::json merged =
      json("convert --hf-model base --adapter whole --merge-lora --export-hf merged");
  EXPECT_LT(merged["max_abs_logit_diff"].get<double>(), 1e-12);
  const double with =
      json("score --hf-model base --adapter whole --tokens base/tokens.json")["loss"];
  EXPECT_NEAR(json("score --hf-model merged --tokens base/tokens.json")["loss"].get<double>(), with,
              1e-6);
  EXPECT_NE(with, json("score --hf-model base --tokens base/tokens.json")["loss"].get<double>());
}

TEST_F(AdapterProgram, PissaRunsGoOnAndMerge) {
  const std::string train =
      "train --hf-model base --token-batches base/token_batches.json --lora-rank 3 --lora-init "
      "pissa --lora-target-modules all-linear --lr 1e-2 --lr-decay-style constant";
  ASSERT_EQ(run(concat(train, " --train-iters 4 --export-adapter whole")).code, 0);
  ASSERT_EQ(run(concat(train, " --train-iters 2 --save part")).code, 0);
  Outcome rest = run("train --load part --tokenizer null:96 --train-iters 4 --export-adapter rest");
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(weights("whole"), weights("rest"));
  const double run_loss = json("score --load part --tokens base/tokens.json")["loss"];
  EXPECT_NE(run_loss,
            json("score --hf-model base --tokens base/tokens.json")["loss"].get<double>());
  nlohmann::json merged =
      json("convert --hf-model base --adapter whole --merge-lora --export-hf merged");
  EXPECT_LT(merged["max_abs_logit_diff"].get<double>(), 1e-10);
}

// A tied embedding with an adapter has no merged form: the head is not adapted.
TEST_F(AdapterProgram, WhatCannotBeMergedIsNotWritten) {
  fs::copy(BEV_SOURCE_DIR "/tests/golden/models/qwen3_tied", folder_.path("tied"));
  ASSERT_EQ(run("train --hf-model tied --token-batches tied/token_batches.json --lora-rank 2 --lr "
                "1e-2 --train-iters 2 --lora-target-modules embed_tokens --export-adapter embeds")
                .code,
            0);
  Outcome merged = run("convert --hf-model tied --adapter embeds --merge-lora --export-hf merged");
  EXPECT_EQ(merged.code, 3) << merged.err;
  EXPECT_FALSE(fs::exists(folder_.path("merged")));
}

// Tensors that the rules of the folder do not ask for, or that are missing.
TEST_F(AdapterProgram, NamesTensorsThatDoNotFit) {
  auto config = nlohmann::json::parse(read_file(folder_.path("peft/adapter_config.json")));
  config["target_modules"] = {"q_proj"};
  folder_.write("peft/adapter_config.json", config.dump());
  Outcome outcome = run("score --hf-model base --adapter peft --tokens base/tokens.json");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("is not a weight of this model"), std::string::npos) << outcome.err;
}

// One rank of Llama 3 8B with adapters of rank 16 on all linear layers, 2,048 tokens, recomputed.
TEST_F(AdapterProgram, PlansTheMemoryOfEightBillionParameters) {
#ifndef BEV_HAS_CUDA
  GTEST_SKIP() << "it is that of a GPU, whose rules this build does not know";
#endif
  const std::string plan =
      "train --preset llama3.1-8b --seq-length 2048 --micro-batch-size 1 --global-batch-size 1 "
      "--train-iters 1 --bf16 --recompute-granularity full --recompute-method uniform "
      "--recompute-num-layers 1 --lora-rank 16 --lora-target-modules all-linear --device cuda "
      "--dry-run --json ";
  auto rank = [&](const std::string& more) { return json(plan + more)["ranks"][0]; };
  auto mock = [&](const std::string& more) { return rank("--mock-data " + more); };
  constexpr double kGiB = 1 << 30;
  constexpr std::int64_t kAdapter = 41943040;
  const nlohmann::json bf16 = mock(""), nf4 = mock("--quantize-base nf4");
  EXPECT_LE(bf16["total"].get<double>(), 20 * kGiB);
  EXPECT_LE(nf4["total"].get<double>(), 7.4 * kGiB);
  EXPECT_EQ(bf16["gradients"], kAdapter * 4);
  EXPECT_EQ(mock("--main-grads-dtype bf16")["gradients"], kAdapter * 2);
  EXPECT_EQ(nf4["gradients"], kAdapter * 4);
  // Preferences need no whole logits: half as long, a pair has the tokens of a row.
  const std::string wide = "--vocab-size 152064 --seq-length ";
  const nlohmann::json sft = mock(wide + "16384");
  const nlohmann::json dpo =
      rank(wide + "8192 --objective dpo --data pairs.jsonl --tokenizer null:152063");
  EXPECT_LE(dpo["total"].get<double>(), 1.05 * sft["total"].get<double>());
  EXPECT_LE(dpo["activations"].get<double>(), 1.05 * sft["activations"].get<double>());
}

}  // namespace
}  // namespace bev
