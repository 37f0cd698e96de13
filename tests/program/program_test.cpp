// The program from the command line: output, files, exit codes, and error messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "bridge/safetensors.h"
#include "bridge/weight_files.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;

// Runs bevatron with the given arguments (for a shell) in `folder`.
Outcome bevatron(const TempFolder& folder, const std::string& words,
                 const std::string& before = "") {
  return run_shell(folder, concat(before, " ", BEV_BINARY_DIR, "/bevatron ", words));
}

std::string golden(const std::string& name) {
  return BEV_SOURCE_DIR "/tests/golden/models/" + name;
}

std::string last_line(const std::string& text) {
  std::vector<std::string> lines = split(std::string(trim(text)), '\n');
  return lines.back();
}

std::vector<json> json_lines(const std::string& path) {
  std::vector<json> lines;
  for (const std::string& line : split(std::string(trim(read_file(path))), '\n')) {
    lines.push_back(json::parse(line));
  }
  return lines;
}

// A tiny model on text, with additional flags.
std::string tiny_train(const std::string& more) {
  return "train --family llama --num-layers 2 --hidden-size 32 --num-attention-heads 4 "
         "--num-query-groups 2 "
         "--ffn-hidden-size 48 --position-embedding-type rope --normalization RMSNorm --swiglu "
         "--disable-bias-linear --max-position-embeddings 64 --seq-length 32 --micro-batch-size 2 "
         "--text corpus.txt --split 90,10,0 " +
         more;
}

void write_corpus(const TempFolder& folder) {
  std::string text;
  for (int i = 0; i < 400; ++i) text += concat("line ", i * 37 % 101, " of the corpus\n");
  write_file(folder.path("corpus.txt"), text);
}

TEST(Program, HelpNamesTheCommands) {
  TempFolder folder;
  Outcome run = bevatron(folder, "help");
  EXPECT_EQ(run.code, 0);
  for (const char* command : {"train", "score", "generate", "convert", "schedule", "verify"}) {
    EXPECT_NE(run.out.find(command), std::string::npos) << command;
    EXPECT_EQ(bevatron(folder, concat("help ", command)).code, 0);
  }
  EXPECT_EQ(bevatron(folder, "").code, 2);
}

TEST(Program, FlagReferenceIsCurrent) {
  TempFolder folder;
  EXPECT_EQ(bevatron(folder, "help --markdown").out, read_file(BEV_SOURCE_DIR "/docs/flags.md"))
      << "run: build/bevatron help --markdown > docs/flags.md";
}

TEST(Program, UnknownWordsSuggestTheNearest) {
  TempFolder folder;
  Outcome run = bevatron(folder, "trian");
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("train"), std::string::npos);
  run = bevatron(folder, "train --num-layer 3 --hiden-size 4 --mock-data");
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("--num-layers"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("--hidden-size"), std::string::npos) << run.err;
}

TEST(Program, ScoreWritesLogitsAndGradientsUnderHuggingFacesNames) {
  TempFolder folder;
  json expected = json::parse(read_file(golden("llama_gqa/expected.json")));
  SafetensorsFile theirs(golden("llama_gqa/expected.safetensors"));
  for (std::string layout :
       {"", "--tp 2 --sequence-parallel", "--pp 2 --dp 2",
        "--pp 2 --tp 2 --pipeline-schedule zb-v --pipeline-model-parallel-layout 'Et|t||tL'",
        "--pp 2 --dp 2 --pipeline-model-parallel-layout 'E|tt|t|L'"}) {
    Outcome run =
        bevatron(folder, concat("score --hf-model ", golden("llama_gqa"), " --tokens ",
                                golden("llama_gqa/tokens.json"),
                                " --logits-out l.safetensors --grads-out g.safetensors ", layout));
    ASSERT_EQ(run.code, 0) << run.err;
    json result = json::parse(last_line(run.out));
    EXPECT_NEAR(result["loss"].get<double>(), expected["loss"].get<double>(), 2e-5);
    EXPECT_EQ(result["tokens"], expected["tokens"]);
    EXPECT_NEAR(result["grad_norm"].get<double>(), expected["grad_norm"].get<double>(), 1e-3);
    SafetensorsFile logits(folder.path("l.safetensors")), grads(folder.path("g.safetensors"));
    auto difference = [](const TensorBytes& a, const TensorBytes& b) {
      EXPECT_EQ(a.shape, b.shape);
      double most = 0;
      for (std::size_t i = 0; i + 4 <= a.bytes.size(); i += 4) {
        float x, y;
        std::memcpy(&x, a.bytes.data() + i, 4);
        std::memcpy(&y, b.bytes.data() + i, 4);
        most = std::max(most, std::abs(static_cast<double>(x) - static_cast<double>(y)));
      }
      return most;
    };
    EXPECT_LT(difference(logits.tensor("logits"), theirs.tensor("logits")), 2e-4);
    for (const StoredTensor& tensor : grads.tensors()) {
      EXPECT_LT(difference(grads.tensor(tensor.name), theirs.tensor("grad." + tensor.name)), 1e-3)
          << tensor.name;
    }
    EXPECT_EQ(grads.tensors().size() + 1, theirs.tensors().size());
  }
}

