// The first hour of a new user: one test for every place where people lost time or data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"
#include "tests/support/terminal.h"

namespace bev {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// Runs bevatron with the given arguments (for a shell) in `folder`.
Outcome bevatron(const TempFolder& folder, const std::string& words,
                 const std::string& before = "") {
  return run_shell(folder, concat(before, " ", BEV_BINARY_DIR, "/bevatron ", words));
}

void write_corpus(const TempFolder& folder) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += concat("line ", i * 37 % 101, " of the corpus\n");
  write_file(folder.path("corpus.txt"), text);
}

// A model of a few thousand parameters on corpus.txt, with additional flags.
std::string tiny_train(const std::string& more) {
  return "train --family llama --num-layers 2 --hidden-size 32 --num-attention-heads 4 "
         "--num-query-groups 2 --ffn-hidden-size 48 --max-position-embeddings 64 --seq-length 32 "
         "--micro-batch-size 2 --text corpus.txt --split 80,10,10 " +
         more;
}

// ---- models ----

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

// ---- runs ----

// ---- run folders ----

// What a shell finds in a run's folder.
std::string listed(const TempFolder& folder, const std::string& what) {
  return run_shell(folder, concat("ls ", what)).out;
}
std::string last_step(const TempFolder& folder, const std::string& run) {
  return std::string(trim(read_file(folder.path(run + "/latest_checkpointed_iteration.txt"))));
}
json last_json(const Outcome& outcome) {
  std::string_view text = trim(outcome.out);
  return json::parse(text.substr(text.rfind('\n') + 1));
}

TEST(FirstHour, SavingIntoAnOldRunIsRefusedUnlessToldWhatToDo) {
  TempFolder folder;
  write_corpus(folder);
  ASSERT_EQ(bevatron(folder, tiny_train("--train-iters 2 --save run")).code, 0);
  write_file(folder.path("run/notes.txt"), "mine");
  run_shell(folder, "ln -s run link; cp -r run before");
  for (const char* flags : {"--save run", "--save link/ --load elsewhere",
                            "--save run --load run --finetune", "--save run --load before"}) {
    Outcome refused = bevatron(folder, tiny_train(concat("--train-iters 3 ", flags)));
    EXPECT_EQ(refused.code, 2) << flags << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("holds a run, saved up to iteration 2"));
    EXPECT_THAT(refused.err, HasSubstr("--existing-run replace"));
  }
  EXPECT_EQ(run_shell(folder, "diff -r run before").out, "");

  // The folder is the same under another name: the run goes on.
  Outcome same = bevatron(folder, tiny_train("--train-iters 3 --save run --load ./link"));
  EXPECT_EQ(same.code, 0) << same.err;
  Outcome resumed =
      bevatron(folder, tiny_train("--train-iters 4 --save run --load elsewhere --finetune "
                                  "--existing-run resume"));
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("loaded iteration 3"));

  // A run that cannot begin leaves the old one where it is.
  std::string replace = "--train-iters 1 --save run --existing-run replace ";
  EXPECT_EQ(bevatron(folder, tiny_train(replace + "--hf-model nosuch")).code, 2);
  EXPECT_EQ(last_step(folder, "run"), "4");
  Outcome replaced = bevatron(folder, tiny_train(replace));
  EXPECT_EQ(replaced.code, 0) << replaced.err;
  EXPECT_EQ(listed(folder, "-d run/iter*"), "run/iter_0000001\n");
  EXPECT_EQ(last_step(folder, "run/replaced-1"), "4");
  EXPECT_EQ(listed(folder, "run/notes.txt"), "run/notes.txt\n");  // not of the run
  EXPECT_EQ(bevatron(folder, tiny_train(replace)).code, 0);
  EXPECT_EQ(last_step(folder, "run/replaced-2"), "1");
  EXPECT_EQ(bevatron(folder, "checkpoint verify run/replaced-1").code, 0);
}

