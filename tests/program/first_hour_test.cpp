// The first hour of a new user: models, the start of a run, devices. One test for every place where
// people lost time or data; runs, data and the command line are in first_hour_*_test.cpp.
#include "tests/program/first_hour.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace bev::first_hour {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// The configuration that a run would have, by its dry run.
json planned(const TempFolder& folder, const std::string& words) {
  Outcome outcome = bevatron(folder, concat("train --dry-run --json ", words));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return outcome.code == 0 ? json::parse(outcome.out) : json();
}

TEST(FirstHour, AFamilyBringsItsDefaults) {
  TempFolder folder;
  write_corpus(folder);
  const std::string sizes = " --num-layers 2 --hidden-size 32 --num-attention-heads 4 ";
  const std::string data = "--text corpus.txt --seq-length 32 --train-iters 1 --loss-svg '' ";
  Outcome outcome =
      bevatron(folder, concat("train --family mixtral", sizes, data, "--export-hf out"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("model: mixtral, 2 layers, hidden size 32, 4 heads of 8 (1 of "
                                     "keys and values), 8 experts of 112 (top 2) in 2 layers, "
                                     "gated silu, RMSNorm, rope"));
  json config = json::parse(read_file(folder.path("out/config.json")));
  EXPECT_EQ(config["model_type"], "mixtral");
  EXPECT_EQ(config["num_local_experts"], 8);
  EXPECT_EQ(config["hidden_size"], 32);
  outcome = bevatron(folder, concat("train --family lama", sizes, data));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--family: 'lama' is not known"));
  EXPECT_THAT(outcome.err, HasSubstr("did you mean llama?"));
  // Two problems are both said, also with a preset.
  outcome = bevatron(folder, "train --preset llama-tiny --family qwen --mock-data --lr -1");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--lr"));
  EXPECT_THAT(outcome.err, HasSubstr("'qwen' is not known"));
  // Switches that are given go before; a family alone is its smallest preset.
  config =
      planned(folder, concat("--model-family llama --normalization LayerNorm", sizes))["config"];
  EXPECT_EQ(config["normalization"], "LayerNorm");
  EXPECT_EQ(config["position-embedding-type"], "rope");
  EXPECT_EQ(planned(folder, "--family gpt2")["parameters"], 124439808);
  write_file(folder.path("run.yaml"), "model:\n  family: gemma2\n  num-layers: 3\n");
  EXPECT_EQ(planned(folder, "--config run.yaml")["config"]["window-attn-skip-freq"],
            json::array({1, 0, 1}));
}

TEST(FirstHour, SizesFollowThoseThatAreChanged) {
  TempFolder folder;
  json config = planned(folder, "--preset gpt2-124m --num-attention-heads 4")["config"];
  EXPECT_EQ(config["num-query-groups"], 4);
  EXPECT_EQ(config["kv-channels"], 192);
  config = planned(folder, "--preset gpt2-124m --hidden-size 96 --seq-length 2048")["config"];
  EXPECT_EQ(config["ffn-hidden-size"], 384);
  EXPECT_EQ(config["max-position-embeddings"], 2048);
  json plan = planned(folder, "--preset gemma2-2b --num-layers 3");
  EXPECT_EQ(plan["config"]["window-attn-skip-freq"], json::array({1, 0, 1}));
  EXPECT_TRUE(plan["layers"][1]["window"].is_null());
  config = planned(folder, "--preset deepseek-v3 --num-layers 2 --num-experts 4")["config"];
  EXPECT_EQ(config["moe-layer-freq"], json::array({0, 1}));
  EXPECT_EQ(config["moe-router-topk"], 4);
  config = planned(folder,
                   "--preset llama3-8b --num-attention-heads 16 --num-query-groups 16")["config"];
  EXPECT_EQ(config["num-query-groups"], 16);
  // What is given and does not fit is an error as before.
  Outcome outcome = bevatron(
      folder, "train --dry-run --preset gpt2-124m --num-attention-heads 4 --num-query-groups 3");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--num-query-groups: 3 does not divide"));
}

TEST(FirstHour, ANewModelTakesTheTokenizersVocabulary) {
  TempFolder folder;
  write_corpus(folder);
  const std::string words =
      "train --preset llama-tiny --num-layers 1 --hidden-size 32 --num-attention-heads 2 "
      "--seq-length 32 --train-iters 1 --loss-svg '' ";
  Outcome outcome = bevatron(folder, concat(words, "--text corpus.txt --export-hf out"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("--preset llama-tiny has 4096 vocabulary rows, the tokenizer byte has 256: "
                        "the new model has 256 (--vocab-size gives another number)"));
  EXPECT_EQ(json::parse(read_file(folder.path("out/config.json")))["vocab_size"], 256);
  outcome = bevatron(folder, concat(words, "--text corpus.txt --vocab-size 300"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("vocabulary 300"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("vocabulary rows")));
  // A tokenizer with more tokens than the preset, which was an error.
  EXPECT_EQ(planned(folder, "--preset llama-tiny --tokenizer null:5000")["config"]["vocab-size"],
            5001);
  EXPECT_EQ(planned(folder, "--preset llama-tiny --mock-data")["config"]["vocab-size"], 4096);
  // A folder keeps its rows, and a checkpoint those that it has.
  outcome = bevatron(folder,
                     "train --hf-model out --text corpus.txt --tokenizer byte --train-iters 1 "
                     "--seq-length 32 --loss-svg '' --save run");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("vocabulary 256"));
  ASSERT_EQ(bevatron(folder, concat(words, "--mock-data --save wide")).code, 0);
  outcome = bevatron(folder, concat(words, "--text corpus.txt --load wide --finetune"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("vocabulary 4096"));
}

TEST(FirstHour, AnUpcycledRunIsResumed) {
  TempFolder folder;
  write_corpus(folder);
  ASSERT_EQ(bevatron(folder, tiny_train("--train-iters 1 --export-hf dense --loss-svg ''")).code,
            0);
  const std::string model = "train --hf-model dense --model-family mixtral --num-experts 4 ";
  const std::string more =
      "--moe-router-topk 2 --text corpus.txt --seq-length 32 --loss-svg '' --save run ";
  auto train = [&](const std::string& words) {
    Outcome outcome = bevatron(folder, concat(model, more, words));
    EXPECT_EQ(outcome.code, 0) << words << outcome.err;
    return outcome.err;
  };
  // One script for all runs, from the first one on.
  const std::string script = "--moe-use-upcycling --load run ";
  EXPECT_THAT(train(script + "--train-iters 2"),
              HasSubstr("experts are copies of the MLPs of dense"));
  std::string log = train(script + "--train-iters 3");
  EXPECT_THAT(log, HasSubstr("loaded iteration 2 of run"));
  EXPECT_THAT(log, HasSubstr("run has experts already; the run goes on from there"));
  EXPECT_THAT(log, Not(HasSubstr("experts are copies")));
  // As docs/moe.md says: without the flag; again, since the last checkpoint was saved without it.
  EXPECT_THAT(train("--load run --train-iters 4"), HasSubstr("loaded iteration 3 of run"));
  EXPECT_THAT(train("--load run --train-iters 5"), HasSubstr("loaded iteration 4 of run"));
  // Experts of another number are no such checkpoint.
  Outcome outcome =
      bevatron(folder, concat("train --hf-model dense --model-family mixtral --num-experts 2 ",
                              more, "--load run --train-iters 6"));
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("experts"));
}

TEST(FirstHour, InfinityOfPythonIsRead) {
  TempFolder folder;
  write_corpus(folder);
  ASSERT_EQ(bevatron(folder, tiny_train("--train-iters 1 --export-hf out --loss-svg ''")).code, 0);
  const std::string path = folder.path("out/config.json"), good = read_file(path);
  const std::string limits = R"({"time_step_limit": [0.0, Infinity], "floor": -Infinity, )"
                             R"("odd": NaN, "name": "\"Infinity", )";
  write_file(path, limits + good.substr(1));
  write_file(folder.path("out/generation_config.json"),
             R"({"eos_token_id": 2, "repetition_penalty": Infinity})");
  write_file(folder.path("tokens.json"), R"({"input_ids": [[1, 5, 9]]})");
  Outcome outcome = bevatron(folder,
                             "generate --hf-model out --prompt-tokens tokens.json --json "
                             "--max-new-tokens 1");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  ASSERT_EQ(bevatron(folder, "convert --hf-model out --export-hf again").code, 0);
  EXPECT_THAT(read_file(folder.path("again/config.json")), HasSubstr("\"floor\": -Infinity"));
  EXPECT_THAT(read_file(folder.path("again/config.json")), HasSubstr("\"name\": \"\\\"Infinity\""));
  std::size_t at = good.find("\"rms_norm_eps\": ");
  ASSERT_NE(at, good.npos);
  std::string bad = good;
  bad.replace(at, bad.find(',', at) - at, "\"rms_norm_eps\": NaN");
  write_file(path, bad);
  outcome = bevatron(folder, "score --hf-model out --tokens tokens.json");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("rms_norm_eps must be a positive number, got NaN"));
}