TEST(Program, GenerateContinuesAsTransformersDoes) {
  TempFolder folder;
  json expected = json::parse(read_file(golden("qwen3_tied/expected.json"))).at("greedy");
  write_file(folder.path("prompts.json"),
             json::object({{"input_ids", expected["prompts"]}}).dump());
  Outcome run =
      bevatron(folder, concat("generate --hf-model ", golden("qwen3_tied"),
                              " --prompt-tokens prompts.json --ignore-eos --json --max-new-tokens ",
                              expected["max_new_tokens"].get<std::int64_t>()));
  ASSERT_EQ(run.code, 0) << run.err;
  json result = json::parse(run.out);
  EXPECT_EQ(result["generated"], expected["generated"]);
  EXPECT_TRUE(result["text"].is_null());
  EXPECT_LE(result["logprobs"][0][0].get<double>(), 0);
}

TEST(Program, ConvertKeepsEveryBitAndRoundTripsThroughBf16) {
  TempFolder folder;
  for (std::string name : {"gpt2", "gpt_neox", "gemma3", "phi3"}) {
    ASSERT_EQ(
        bevatron(folder, concat("convert --hf-model ", golden(name), " --export-hf once")).code, 0);
    ASSERT_EQ(bevatron(folder, "convert --hf-model once --export-hf twice").code, 0);
    WeightFiles before(golden(name)), after(folder.path("twice"));
    ASSERT_EQ(before.names(), after.names());
    for (const std::string& tensor : before.names()) {
      TensorBytes a = before.tensor(tensor), b = after.tensor(tensor);
      EXPECT_TRUE(a.shape == b.shape && a.dtype == b.dtype);
      EXPECT_TRUE(std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end()))
          << tensor;
    }
    ASSERT_EQ(bevatron(folder, "convert --hf-model twice --export-hf half --dtype bf16").code, 0);
    EXPECT_EQ(WeightFiles(folder.path("half")).tensor(before.names()[0]).dtype, Dtype::kBf16);
  }
}

TEST(Program, TrainingWarnsOfARouterThatTheLossDoesNotTeach) {
  TempFolder folder;
  write_corpus(folder);
  auto warns = [&](const std::string& more) {
    Outcome got = bevatron(folder, tiny_train("--train-iters 1 --num-experts 3 " + more));
    EXPECT_EQ(got.code, 0) << got.err;
    return got.err.find("the probability is always 1") != std::string::npos;
  };
  const std::string one = "--moe-router-topk 1 ", sigmoid = "--moe-router-score-function sigmoid ";
  EXPECT_FALSE(warns(""));
  EXPECT_TRUE(warns(one));
  EXPECT_FALSE(warns(one + "--moe-router-pre-softmax"));
  EXPECT_FALSE(warns(one + sigmoid));
  EXPECT_TRUE(warns(one + sigmoid + "--moe-router-norm-single-prob"));
}