TEST(FirstHour, TwoRunsDoNotSaveIntoOneFolder) {
  TempFolder folder;
  write_corpus(folder);
  std::string run = concat(BEV_BINARY_DIR, "/bevatron ",
                           tiny_train("--train-iters 100000 --save run --load run "));
  auto wait = [](const std::string& file, const std::string& text) {
    return concat("for i in $(seq 500); do grep -q '", text, "' ", file,
                  " 2> /dev/null && break; sleep 0.02; done; ");
  };
  // The second run is refused by name; the first is killed, and the third takes its place.
  Outcome outcome = run_shell(
      folder,
      concat(run, "2> one & first=$!; ", wait("one", "iteration *1/"), "cp run/run.lock .; ", run,
             "2> two; echo refused $?; kill -9 $first; wait $first; cat run/run.lock; ", run,
             "2> three & third=$!; ", wait("three", "iteration *1/"),
             "kill $third; wait $third; echo ended $?; echo $first"));
  EXPECT_THAT(outcome.out, HasSubstr("refused 2")) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("ended 143")) << outcome.err;
  std::string_view out = trim(outcome.out);
  std::string first(out.substr(out.rfind('\n') + 1));
  std::string refused = read_file(folder.path("two")), taken = read_file(folder.path("three"));
  EXPECT_THAT(refused, HasSubstr(concat("another run saves there (process ", first, " on ")));
  EXPECT_THAT(taken, HasSubstr(concat("was left by process ", first, " on ")));
  EXPECT_THAT(taken, HasSubstr("this run takes it over"));
  EXPECT_FALSE(path_exists(folder.path("run/run.lock")));  // also after a signal
  // A run that fails removes it too.
  EXPECT_EQ(bevatron(folder, tiny_train("--train-iters 2 --save bad --lr 1e30")).code, 1);
  EXPECT_FALSE(path_exists(folder.path("bad/run.lock")));
}

TEST(FirstHour, LoadAloneGoesOn) {
  TempFolder folder;
  write_corpus(folder);
  run_shell(folder, "mkdir there elsewhere");
  auto loss = [&](const std::string& metrics) {
    std::string text = read_file(folder.path(metrics));
    text = text.substr(0, text.find_last_of('\n'));
    json row = json::parse(text.substr(text.find_last_of('\n') + 1));
    return row["loss"].get<double>();
  };
  std::string flags = "--lr 1e-2 --adam-beta2 0.9 --save-interval 2 --tp 2 --bf16 ";
  ASSERT_EQ(bevatron(folder, tiny_train(flags + "--train-iters 6 --save whole")).code, 0);
  ASSERT_EQ(
      bevatron(folder, tiny_train(flags + "--train-iters 6 --save run --exit-interval 4")).code, 0);
  // From another folder, with another layout.
  Outcome outcome =
      bevatron(folder, "train --load ../run --tp 1 --exit-interval 6", "cd elsewhere;");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("loaded iteration 4"));
  EXPECT_THAT(outcome.err, HasSubstr("--tensor-model-parallel-size"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("--adam-beta2")));
  EXPECT_EQ(last_step(folder, "run"), "6");
  EXPECT_NEAR(loss("run/metrics.jsonl"), loss("whole/metrics.jsonl"), 2e-2);

  // A run that has reached its length says so; a larger one stretches the schedule too.
  outcome = bevatron(folder, "train --load run");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("already reached its length of 6 iterations"));
  EXPECT_THAT(outcome.err, HasSubstr("give a larger --train-iters"));
  // The folder was moved.
  run_shell(folder, "mv run elsewhere/moved");
  outcome =
      bevatron(folder, "train --load elsewhere/moved --train-samples 16 --use-checkpoint-args");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(last_step(folder, "elsewhere/moved"), "8");
  EXPECT_THAT(read_file(folder.path("elsewhere/moved/metrics.jsonl")),
              HasSubstr("\"iteration\":8"));
  EXPECT_FALSE(path_exists(folder.path("run")));

  // The folders around it moved too, and the command is given elsewhere.
  run_shell(folder, "mkdir -p proj/runs; cp corpus.txt proj");
  outcome =
      bevatron(folder, tiny_train("--train-iters 1 --save runs/a --metrics-out m"), "cd proj;");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  run_shell(folder, "mv proj moved");
  outcome = bevatron(folder, "train --load ../moved/runs/a --train-iters 2", "cd elsewhere;");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(read_file(folder.path("moved/m")), HasSubstr("\"iteration\":2"));

  // A step's folder names its run and the step; another --save leaves the reports of the run alone.
  std::string before = read_file(folder.path("whole/metrics.jsonl"));
  outcome = bevatron(folder, "train --load whole/iter_0000002/ --save branch --exit-interval 3");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("loaded iteration 2 of whole/iter_0000002"));
  EXPECT_EQ(last_step(folder, "branch"), "3");
  EXPECT_EQ(read_file(folder.path("whole/metrics.jsonl")), before);

  // A new run from the weights has the model and the tokenizer, nothing else.
  outcome = bevatron(folder,
                     "train --load whole --finetune --text corpus.txt --seq-length 16 "
                     "--train-iters 1 --save tuned");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(last_step(folder, "tuned"), "1");

  outcome = bevatron(folder, "train --load nowhere --train-iters 3");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("there is no checkpoint to go on from"));
  run_shell(folder, R"(rm whole/run.json; python3 - <<'END'
import json
path = "whole/iter_0000006/manifest.json"
manifest = json.load(open(path))
manifest["config"] = {}
json.dump(manifest, open(path, "w"))
END
)");
  outcome = bevatron(folder, "train --load whole");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("does not record the configuration of its run"));
}