TEST(FirstHour, SettingsThatSurpriseAreSaidAtTheStart) {
  TempFolder folder;
  write_corpus(folder);
  Outcome outcome =
      bevatron(folder, tiny_train("--train-iters 1 --export-hf out --save run --loss-svg ''"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--save run: there is one checkpoint, at the end of the run; "
                                     "--save-interval N also saves every N iterations"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("--seq-length")));
  EXPECT_THAT(bevatron(folder, tiny_train("--train-iters 1 --save other --save-interval 5")).err,
              Not(HasSubstr("there is one checkpoint")));
  outcome = bevatron(folder,
                     "train --hf-model out --text corpus.txt --seq-length 96 --train-iters 1 "
                     "--loss-svg ''");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--seq-length: 96 is beyond the 64 positions of the model"));
  const std::string generate = "generate --hf-model out --prompt a --max-new-tokens 1 ";
  outcome = bevatron(folder, generate + "--top-p 0.9 --top-k 5");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("--top-p: has no effect at --temperature 0"));
  EXPECT_THAT(outcome.err, HasSubstr("--top-k: has no effect at --temperature 0"));
  EXPECT_THAT(bevatron(folder, generate + "--top-p 0.9 --temperature 1").err,
              Not(HasSubstr("no effect")));
}

TEST(FirstHour, TheStartOfARunIsTenLines) {
  TempFolder folder;
  write_corpus(folder);
  Outcome outcome = bevatron(
      folder, tiny_train("--train-iters 5 --dp 2 --bf16 --metrics-out m.jsonl --export-hf out"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::vector<std::string> lines = split(outcome.err, '\n');
  auto line_of = [&](const std::string& begin) {
    auto found = std::ranges::find_if(
        lines, [&](const std::string& line) { return line.starts_with(begin); });
    EXPECT_NE(found, lines.end()) << begin << "\n" << outcome.err;
    return found == lines.end() ? std::string() : *found;
  };
  EXPECT_THAT(line_of("device: "), HasSubstr("core"));
  EXPECT_THAT(line_of("precision: "), HasSubstr("bf16 with main weights in f32"));
  EXPECT_THAT(line_of("model: "), HasSubstr("4 heads of 8 (2 of keys and values)"));
  EXPECT_THAT(line_of("parameters: "), HasSubstr("K ("));
  EXPECT_THAT(line_of("data: "), HasSubstr("5 iterations take 640 tokens (0.0"));
  EXPECT_THAT(line_of("layout: "), HasSubstr("2 ranks = tp 1 x cp 1 x dp 2 x pp 1"));
  EXPECT_THAT(line_of("memory: "), HasSubstr(" needed, "));
  EXPECT_EQ(line_of("results: "), "results: model out, metrics m.jsonl, loss curve loss.svg");
  EXPECT_THAT(line_of("time left: "), HasSubstr("for 2 iterations of "));
  auto first = std::ranges::find_if(
      lines, [](const std::string& line) { return line.find(" iteration  ") != line.npos; });
  EXPECT_LT(first - lines.begin(), 13);
  outcome = bevatron(folder, tiny_train("--dry-run --train-iters 5"));
  EXPECT_TRUE(outcome.out.starts_with("fits: ")) << outcome.out;
}

TEST(FirstHour, TooLittleMemoryNamesWhatWouldFit) {
  TempFolder folder;
  const std::string words =
      "train --preset llama3.1-405b --device cpu --mock-data --train-iters 1 ";
  Outcome outcome = bevatron(folder, words);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("the run does not fit into memory: "));
  EXPECT_THAT(outcome.err, HasSubstr("TiB needed, "));
  EXPECT_THAT(outcome.err, HasSubstr("the least of the settings tried needs "));
  EXPECT_THAT(outcome.err, HasSubstr("--bf16"));
  outcome = bevatron(folder, words + "--dry-run");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_TRUE(outcome.out.starts_with("does not fit: ")) << outcome.out.substr(0, 200);
}

TEST(FirstHour, TinyModelsUseTheThreadsThatPay) {
  TempFolder folder;
  write_corpus(folder);
  auto run = [&](const std::string& words, const std::string& metrics) {
    Outcome outcome = bevatron(
        folder, tiny_train(concat("--device cpu --train-iters 3 --loss-svg '' --metrics-out ",
                                  metrics, " ", words)));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(run("", "auto"), HasSubstr(", 1 thread\n"));
  EXPECT_THAT(run("--num-threads 3", "three"), HasSubstr(", 3 threads\n"));
  auto losses = [&](const char* name) {
    std::vector<double> out;
    for (const std::string& line : split(std::string(trim(read_file(folder.path(name)))), '\n')) {
      out.push_back(json::parse(line)["loss"]);
    }
    return out;
  };
  EXPECT_EQ(losses("auto"), losses("three"));
}

TEST(FirstHour, DeepSeekTakesItsFp8Recipe) {
  TempFolder folder;
  Outcome plan = bevatron(folder,
                          "train --preset deepseek-v3 --bf16 --fp8-format e4m3 --fp8-recipe "
                          "blockwise --ranks 64 --tp 8 --ep 64 --etp 1 --device cpu --dry-run");
  EXPECT_EQ(plan.code, 0) << plan.err;
  // 576 latents and rotary keys, a hidden size that is no multiple of 128, and a step that trains.
  Outcome run = bevatron(
      folder,
      "train --family deepseek_v3 --multi-latent-attention --position-embedding-type rope "
      "--num-layers 2 --hidden-size 256 "
      "--ffn-hidden-size 208 "
      "--num-attention-heads 2 --q-lora-rank 80 --kv-lora-rank 512 --qk-head-dim 64 "
      "--qk-pos-emb-head-dim 64 --v-head-dim 64 --num-experts 2 --moe-router-topk 1 "
      "--moe-ffn-hidden-size 128 --moe-shared-expert-intermediate-size 48 --vocab-size 64 "
      "--moe-layer-freq 0,1 --moe-router-num-groups 1 --moe-router-group-topk 1 --seq-length 16 "
      "--mtp-num-layers 0 --mock-data --train-iters 2 --bf16 --fp8-format e4m3 --fp8-recipe "
      "blockwise --device cpu --metrics-out m.jsonl --loss-svg=");
  EXPECT_EQ(run.code, 0) << run.err;
}

// Runs cmake's choice of GPU architectures with an nvidia-smi that prints `capabilities`.
std::string chosen_archs(const std::string& given, const std::string& capabilities) {
  TempFolder folder;
  write_file(folder.path("nvidia-smi"), concat("#!/bin/sh\nprintf '", capabilities, "'\n",
                                               capabilities.empty() ? "exit 9\n" : ""));
  write_file(folder.path("archs.cmake"),
             "include(" BEV_SOURCE_DIR
             "/cmake/BevCudaArchs.cmake)\nbev_cuda_archs(archs)\nmessage(NOTICE \"${archs}\")\n");
  Outcome outcome =
      run_shell(folder, concat("chmod +x nvidia-smi; PATH=$PWD:$PATH cmake -DBEV_CUDA_ARCHS='",
                               given, "' -P archs.cmake"));
  return std::string(trim(outcome.err));
}

TEST(FirstHour, ACudaBuildRunsOnTheCardsItIsFor) {
  // The GPU of the machine decides; without one it is Hopper.
  EXPECT_EQ(chosen_archs("", "8.6\\n"), "86");
  EXPECT_EQ(chosen_archs("", "9.0\\n9.0\\n8.0\\n"), "80;90a-real");
  EXPECT_EQ(chosen_archs("", ""), "90a-real");
  // The lowest also gets PTX, for cards that come later.
  EXPECT_EQ(chosen_archs("120 80 86 89 90a 100", "9.0\\n"),
            "80;86-real;89-real;90a-real;100-real;120-real");
  EXPECT_THAT(chosen_archs("75", ""), HasSubstr("75 is below 80"));

  TempFolder folder;
  Outcome limited =
      bevatron(folder, "train --preset gpt2-124m --mock-data --train-iters 1 --limit-arch 75");
  EXPECT_EQ(limited.code, 2);
  EXPECT_THAT(limited.err, HasSubstr("--limit-arch: 75 is below 80"));
#ifdef BEV_HAS_CUDA
  EXPECT_THAT(bevatron(folder, "version").out, HasSubstr("CUDA kernels for "));
#endif
}

}  // namespace
}  // namespace bev::first_hour