// The loss is that of the dense model; a checkpoint has the same contents as the folder, and a run
// can start from it.
TEST(Program, ConvertMakesExpertsOfADenseModel) {
  TempFolder folder;
  write_file(folder.path("tokens.json"), R"({"input_ids": [[1, 5, 9, 13, 2, 7, 3, 3, 8, 11]]})");
  const std::string dense = concat("convert --hf-model ", golden("llama_gqa"));
  auto loss = [&](const std::string& model) {
    Outcome got = bevatron(folder, concat("score --tokens tokens.json --hf-model ", model));
    EXPECT_EQ(got.code, 0) << got.err;
    return json::parse(last_line(got.out))["loss"].get<double>();
  };
  const std::string experts =
      " --moe-use-upcycling --model-family mixtral --num-experts 4 --seed 7";
  ASSERT_EQ(bevatron(folder, dense + experts + " --export-hf moe --save run").code, 0);
  EXPECT_NEAR(loss("moe"), loss(golden("llama_gqa")), 1e-5);
  ASSERT_EQ(bevatron(folder, "convert --load run --export-hf again").code, 0);
  EXPECT_TRUE(read_file(folder.path("again/model.safetensors")) ==
              read_file(folder.path("moe/model.safetensors")));
  Outcome got = bevatron(folder, dense + " --num-experts 4 --export-hf x");
  EXPECT_EQ(got.code, 2);
  EXPECT_THAT(got.err, testing::HasSubstr("--num-experts: is for --moe-use-upcycling"));
  got = bevatron(folder, dense + " --moe-use-upcycling --num-experts 4 --export-hf x");
  EXPECT_EQ(got.code, 2);
  EXPECT_THAT(got.err, testing::HasSubstr("llama models have no weights for"));
  got = bevatron(folder, concat("convert --hf-model moe", experts, " --export-hf x"));
  EXPECT_EQ(got.code, 2);
  EXPECT_THAT(got.err, testing::HasSubstr("has experts already"));
  EXPECT_FALSE(path_exists(folder.path("x")));
}

TEST(Program, ScheduleIsMegatrons) {
  TempFolder folder;
  Outcome run =
      bevatron(folder,
               "schedule --train-iters 1000 --global-batch-size 1 --lr 0.1 --min-lr 0.001 "
               "--lr-warmup-init 0.01 --lr-warmup-iters 100 --lr-decay-style linear "
               "--start-weight-decay 0 --end-weight-decay 0.1 --weight-decay-incr-style linear");
  ASSERT_EQ(run.code, 0) << run.err;
  std::vector<std::string> lines = split(std::string(trim(run.out)), '\n');
  ASSERT_EQ(lines.size(), 1001u);
  EXPECT_EQ(lines[0], "iteration,consumed_samples,lr,wd,batch_size");
  std::vector<std::string> at50 = split(lines[51], ','), at500 = split(lines[501], ',');
  EXPECT_EQ(at50[1], "50");
  EXPECT_NEAR(std::stod(at50[2]), 0.055, 1e-12);
  EXPECT_NEAR(std::stod(at500[2]), 0.1 - 0.099 * 400 / 900, 1e-12);
  EXPECT_NEAR(std::stod(at500[3]), 0.05, 1e-12);
  EXPECT_EQ(bevatron(folder, "schedule --train-iters 50 --global-batch-size 2 --plot").code, 0);
}

TEST(Program, PlanScheduleDrawsAPipeline) {
  TempFolder folder;
  Outcome run = bevatron(folder,
                         "plan schedule --pp 2 --pipeline-schedule zb-h1 --micro-batches 3 "
                         "--svg schedule.svg");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out,
            "zb-h1: 2 ranks, 3 micro-batches\n"
            "rank 0  F0 F1 .  B0 W0 F2 B1 W1 B2 W2\n"
            "rank 1  .  F0 B0 F1 B1 W0 F2 B2 W1 W2\n"
            "10.0 % bubble in 10 units of time\n"
            "activations held at most, by rank: 2 2 (micro-batches)\n");
  EXPECT_EQ(read_file(folder.path("schedule.svg")).substr(0, 5), "<svg ");
  run = bevatron(folder, "plan schedule --pp 4 --vpp 2 --micro-batches 6");
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("leave 2 of 6 micro-batches"), std::string::npos) << run.err;
}

TEST(Program, ScheduleOfAModelIsThatOfItsRun) {
  TempFolder folder;
  // 2048 tokens are 2 samples of the preset's 1024 tokens.
  Outcome run = bevatron(folder,
                         "schedule --preset gpt2-124m --train-iters 4 "
                         "--step-batch-size-schedule '0:1 2048:4'");
  ASSERT_EQ(run.code, 0) << run.err;
  std::vector<std::string> lines = split(std::string(trim(run.out)), '\n');
  ASSERT_EQ(lines.size(), 5u);
  const char* sizes[] = {"1", "1", "4", "4"};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(split(lines[i + 1], ',')[4], sizes[i]);
}