TEST(FirstHour, GenerateScoreAndVerifyTakeARun) {
  TempFolder folder;
  write_corpus(folder);
  Outcome trained = bevatron(
      folder, tiny_train("--train-iters 4 --save run --save-interval 2 --pp 2 --export-hf exported "
                         "--lr 1e-2 --position-embedding-type rope --normalization RMSNorm "
                         "--swiglu --disable-bias-linear"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  write_file(folder.path("tokens.json"), R"({"input_ids": [[65, 66, 67, 68], [1, 2, 3, 4]]})");
  run_shell(folder, "mkdir else; mv run else/run; rm corpus.txt");
  auto both = [&](const std::string& command) {
    Outcome run = bevatron(folder, command + " --load else/run");
    Outcome hf = bevatron(folder, command + " --hf-model exported");
    EXPECT_EQ(run.code, 0) << run.err;
    EXPECT_FALSE(hf.out.empty());
    EXPECT_EQ(run.out, hf.out);
  };
  both("score --tokens tokens.json --tp 2");
  both("generate --prompt 'line 1' --max-new-tokens 8 --json");
  both("generate --prompt-tokens tokens.json --max-new-tokens 4 --json --pp 2");
  Outcome earlier = bevatron(folder, "score --tokens tokens.json --load else/run/iter_0000002");
  Outcome named = bevatron(folder, "score --tokens tokens.json --load else/run --ckpt-step 2");
  EXPECT_EQ(earlier.code, 0) << earlier.err;
  EXPECT_EQ(earlier.out, named.out);
  Outcome verified = bevatron(folder, "verify --load else/run --layouts tp2 --json");
  EXPECT_EQ(verified.code, 0) << verified.err;
  EXPECT_EQ(bevatron(folder, "convert --load else/run --export-hf again").code, 0);
  EXPECT_EQ(run_shell(folder, "diff -r exported again").out, "");
  Outcome twice =
      bevatron(folder, "score --tokens tokens.json --load else/run --hf-model exported");
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.err, HasSubstr("keep one"));
}

TEST(FirstHour, ReportsAndCachesAreInTheFolderOfTheRun) {
  TempFolder folder;
  write_corpus(folder);
  run_shell(folder, "mkdir here");
  std::string train = tiny_train("--train-iters 3 ");
  train.replace(train.find("corpus.txt"), 10, "../corpus.txt");
  Outcome outcome = bevatron(folder, train + "--save ../run", "cd here;");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(listed(folder, "-A here"), "");
  EXPECT_THAT(outcome.out, HasSubstr("loss curve: ../run/loss.svg"));
  EXPECT_THAT(outcome.out, HasSubstr("metrics: ../run/metrics.jsonl"));
  EXPECT_THAT(read_file(folder.path("run/loss.svg")), HasSubstr("<svg"));
  EXPECT_THAT(listed(folder, "run/cache"), HasSubstr(".bin"));
  json row = json::parse(read_file(folder.path("run/metrics.jsonl"))
                             .substr(0, 400)
                             .substr(0, read_file(folder.path("run/metrics.jsonl")).find('\n')));
  EXPECT_EQ(row["consumed_tokens"], 64);
  // Flags name other places, or none.
  outcome =
      bevatron(folder, train + "--save ../other --loss-svg '' --metrics-out m --data-cache-path c",
               "cd here;");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(listed(folder, "here"), "c\nm\n");
  EXPECT_THAT(listed(folder, "other"), Not(HasSubstr("loss.svg")));
}

TEST(FirstHour, PlotDrawsSeveralRuns) {
  TempFolder folder;
  write_corpus(folder);
  ASSERT_EQ(bevatron(folder, tiny_train("--train-iters 4 --save 'a<&>b'")).code, 0);
  ASSERT_EQ(bevatron(folder, tiny_train("--train-iters 2 --metrics-out m.jsonl --save named")).code,
            0);
  folder.write("torn.jsonl",
               "{\"iteration\":1,\"loss\":null,\"consumed_tokens\":3,\"elapsed_ms\":1}\n"
               "{\"iteration\":2,\"loss\":-1,\"consumed_tokens\":6,\"elapsed_ms\":1}\n"
               "{\"iteration\":2,\"split\":\"valid\",\"name\":\"x\",\"loss\":2}\n{\"iter");
  Outcome outcome = bevatron(
      folder, "plot 'a<&>b/' named torn.jsonl --metric loss --x tokens --output out/p.svg");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  json series = last_json(outcome)["series"];
  ASSERT_EQ(series.size(), 3u);
  EXPECT_EQ(series[0]["run"], "a<&>b");
  EXPECT_EQ(series[0]["points"], 4);
  EXPECT_EQ(series[1]["points"], 2);
  EXPECT_EQ(series[2]["points"], 1);
  EXPECT_EQ(series[2]["last"], -1);
  std::string last = read_file(folder.path("a<&>b/metrics.jsonl"));
  last = last.substr(last.rfind("{\"iteration"));
  EXPECT_EQ(series[0]["last"], json::parse(last)["loss"]);
  EXPECT_EQ(run_shell(folder,
                      "python3 -c 'import xml.dom.minidom as x; "
                      "print(x.parse(\"out/p.svg\").documentElement.tagName)'")
                .out,
            "svg\n");
  outcome = bevatron(folder, "plot torn.jsonl --log-y --x time --output log.svg");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("1 value of torn.jsonl is not above 0"));
  outcome = bevatron(folder, "plot torn.jsonl --metric validation --output v.svg");
  EXPECT_EQ(last_json(outcome)["series"][0]["last"], 2);
  outcome = bevatron(folder, "plot torn.jsonl --metric accuracy --output v.svg");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("there are loss, consumed_tokens, elapsed_ms, validation"));
  outcome = bevatron(folder, "plot nosuch --output v.svg");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("nosuch"));
  outcome = bevatron(folder, "plot out --output v.svg");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("has no metrics"));
}