TEST(Program, OutputThatCannotBeWrittenIsAFailure) {
  TempFolder folder;
  for (std::string words :
       {std::string("help"), std::string("help train"), std::string("help --markdown"),
        std::string("train --help"), std::string("version"),
        std::string("schedule --train-iters 5"), std::string("schedule --train-iters 5 --plot"),
        std::string("train --preset gpt2-124m --dry-run"),
        std::string("train --num-layers 1 --hidden-size 8 --num-attention-heads 1 --vocab-size 16 "
                    "--seq-length 8 --mock-data --train-iters 1"),
        std::string("verify --preset gpt2-124m --layouts dp2 --steps 1"),
        concat("score --hf-model ", golden("gpt2"), " --tokens ", golden("gpt2/tokens.json"))}) {
    Outcome run = bevatron(folder, words + " >/dev/full");
    EXPECT_EQ(run.code, 1) << words << "\n" << run.err;
    EXPECT_NE(run.err.find("standard output"), std::string::npos) << words << "\n" << run.err;
  }
}

TEST(Program, ValidationSeesTheSameSamplesWhateverTheBatchSize) {
  TempFolder folder;
  write_corpus(folder);
  // Without learning, the loss depends only on the samples.
  Outcome run = bevatron(folder, tiny_train("--lr 0 --weight-decay 0 --train-iters 4 "
                                            "--rampup-batch-size 2,2,6 --global-batch-size 8 "
                                            "--eval-interval 1 --eval-iters 2"));
  ASSERT_EQ(run.code, 0) << run.err;
  std::vector<std::string> losses;
  for (const std::string& line : split(run.err, '\n')) {
    std::size_t at = line.find("lm loss value:");
    if (at != line.npos) losses.push_back(line.substr(at));
  }
  ASSERT_EQ(losses.size(), 4u) << run.err;
  for (const std::string& loss : losses) EXPECT_EQ(loss, losses[0]);
}

TEST(Program, TrainLearnsReportsAndExports) {
  TempFolder folder;
  write_corpus(folder);
  Outcome run =
      bevatron(folder, tiny_train("--lr 3e-3 --train-iters 60 --eval-interval 30 --eval-iters 2 "
                                  "--metrics-out m.jsonl --tensorboard-dir tb --export-hf out"));
  ASSERT_EQ(run.code, 0) << run.err;
  std::vector<json> metrics = json_lines(folder.path("m.jsonl"));
  std::erase_if(metrics, [](const json& row) { return row.contains("split"); });
  ASSERT_EQ(metrics.size(), 60u);
  EXPECT_NEAR(metrics.front()["loss"].get<double>(), std::log(256.0), 0.3);
  EXPECT_LT(metrics.back()["loss"].get<double>(), 3.2);
  EXPECT_GT(metrics.back()["tokens_per_second"].get<double>(), 0);
  EXPECT_NE(run.err.find(" iteration       10/      60 | consumed samples:           20 |"),
            std::string::npos)
      << run.err;
  EXPECT_NE(run.err.find("validation loss at iteration 30"), std::string::npos);
  EXPECT_NE(read_file(folder.path("loss.svg")).find("<svg"), std::string::npos);
  EXPECT_EQ(list_directory(folder.path("tb")).size(), 1u);

  Outcome text = bevatron(folder, "generate --hf-model out --prompt 'line 3' --max-new-tokens 8");
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_GE(text.out.size(), 8u);

  // Training continues from the exported folder: the first loss is near the last one.
  run = bevatron(folder,
                 "train --hf-model out --text corpus.txt --split 90,10,0 --seq-length 32 "
                 "--micro-batch-size 2 --train-iters 2 --lr 1e-4 --metrics-out n.jsonl");
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_LT(json_lines(folder.path("n.jsonl"))[0]["loss"].get<double>(), 3.4);
}

// Wide enough that the threads share the work.
TEST(Program, SameSeedSameBitsWhateverTheThreads) {
  TempFolder folder;
  write_corpus(folder);
  for (const char* precision : {"", "--bf16"}) {
    std::vector<std::string> weights;
    for (const char* threads : {"1", "2", "3"}) {
      Outcome run = bevatron(
          folder,
          concat("train --num-layers 1 --hidden-size 512 --num-attention-heads 8 --seq-length 64 "
                 "--micro-batch-size 2 --text corpus.txt --train-iters 3 --hidden-dropout 0.1 "
                 "--attention-dropout 0.1 --export-hf t --num-threads ",
                 threads, " ", precision));
      ASSERT_EQ(run.code, 0) << run.err;
      weights.push_back(read_file(folder.path("t/model.safetensors")));
    }
    EXPECT_TRUE(weights[0] == weights[1]) << precision;
    EXPECT_TRUE(weights[0] == weights[2]) << precision;
  }
}

TEST(Program, ReplayFollowsTorchsLosses) {
  TempFolder folder;
  json expected = json::parse(read_file(golden("mistral_full/expected.json")))["adamw"];
  Outcome run = bevatron(
      folder, concat("train --hf-model ", golden("mistral_full"), " --token-batches ",
                     golden("mistral_full/token_batches.json"), " --lr-decay-style constant --lr ",
                     expected["lr"].get<double>(), " --adam-beta2 ",
                     expected["beta2"].get<double>(), " --adam-eps ", expected["eps"].get<double>(),
                     " --weight-decay ", expected["weight_decay"].get<double>(), " --clip-grad ",
                     expected["clip_grad"].get<double>(), " --metrics-out m.jsonl"));
  ASSERT_EQ(run.code, 0) << run.err;
  std::vector<json> metrics = json_lines(folder.path("m.jsonl"));
  ASSERT_EQ(metrics.size(), 10u);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_NEAR(metrics[i]["loss"].get<double>(), expected["losses"][i].get<double>(), 2e-4);
    EXPECT_NEAR(metrics[i]["grad_norm"].get<double>() / expected["grad_norms"][i].get<double>(), 1,
                5e-4);
  }
}

TEST(Program, LogsParameterNormAndZerosAlikeUnderAnyLayout) {
  TempFolder folder;
  std::vector<std::vector<json>> found;
  for (const char* layout :
       {"", " --tp 2 --pp 2 --dp 2 --data-parallel-sharding-strategy optim_grads_params"}) {
    Outcome run = bevatron(
        folder, concat("train --mock-data --num-layers 2 --hidden-size 32 --num-attention-heads 4 "
                       "--vocab-size 501 --untie-embeddings-and-output-weights --seq-length 16 "
                       "--global-batch-size 4 --train-iters 2 --log-interval 1 --log-params-norm "
                       "--log-num-zeros-in-grad --metrics-out m.jsonl",
                       layout));
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_NE((run.out + run.err).find(" num zeros: "), std::string::npos);
    EXPECT_NE((run.out + run.err).find(" params norm: "), std::string::npos);
    found.push_back(json_lines(folder.path("m.jsonl")));
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const json &one = found[0].at(i), &eight = found[1].at(i);
    EXPECT_GT(one.at("num_zeros"), 0);
    EXPECT_EQ(one.at("num_zeros"), eight.at("num_zeros"));
    EXPECT_NEAR(one.at("params_norm").get<double>(), eight.at("params_norm").get<double>(), 1e-3);
  }
}

TEST(Program, ReplayedBatchesMayHaveAnySizeUnderAnyLayout) {
  TempFolder folder;
  json batches = json::array();
  std::int64_t next = 1;
  for (std::int64_t rows : {3, 3, 5, 1}) {
    json batch = json::array();
    for (std::int64_t row = 0; row < rows; ++row, ++next) {
      batch.push_back({next % 60, next % 7, next % 13 + 1, next % 5});
    }
    batches.push_back(batch);
  }
  write_file(folder.path("b.json"), json::object({{"batches", batches}}).dump());
  std::string flags = "--token-batches b.json --lr 1 --lr-warmup-iters 1 --micro-batch-size 1 ";
  std::vector<std::vector<json>> metrics;
  for (const char* layout : {"--dp 1", "--dp 2"}) {
    Outcome run =
        bevatron(folder, concat("train --num-layers 1 --hidden-size 8 --num-attention-heads 1 "
                                "--vocab-size 64 --metrics-out m.jsonl --fp64 --optimizer sgd ",
                                flags, layout));
    ASSERT_EQ(run.code, 0) << run.err;
    metrics.push_back(json_lines(folder.path("m.jsonl")));
    ASSERT_EQ(metrics.back().size(), 4u);
  }
  // Warmup over the 3 samples of the first batch, then decay over the other 9.
  const double lr[] = {0, 1, 1 - 3.0 / 9, 1 - 8.0 / 9};
  std::vector<std::string> lines = split(bevatron(folder, "schedule " + flags).out, '\n');
  ASSERT_GE(lines.size(), 5u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(metrics[0][i]["lr"].get<double>(), lr[i], 1e-12);
    EXPECT_EQ(metrics[1][i]["lr"], metrics[0][i]["lr"]);
    EXPECT_NEAR(std::stod(split(lines[i + 1], ',')[2]), lr[i], 1e-12);
    EXPECT_NEAR(metrics[1][i]["loss"].get<double>(), metrics[0][i]["loss"].get<double>(), 1e-10);
    EXPECT_EQ(metrics[1][i]["batch_size"], batches[i].size());
  }
}