// ---- data ----

// ---- command line ----

// A tokenizer with chat tokens, a template, and conversations in which the answer repeats a letter.
void write_conversations(const TempFolder& folder) {
  write_corpus(folder);
  Outcome made = bevatron(folder,
                          "tokenizer train --input corpus.txt --vocab-size 300 --output tok "
                          "--special-tokens '<|endoftext|>' '<|im_start|>' '<|im_end|>'");
  ASSERT_EQ(made.code, 0) << made.err;
  write_file(folder.path("chat.jinja"),
             "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
             "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  std::string lines;
  for (int i = 0; i < 16; ++i) {
    char letter = static_cast<char>('a' + i % 2);
    lines += concat(R"({"prompt": "say )", letter, R"(", "response": ")", std::string(3, letter),
                    "\"}\n");
  }
  write_file(folder.path("chats.jsonl"), lines);
}

std::string tiny_sft(const std::string& more) {
  return "train --family llama --num-layers 1 --hidden-size 32 --num-attention-heads 2 "
         "--ffn-hidden-size 48 --position-embedding-type rope --normalization RMSNorm --swiglu "
         "--disable-bias-linear --max-position-embeddings 256 --seq-length 64 --micro-batch-size 4 "
         "--lr 2e-2 --loss-svg '' --sft-data chats.jsonl --tokenizer tok "
         "--chat-template chat.jinja " +
         more;
}

// An untrained model with the template, which talks without end.
void write_chatterbox(const TempFolder& folder) {
  write_conversations(folder);
  Outcome made = bevatron(folder, tiny_sft("--train-iters 1 --lr 0 --export-hf out"));
  ASSERT_EQ(made.code, 0) << made.err;
}