TEST(Program, Fp16SkipsOverflowsAndGoesOn) {
  TempFolder folder;
  write_corpus(folder);
  Outcome run =
      bevatron(folder, tiny_train("--lr 3e-3 --train-iters 40 --fp16 --metrics-out m.jsonl"));
  ASSERT_EQ(run.code, 0) << run.err;
  std::vector<json> metrics = json_lines(folder.path("m.jsonl"));
  EXPECT_EQ(metrics[0]["loss_scale"], 4294967296.0);
  EXPECT_TRUE(metrics[0]["skipped"].get<bool>());
  EXPECT_FALSE(metrics.back()["skipped"].get<bool>());
  EXPECT_LT(metrics.back()["loss"].get<double>(), metrics.front()["loss"].get<double>());
}

TEST(Program, ABadStepNamesTheLayerAndThePolicyDecides) {
  TempFolder folder;
  write_corpus(folder);
  Outcome run = bevatron(folder, tiny_train("--train-iters 30 --lr 1e30 --clip-grad 0"));
  EXPECT_EQ(run.code, 1);
  EXPECT_NE(run.err.find("op "), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("NaN or Inf"), std::string::npos) << run.err;
  run = bevatron(folder, tiny_train("--train-iters 5 --lr 1e30 --clip-grad 0 --nan-policy skip"));
  EXPECT_EQ(run.code, 0) << run.err;
}

TEST(Program, SignalsStopAfterTheStepAndExport) {
  TempFolder folder;
  write_corpus(folder);
  for (auto [name, code] : {std::pair{"TERM", 143}, std::pair{"INT", 130}}) {
    Outcome run = bevatron(folder, tiny_train("--train-iters 100000000 --export-hf stopped"),
                           concat("timeout -s ", name, " --preserve-status 2"));
    EXPECT_EQ(run.code, code) << run.err;
    EXPECT_TRUE(path_exists(folder.path("stopped/model.safetensors")));
    EXPECT_NE(run.out.find("stopped by signal"), std::string::npos);
  }
}

TEST(Program, DryRunSaysWhatARunNeedsAndStartsNothing) {
  TempFolder folder;
  Outcome run = bevatron(folder,
                         "train --preset llama3-8b --tp 4 --pp 2 --dp 2 --bf16 --train-iters 10 "
                         "--mock-data --dry-run --json");
  ASSERT_EQ(run.code, 0) << run.err;
  json plan = json::parse(run.out);
  EXPECT_EQ(plan["parameters"], 8030261248);
  EXPECT_EQ(plan["ranks"].size(), 16u);
  EXPECT_EQ(plan["layers"].size(), 32u);
  EXPECT_EQ(plan["stages"][1]["first_layer"], 16);
  EXPECT_EQ(bevatron(folder, "train --preset gpt2-124m --train-iters 1 --mock-data --dry-run").code,
            0);
}