TEST(FirstHour, TheChatTemplateIsExportedAndTheEndOfATurnEndsGeneration) {
  TempFolder folder;
  write_conversations(folder);
  // Several templates, of which the chosen one becomes the default, and end tokens that are there.
  json settings = json::parse(read_file(folder.path("tok/tokenizer_config.json")));
  settings["chat_template"] = {{{"name", "default"}, {"template", "OLD"}},
                               {{"name", "tool_use"}, {"template", "TOOLS{{ eos_token }}"}}};
  write_file(folder.path("tok/tokenizer_config.json"), settings.dump());
  write_file(folder.path("tok/generation_config.json"), R"({"eos_token_id": [0], "top_k": 7})");
  Outcome trained =
      bevatron(folder, tiny_sft("--train-iters 40 --export-hf out --save run --save-interval 40 "
                                "--save-hf copy"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  Outcome converted = bevatron(folder, "convert --load run --export-hf converted");
  ASSERT_EQ(converted.code, 0) << converted.err;
  std::string copy = list_directory(folder.path("copy")).front();
  copy = path_exists(folder.path("copy/config.json")) ? "copy" : concat("copy/", copy);
  const std::string wanted = read_file(folder.path("chat.jinja"));
  for (const std::string& name : {std::string("out"), std::string("converted"), copy}) {
    SCOPED_TRACE(name);
    auto at = [&](const char* file) { return folder.path(concat(name, "/", file)); };
    EXPECT_EQ(read_file(at("chat_template.jinja")), wanted);
    EXPECT_EQ(read_file(at("additional_chat_templates/tool_use.jinja")), "TOOLS{{ eos_token }}");
    json all = json::parse(read_file(at("tokenizer_config.json")))["chat_template"];
    EXPECT_EQ(all[0]["template"], wanted);
    EXPECT_EQ(all[1]["name"], "tool_use");
    EXPECT_EQ(json::parse(read_file(at("config.json")))["eos_token_id"], json({0, 2}));
    json generation = json::parse(read_file(at("generation_config.json")));
    EXPECT_EQ(generation["eos_token_id"], json({0, 2}));
    EXPECT_EQ(generation["top_k"], 7);
  }
  Outcome said = bevatron(folder, "generate --hf-model out --chat --prompt 'say b' --json");
  ASSERT_EQ(said.code, 0) << said.err;
  json answer = json::parse(said.out);
  EXPECT_EQ(answer["text"][0], "bbb");
  EXPECT_EQ(answer["generated"][0].back(), 2);
  // The same without a template, from the end tokens of the folder alone.
  said = bevatron(folder,
                  "generate --hf-model converted --prompt '<|im_start|>user\nsay a<|im_end|>\n"
                  "<|im_start|>assistant\n' --max-new-tokens 30");
  EXPECT_EQ(said.out, "aaa\n") << said.err;
  // Over itself, and with a template by name.
  Outcome named =
      bevatron(folder, "convert --hf-model out --chat-template tool_use --export-hf converted");
  ASSERT_EQ(named.code, 0) << named.err;
  EXPECT_EQ(read_file(folder.path("converted/chat_template.jinja")), "TOOLS{{ eos_token }}");
  ASSERT_EQ(run_shell(folder, "rm chat.jinja").code, 0);
  Outcome lost = bevatron(folder, "convert --load run --export-hf lost");
  EXPECT_EQ(lost.code, 0) << lost.err;
  EXPECT_THAT(lost.err, HasSubstr("chat.jinja is no file"));
  EXPECT_THAT(lost.err, HasSubstr("--chat-template names another place"));
}

TEST(FirstHour, ATurnThatNoTokenEndsIsSaid) {
  TempFolder folder;
  write_conversations(folder);
  Outcome outcome = bevatron(folder, tiny_sft("--tokenizer byte --train-iters 1 --export-hf out"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("generation cannot stop there"));
  EXPECT_EQ(read_file(folder.path("out/chat_template.jinja")),
            read_file(folder.path("chat.jinja")));
}

TEST(FirstHour, OfAFlagGivenTwiceTheLastOneCounts) {
  TempFolder folder;
  write_corpus(folder);
  write_file(folder.path("script.sh"),
             concat("#!/bin/sh\n", BEV_BINARY_DIR,
                    "/bevatron schedule --lr oops --train-iters 3 "
                    "--rampup-batch-size 9 9 9 --global-batch-size 1 --no-bf16 --bf16 \"$@\"\n"));
  Outcome outcome =
      run_shell(folder, "sh script.sh --lr 0.5 --train_iters=1 --rampup-batch-size= --no-bf16");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\n1,0,0.5,"));
  EXPECT_THAT(outcome.err, HasSubstr("--lr: given twice, as --lr oops, then --lr 0.5; "
                                     "the last one counts"));
  EXPECT_THAT(outcome.err, HasSubstr("as --train-iters 3, then --train-iters 1;"));
  EXPECT_THAT(outcome.err, HasSubstr("given 3 times, as --no-bf16, then --bf16, then --no-bf16;"));
  EXPECT_EQ(split(outcome.out, '\n').size(), 3u) << outcome.out;
  outcome = bevatron(folder, "schedule --config a.yaml --config b.yaml");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--config: given twice, as a.yaml and b.yaml"));
}

TEST(FirstHour, NamesOfOtherProgramsGetTheRightName) {
  TempFolder folder;
  Outcome outcome = bevatron(
      folder,
      "train --learning_rate 1 --batch-size 2 --max-steps 3 --output-dir o --model m "
      "--num-train-epochs 1 --per_device_train_batch_size 2 --gradient-accumulation-steps 4 "
      "--block_size 8 --n-layer 2 --n_head 2 --n_embd 4 --warmup-ratio 0.1 --stop x --max-lr 2 "
      "--zero-stage 2 --lr-scheduler-type cosine");
  EXPECT_EQ(outcome.code, 2);
  for (const char* part :
       {"--learning-rate: unknown flag; here it is --lr",
        "--batch-size: unknown flag; a step takes "
        "--global-batch-size",
        "--max-steps: unknown flag; here it is --train-iters",
        "--output-dir: unknown flag; checkpoints go to --save",
        "--model: unknown flag; a Hugging "
        "Face folder goes to --hf-model",
        "--num-train-epochs: unknown flag; ",
        "--per-device-train-batch-size: unknown flag; here it is --micro-batch-size",
        "--gradient-accumulation-steps: unknown flag; give --global-batch-size",
        "--block-size: unknown flag; here it is --seq-length", "here it is --num-layers",
        "here it is --num-attention-heads", "here it is --hidden-size",
        "here it is --lr-warmup-fraction", "--stop: unknown flag; `bevatron help COMMAND` lists",
        "--max-lr: unknown flag; here it is --lr", "optim_grads", "here it is --lr-decay-style"}) {
    EXPECT_THAT(outcome.err, HasSubstr(part));
  }
  EXPECT_THAT(outcome.err, Not(HasSubstr("did you mean --tp")));
  write_file(folder.path("axolotl.yaml"), "base_model: x\nsequence_len: 8\n");
  outcome = bevatron(folder, "train --config axolotl.yaml");
  EXPECT_THAT(outcome.err, HasSubstr("axolotl.yaml:2: sequence_len: unknown key; here it is "
                                     "seq-length"));
  outcome = bevatron(folder, "generate --model x --max-tokens 3");
  EXPECT_THAT(outcome.err, HasSubstr("--model: unknown flag; here it is --hf-model"));
  EXPECT_THAT(outcome.err, HasSubstr("--max-tokens: unknown flag; here it is --max-new-tokens"));
  outcome = bevatron(folder, "generate --hf-model meta-llama/Llama-3.2-1B --prompt x");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("`hf download meta-llama/Llama-3.2-1B --local-dir "
                                     "Llama-3.2-1B`, then give Llama-3.2-1B"));
  outcome = bevatron(folder, "generate --hf-model /no/where --prompt x");
  EXPECT_THAT(outcome.err, Not(HasSubstr("hf download")));
  outcome = bevatron(folder, "train --preset meta-llama/Llama-3.2-1B --train-iters 1");
  EXPECT_THAT(outcome.err, HasSubstr("did you mean llama3.2-1b?"));
}

TEST(FirstHour, PromptsComeFromFilesAndPipes) {
  TempFolder folder;
  write_chatterbox(folder);
  const std::string generate = "generate --hf-model out --max-new-tokens 6 --ignore-eos ";
  auto ids = [&](const std::string& words, const std::string& before = "") {
    Outcome outcome = bevatron(folder, concat(generate, "--json ", words), before);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code == 0 ? json::parse(outcome.out)["generated"] : json();
  };
  json one = ids("--prompt 'line 5'"), chat = ids("--chat --prompt 'line 5'");
  EXPECT_NE(one, chat);
  write_file(folder.path("p.txt"), "line 5\n");
  write_file(folder.path("p.jsonl"),
             "\"line 5\"\n\n{\"prompt\": \"line 5\"}\n{\"messages\": [{\"role\": \"user\", "
             "\"content\": \"line 5\"}]}\n");
  EXPECT_EQ(ids("--prompt-file p.txt"), one);
  EXPECT_EQ(ids("", "echo 'line 5' |"), one);
  EXPECT_EQ(ids("--prompt -", "printf 'line 5' |"), one);
  EXPECT_EQ(ids("--chat --prompt-file p.jsonl"), json({chat[0], chat[0], chat[0]}));
  Outcome bad = bevatron(folder, concat(generate, "--prompt-file p.jsonl"));
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("p.jsonl:4: has messages; give --chat"));
  bad = bevatron(folder, generate);
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("--prompt: is missing"));
  bad = bevatron(folder, generate, ": |");
  EXPECT_EQ(bad.code, 2);
  EXPECT_THAT(bad.err, HasSubstr("standard input: the text gives no token"));
}

TEST(FirstHour, SpecialTokensAreHiddenUnlessAskedFor) {
  TempFolder folder;
  write_conversations(folder);
  ASSERT_EQ(bevatron(folder, tiny_sft("--train-iters 40 --export-hf out")).code, 0);
  const std::string generate =
      "generate --hf-model out --chat --prompt 'say b' --ignore-eos --max-new-tokens 5 ";
  EXPECT_THAT(bevatron(folder, generate).out, Not(HasSubstr("<|im_end|>")));
  EXPECT_THAT(bevatron(folder, generate + "--json").out, Not(HasSubstr("<|im_end|>")));
  EXPECT_THAT(bevatron(folder, generate + "--show-special-tokens").out, HasSubstr("bbb<|im_end|>"));
}

TEST(FirstHour, AChatOnATerminalStreamsAndCtrlCEndsTheAnswerOnly) {
  TempFolder folder;
  write_chatterbox(folder);
  Terminal chat(folder, concat(BEV_BINARY_DIR,
                               "/bevatron generate --hf-model out --chat --ignore-eos "
                               "--max-new-tokens 1000000 --tp 2"));
  ASSERT_TRUE(chat.wait_for("> ")) << chat.output();
  chat.type("\x03");  // at the prompt
  ASSERT_TRUE(chat.wait_for("/exit")) << chat.output();
  ASSERT_TRUE(chat.wait_for("> ")) << chat.output();
  chat.type("say a\n");
  ASSERT_TRUE(chat.wait_for("say a\r\n"));
  EXPECT_TRUE(chat.wait_for_bytes(20)) << "nothing is streamed";
  chat.type("\x03");
  ASSERT_TRUE(chat.wait_for("\n> ")) << chat.output();
  chat.type("/clear\n");
  ASSERT_TRUE(chat.wait_for("forgotten")) << chat.output();
  chat.type("/exit\n");
  EXPECT_EQ(chat.finish(), 0) << chat.output();

  Terminal other(folder, concat(BEV_BINARY_DIR, "/bevatron generate --hf-model out --chat"));
  ASSERT_TRUE(other.wait_for("> ")) << other.output();
  other.type("\x04");
  EXPECT_EQ(other.finish(), 0) << other.output();
}