TEST(Program, VerifyComparesLayoutsWithOneRank) {
  TempFolder folder;
  Outcome run = bevatron(folder, "verify --preset llama3-8b --layouts 'tp2sp,pp2 dp2zero3'");
  EXPECT_EQ(run.code, 0) << run.err << run.out;
  EXPECT_NE(run.out.find("tp2sp,pp2"), std::string::npos);
  EXPECT_NE(run.out.find("2 of 2 layouts give one rank's answer"), std::string::npos) << run.out;
  EXPECT_EQ(
      bevatron(folder, "verify --preset gemma2-2b --all 4 --steps 2 --hidden-dropout 0.1").code, 0);
  // A tolerance that rounding cannot meet is a mismatch.
  run = bevatron(folder, "verify --preset gpt2-124m --layouts tp2 --tolerance 1e-30");
  EXPECT_EQ(run.code, 3) << run.out;
  EXPECT_NE(run.out.find("DIFFERS"), std::string::npos);
  // The same as JSON.
  run = bevatron(folder, "verify --preset llama3-8b --layouts 'tp2sp,pp2 dp2zero3' --json");
  EXPECT_EQ(run.code, 0) << run.err;
  json result = json::parse(run.out);
  EXPECT_EQ(result["ok"], true);
  ASSERT_EQ(result["layouts"].size(), 2u);
  EXPECT_EQ(result["layouts"][0]["layout"], "tp2sp,pp2");
  for (const json& row : result["layouts"]) {
    EXPECT_EQ(row["ok"], true);
    for (const char* key : {"loss_diff", "grad_diff", "weight_diff"}) {
      EXPECT_GE(row[key], 0);
      EXPECT_LT(row[key], 1e-9);
    }
  }
  run = bevatron(folder, "verify --preset gpt2-124m --layouts 'tp2 dp2' --tolerance 1e-30 --json");
  EXPECT_EQ(run.code, 3) << run.out;
  result = json::parse(run.out);
  EXPECT_EQ(result["ok"], false);
  EXPECT_EQ(result["layouts"][0]["ok"], false);
  EXPECT_GT(result["layouts"][0]["grad_diff"], 1e-30);
  // Windows by frequency, an odd number of scaled RoPE dims, uneven parts of the batch.
  run = bevatron(folder,
                 "verify --family llama --num-layers 6 --hidden-size 40 --num-attention-heads 4 "
                 "--kv-channels 10 --vocab-size 64 --position-embedding-type rope "
                 "--rotary-percent 0.4 --max-position-embeddings 64 --window-size 4 "
                 "--window-attn-skip-freq 6 --layouts 'dp3 pp2'");
  EXPECT_EQ(run.code, 0) << run.err << run.out;
  // Layouts that the model does not support.
  run = bevatron(folder,
                 "verify --num-layers 2 --hidden-size 32 --num-attention-heads 8 "
                 "--num-query-groups 2 --vocab-size 64 --layouts 'tp3 tp2 pp3'");
  EXPECT_EQ(run.code, 2) << run.out;
  EXPECT_NE(run.err.find("--layouts: tp3: --tensor-model-parallel-size: 3 does not divide "
                         "--num-attention-heads 8"),
            std::string::npos)
      << run.err;
  EXPECT_NE(run.err.find("pp3: --pipeline-model-parallel-size: 3 stages for --num-layers 2"),
            std::string::npos)
      << run.err;
  EXPECT_EQ(run.err.find("tp2:"), std::string::npos) << run.err;
  // Documents of one token, whose queries and keys have gradients of rounding errors only.
  for (const char* length : {"1", "2"}) {
    run = bevatron(folder,
                   std::string("verify --preset qwen3-0.6b --full-size --num-layers 2 "
                               "--hidden-size 32 --ffn-hidden-size 64 --num-attention-heads 4 "
                               "--num-query-groups 2 --kv-channels 8 --vocab-size 64 "
                               "--layouts 'tp2 tp4sp cp2' --seq-length ") +
                       length);
    EXPECT_EQ(run.code, 0) << run.out << run.err;
  }
  // FP8, which a model in f64 does not support.
  const std::string sizes =
      "verify --full-size --num-layers 1 --hidden-size 32 --num-attention-heads 2 --vocab-size 64 "
      "--seq-length 16 --layouts dp2 --steps 1 ";
  for (const char* more : {"--fp8-format hybrid", "--fp4-format e2m1", "--exp-avg-dtype fp8"}) {
    run = bevatron(folder, sizes + more);
    EXPECT_EQ(run.code, 0) << run.out << run.err;
    run = bevatron(folder, sizes + more + " --f64");
    EXPECT_EQ(run.code, 2) << run.out;
    EXPECT_NE(run.err.find("--f64: a model in f64 does not have"), std::string::npos) << run.err;
  }
  run = bevatron(folder, "verify --preset llama3-8b --fp8-format hybrid --layouts dp2");
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("add --full-size"), std::string::npos) << run.err;
  run = bevatron(folder, "verify --preset gpt2-124m --layouts tq2");
  EXPECT_EQ(run.code, 2);
  EXPECT_NE(run.err.find("tq2"), std::string::npos);
}