TEST(FirstHour, AChatRemembersItsTurns) {
  TempFolder folder;
  write_chatterbox(folder);
  write_file(folder.path("echo.jinja"),
             "{% for m in messages %}{{ m.role[0] }}{{ m.content }}<|im_end|>{% endfor %}"
             "{% if messages|length > 3 %}{{ raise_exception('four messages') }}{% endif %}");
  const std::string chat =
      "generate --hf-model out --chat --chat-template echo.jinja --max-new-tokens 3 --ignore-eos";
  Outcome outcome = bevatron(folder, chat, "printf 'one\\ntwo\\n\\nthree\\n/clear\\nfour' |");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("four messages"));  // the third turn is refused, no end
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 3) << outcome.out;
  outcome = bevatron(folder, chat + " --json");
  EXPECT_EQ(outcome.code, 2);
}

TEST(FirstHour, HelpFindsFlagsModelsAndLayouts) {
  TempFolder folder;
  std::string train = bevatron(folder, "help train").out;
  std::size_t usual = train.find("\nusual flags:\n"), model = train.find("\nmodel:\n");
  ASSERT_LT(usual, model);
  std::string first = train.substr(usual, model - usual);
  for (const char* flag : {"--preset", "--text", "--lr", "--train-iters", "--save", "--bf16"}) {
    EXPECT_THAT(first, HasSubstr(concat("\n  ", flag)));
  }
  EXPECT_THAT(bevatron(folder, "help --lr").out, HasSubstr("taken by train, verify, schedule"));
  EXPECT_EQ(bevatron(folder, "help lr").out, bevatron(folder, "help --lr").out);
  EXPECT_THAT(bevatron(folder, "help tp").out, HasSubstr("--tensor-model-parallel-size, --tp"));
  EXPECT_THAT(bevatron(folder, "help no_causal").out, HasSubstr("--causal, --no-causal"));
  EXPECT_THAT(bevatron(folder, "help learning_rate").out, HasSubstr("here it is --lr"));
  EXPECT_THAT(bevatron(folder, "help --use-mcore-models").out, HasSubstr("is not needed"));
  EXPECT_THAT(bevatron(folder, "help train mixture of experts").out,
              testing::AllOf(HasSubstr("--num-experts"), Not(HasSubstr("--lr "))));
  EXPECT_THAT(bevatron(folder, "help --search WARMUP fraction").out,
              testing::AllOf(HasSubstr("--lr-warmup-fraction"), Not(HasSubstr("--save "))));
  EXPECT_EQ(bevatron(folder, "help --search xyzzy").code, 2);
  EXPECT_THAT(bevatron(folder, "help xyzzy").err, HasSubstr("no command and no flag"));
  EXPECT_THAT(bevatron(folder, "help trian").err, HasSubstr("did you mean train?"));
  EXPECT_THAT(bevatron(folder, "help presets").out, HasSubstr("llama3.2-1b"));
  EXPECT_THAT(bevatron(folder, "help layouts").out, HasSubstr("tp2sp,pp2 dp4zero3"));
}

TEST(FirstHour, ColoursAreForTerminalsThatWantThem) {
  TempFolder folder;
  const std::string program = concat(BEV_BINARY_DIR, "/bevatron ");
  EXPECT_THAT(bevatron(folder, "help generate").out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(bevatron(folder, "trian").err, testing::StartsWith("error: "));
  Terminal help(folder, program + "help generate");
  EXPECT_EQ(help.finish(), 0);
  EXPECT_THAT(help.output(), HasSubstr("\x1b[36m--prompt\x1b[0m"));
  Terminal error(folder, program + "trian");
  EXPECT_EQ(error.finish(), 2);
  EXPECT_THAT(error.output(), HasSubstr("\x1b[1;31merror:\x1b[0m 'trian'"));
  Terminal plain(folder, "env NO_COLOR=1 " + program + "trian");
  EXPECT_EQ(plain.finish(), 2);
  EXPECT_THAT(plain.output(), HasSubstr("error: 'trian'"));
}

TEST(FirstHour, ManualPageAndCompletionFollowTheFlags) {
  TempFolder folder;
  Outcome man = bevatron(folder, "help --man");
  EXPECT_THAT(man.out, testing::AllOf(testing::StartsWith(".TH BEVATRON 1"),
                                      HasSubstr("\\fB\\-\\-lr\\fR"), HasSubstr(".SS optimizer")));
  for (const std::string& line : split(man.out, '\n')) {
    bool request = line.starts_with('.') || line.starts_with('\'');
    EXPECT_TRUE(!request || (line.size() > 2 && line[1] >= 'A' && line[1] <= 'z')) << line;
  }
  auto complete = [&](const std::string& words) {
    return run_shell(folder, concat("bash -c 'source <(", BEV_BINARY_DIR,
                                    "/bevatron completion bash); "
                                    "COMP_WORDS=(bevatron ",
                                    words,
                                    "); COMP_CWORD=$((${#COMP_WORDS[@]} - "
                                    "1)); _bevatron; echo \"${COMPREPLY[@]}\"'"))
        .out;
  };
  EXPECT_EQ(run_shell(folder, concat(BEV_BINARY_DIR, "/bevatron completion bash | bash -n")).code,
            0);
  EXPECT_EQ(complete("tr"), "train\n");
  EXPECT_EQ(complete("train --lr-warmup-f"), "--lr-warmup-fraction\n");
  EXPECT_EQ(complete("train --nan-policy s"), "stop skip\n");
  EXPECT_EQ(complete("checkpoint d"), "diff\n");
  EXPECT_EQ(complete("checkpoint diff --fol"), "--folders\n");
  EXPECT_THAT(complete("train --preset llama3.2-"), HasSubstr("llama3.2-1b"));
  write_file(folder.path("book.txt"), "");
  EXPECT_EQ(complete("train --text bo"), "book.txt\n");
  EXPECT_THAT(bevatron(folder, "completion fish").out,
              HasSubstr("-n '__bevatron_has train' -l lr -r -d 'highest learning rate'"));
  EXPECT_THAT(bevatron(folder, "completion zsh").out, testing::StartsWith("#compdef bevatron\n"));
  EXPECT_EQ(bevatron(folder, "completion tcsh").code, 2);
  EXPECT_EQ(bevatron(folder, "completion").code, 2);
}

// ---- devices ----

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
}  // namespace bev