struct BadCase {
  std::string words;
  int code;
  std::vector<std::string> says;
};

TEST(Program, BadInputIsRefusedWithItsCause) {
  TempFolder folder;
  write_corpus(folder);
  write_file(folder.path("empty.txt"), "");
  make_directories(folder.path("broken"));
  make_directories(folder.path("cut"));
  make_directories(folder.path("foreign"));
  write_file(folder.path("broken/config.json"), "{\"model_type\": \"llama\", ");
  write_file(folder.path("foreign/config.json"), "{\"model_type\": \"lama\"}");
  write_file(folder.path("cut/config.json"), read_file(golden("llama_gqa/config.json")));
  std::string weights = read_file(golden("llama_gqa/model.safetensors"));
  write_file(folder.path("cut/model.safetensors"), weights.substr(0, weights.size() / 2));
  write_file(folder.path("bad.json"), "{\"input_ids\": [[1, 2, 99999]]}");
  std::string good = golden("llama_gqa");
  std::vector<BadCase> cases = {
      {"score --hf-model nowhere --tokens bad.json", 2, {"nowhere"}},
      {"score --hf-model broken --tokens bad.json", 2, {"config.json"}},
      {"score --hf-model foreign --tokens bad.json", 2, {"lama", "llama"}},
      {"score --hf-model cut --tokens " + good + "/tokens.json", 2, {"model.safetensors"}},
      {"score --hf-model " + good + " --tokens bad.json", 2, {"bad.json", "99999"}},
      {"score --hf-model " + good + " --tokens none.json", 2, {"none.json"}},
      {"generate --hf-model " + good + " --prompt hello", 2, {"tokenizer"}},
      {"train --mock-data --train-iters 1 --preset gpt2-125m", 2, {"gpt2-124m"}},
      {"train --preset llama3-8b --mock-data --train-iters 1 --tp 3 --dp 0 --bf16 --fp16",
       2,
       {"--tensor-model-parallel-size", "--bf16"}},
      {tiny_train("--train-iters 1 --text empty.txt"), 2, {"--text"}},
      {"convert --hf-model " + good + " --export-hf /proc/nothing", 1, {"/proc"}},
      {"train --config none.yaml", 2, {"none.yaml"}},
      {"train --preset gpt2-124m --hf-model " + good + " --tp 5 --mock-data --train-iters 1",
       2,
       {"--preset: gpt2-124m and --hf-model", "both give the model; keep one",
        "--tensor-model-parallel-size: 5"}},
      {"schedule --preset gpt2-124m --hf-model " + good + " --train-iters 1",
       2,
       {"both give the model; keep one"}},
      {"train --preset gpt2-125m --mock-data --train-iter 1", 2, {"gpt2-124m", "--train-iters"}},
      {"train --preset gpt2-124m --token-batches none.json --eval-iters 1 --global-batch-size 2",
       2,
       {"--eval-iters: a replay has no validation data", "--global-batch-size: a replay"}},
      {"train --preset gpt2-124m --token-batches none.json", 2, {"none.json"}},
      {tiny_train("--train-iters 1 --device cuda"), 2, {"--device"}},
  };
  for (const BadCase& bad : cases) {
    Outcome run = bevatron(folder, bad.words);
    EXPECT_EQ(run.code, bad.code) << bad.words << "\n" << run.err;
    for (const std::string& part : bad.says) {
      EXPECT_NE(run.err.find(part), std::string::npos) << bad.words << "\nsays: " << run.err;
    }
    EXPECT_EQ(run.err.find("bug in bevatron"), std::string::npos) << run.err;
  }
}

TEST(Program, ADiskThatFillsUpLeavesNothingHalfWritten) {
  TempFolder folder;
  Outcome run =
      bevatron(folder, concat("convert --hf-model ", golden("llama_gqa"), " --export-hf out"),
               "ulimit -f 8; trap '' XFSZ;");
  EXPECT_EQ(run.code, 1) << run.err;
  EXPECT_FALSE(path_exists(folder.path("out")));
  EXPECT_EQ(list_directory(folder.path()), std::vector<std::string>{"stderr.txt"});
}

}  // namespace
}  // namespace bev
