// Launch scripts of Megatron-LM run as they are, and flags that are Megatron's do what they do
// there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "data/indexed/indexed_writer.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/tokenizer.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// Megatron's example scripts: their flags as they are, with paths of this test.
struct Script {
  std::string flags;
  std::string ranks;
};

constexpr int kWords = 256;

// Token files and a vocabulary of kWords tokens and the end of a document.
void write_data(const TempFolder& folder) {
  json vocabulary;
  for (int i = 0; i < kWords; ++i) vocabulary[concat("word", i)] = i;
  vocabulary["<|endoftext|>"] = kWords;
  folder.write("gpt2-vocab.json", vocabulary.dump());
  folder.write("gpt2-merges.txt", "#version: 0.2\n");
  IndexedDatasetWriter writer(folder.path("data"), TokenType::kU16);
  for (int document = 0; document < 2000; ++document) {
    std::vector<std::int32_t> tokens(16);
    for (int i = 0; i < 16; ++i) tokens[static_cast<std::size_t>(i)] = (document + i * i) % kWords;
    writer.add_sequence(tokens);
    writer.end_document();
  }
  writer.commit();
}

Script read_script(const std::string& name, const TempFolder& folder) {
  std::string text =
      read_file(concat(BEV_SOURCE_DIR, "/tests/golden/megatron_args/", name, ".txt"));
  constexpr std::string_view kRanks = "# ranks ";
  EXPECT_TRUE(text.starts_with(kRanks));
  std::size_t end = text.find('\n');
  Script script{text.substr(end + 1), text.substr(kRanks.size(), end - kRanks.size())};
  write_data(folder);
  const std::pair<std::string, std::string> paths[] = {{" RUN", folder.path("run")},
                                                       {" BOARD", folder.path("board")},
                                                       {" CACHE", folder.path("cache")},
                                                       {" DATA", folder.path("data")},
                                                       {" TOKENIZER", "byte"},
                                                       {" VOCAB", folder.path("gpt2-vocab.json")},
                                                       {" MERGES", folder.path("gpt2-merges.txt")}};
  for (const auto& [from, to] : paths) {
    for (const char* after : {" ", "\n"}) {
      std::size_t at = script.flags.find(from + after);
      if (at != std::string::npos) script.flags.replace(at, from.size(), " " + to);
      at = script.flags.find(from + after);  // --load and --save
      if (at != std::string::npos) script.flags.replace(at, from.size(), " " + to);
    }
  }
  return script;
}

// Words of a shell; double quotes keep blanks.
std::vector<std::string> shell_words(const std::string& text) {
  std::vector<std::string> words(1);
  bool quoted = false;
  for (char c : text) {
    if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == ' ' || c == '\n')) {
      if (!words.back().empty()) words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

json run_script(const Script& script, const std::string& more) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  std::string problem;
  try {
    run_command(find_command("train"), shell_words(concat(script.flags, " ", more)));
  } catch (const Error& error) {
    problem = error.what();
  }
  testing::internal::GetCapturedStderr();
  std::string out = testing::internal::GetCapturedStdout();
  EXPECT_EQ(problem, "");
  return json::parse(out, nullptr, false);
}

struct ScriptRow {
  const char* name;
  std::int64_t parameters, layers, tokens_of_a_step;
  const char* tiny;  // what makes it small
};

class MegatronScript : public testing::TestWithParam<ScriptRow> {};

TEST_P(MegatronScript, PlansWhatMegatronWouldRun) {
  TempFolder folder;
  const ScriptRow& row = GetParam();
  Script script = read_script(row.name, folder);
  json plan =
      run_script(script, concat("--ranks ", script.ranks, " --device cpu --dry-run --json"));
  ASSERT_TRUE(plan.is_object());
  EXPECT_EQ(plan["parameters"], row.parameters);
  EXPECT_EQ(plan["layers"].size(), row.layers);
  EXPECT_EQ(plan["batch"]["last_global_batch_size"].get<std::int64_t>() *
                plan["config"]["seq-length"].get<std::int64_t>(),
            row.tokens_of_a_step);
}

constexpr const char* kTinyLayout =
    " --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --expert-model-parallel-size "
    "1 --ranks 1 --device cpu --hidden-size 32 --num-attention-heads 4 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 2  "
    "--num-threads 1 --loss-svg= --progress=false";

TEST_P(MegatronScript, TrainsWhenMadeSmall) {
  TempFolder folder;
  Script script = read_script(GetParam().name, folder);
  std::string metrics = folder.path("metrics.jsonl"), tiny = concat(GetParam().tiny, kTinyLayout);
  json plan = run_script(script, concat(tiny, " --dry-run --json"));
  ASSERT_TRUE(plan.is_object());
  run_script(script, concat(tiny, " --metrics-out ", metrics));
  std::vector<std::string> rows = split(read_file(metrics), '\n');
  ASSERT_GE(rows.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    json row = json::parse(rows[static_cast<std::size_t>(i)]);
    EXPECT_EQ(row["iteration"], i + 1);
    EXPECT_FALSE(row["skipped"]);
    EXPECT_NEAR(row["loss"].get<double>(), std::log(plan["config"]["vocab-size"].get<double>()),
                0.3);
  }
}

constexpr ScriptRow kScripts[] = {
    {"gpt3_175b", 173989859328, 96, 1536 * 2048,
     "--train-iters 2 --num-layers 4 --initial-loss-scale 1024 --step-batch-size-schedule 0:2"},
    {"gpt3_345m", 303623168, 24, 32 * 1024,
     "--train-iters 2 --num-layers 4 --initial-loss-scale 1024"},
    {"llama3_8b_fp8", 8030261248, 32, 128 * 8192,
     "--train-samples 4 --num-layers 4 --num-query-groups 2 --kv-channels 16 --ffn-hidden-size 64 "
     "--vocab-size 512 "
     "--profile-step-start 0 --profile-step-end 1"},
    {"mixtral_8x7b", 46442745856, 32, 256 * 4096,
     "--train-iters 2 --num-layers 4 --num-query-groups 2 --ffn-hidden-size 64 --split 8,1,1"},
    {"deepseek_v3", 680786799360, 61, 512 * 4096,
     "--train-samples 4 --num-layers 4 --moe-layer-freq [0]*1+[1]*3 --num-experts 8 "
     "--moe-router-topk 2 --moe-router-num-groups 2 --moe-router-group-topk 1 "
     "--moe-ffn-hidden-size 16 --moe-shared-expert-intermediate-size 16 --ffn-hidden-size 64 "
     "--q-lora-rank 16 --kv-lora-rank 16 --qk-head-dim 16 --qk-pos-emb-head-dim 8 --v-head-dim 16 "
     "--kv-channels 16 --profile-step-start 0 --profile-step-end 1"},
};

INSTANTIATE_TEST_SUITE_P(Examples, MegatronScript, testing::ValuesIn(kScripts),
                         [](const auto& row) { return std::string(row.param.name); });

constexpr std::string_view kTiny =
    "--num-layers 1 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --micro-batch-size 1 "
    "--device cpu --num-threads 1 --loss-svg= --progress=false ";

TEST(MegatronValues, ValidationsBeginWhereTheyAreTold) {
  TempFolder folder;
  std::string metrics = folder.path("m.jsonl");
  run_script({std::string(kTiny), "1"},
             concat("--vocab-size 64 --mock-data --train-iters 5 --eval-interval 1 --eval-iters 1 "
                    "--start-eval-at-iter 3 --metrics-out ",
                    metrics));
  std::vector<int> validated;
  for (const std::string& line : split(read_file(metrics), '\n')) {
    if (line.empty()) continue;
    json row = json::parse(line);
    if (row.value("split", "") == "valid") validated.push_back(row["iteration"]);
  }
  EXPECT_THAT(validated, ElementsAre(3, 4, 5));
}

TEST(MegatronValues, ProgressHasALineForEveryCheckpoint) {
  TempFolder folder;
  std::string words = concat(
      "--vocab-size 64 --mock-data --global-batch-size 4 --save-interval 2 "
      "--log-progress --no-async-save --save ",
      folder.path("run"), " --load ", folder.path("run"), " --train-iters ");
  run_script({std::string(kTiny), "1"}, words + "4");
  run_script({std::string(kTiny), "1"}, words + "6");
  std::vector<std::string> events, iterations;
  double flops = 0;
  for (const std::string& line : split(read_file(folder.path("run/progress.txt")), '\n')) {
    if (line.empty()) continue;
    std::vector<std::string> cells = split(line, '\t');
    ASSERT_GE(cells.size(), 4u) << line;
    EXPECT_EQ(cells[2], "# GPUs: 1");
    events.push_back(cells[3]);
    if (cells.size() < 9) continue;
    iterations.push_back(cells[4]);
    double now = std::stod(cells[7].substr(cells[7].find(": ") + 2));
    EXPECT_GT(now, flops) << line;
    flops = now;
    EXPECT_EQ(cells[8], "Tokens (in billions): 0.00");
  }
  EXPECT_THAT(events, ElementsAre("Starting job", "Saved checkpoint", "Saved checkpoint",
                                  "Starting job", "Saved checkpoint"));
  EXPECT_THAT(iterations, ElementsAre("Iteration: 2", "Iteration: 4", "Iteration: 6"));
  // 6 steps of 4 samples, as the plan counts them, to three digits.
  json plan = run_script({std::string(kTiny), "1"},
                         "--vocab-size 64 --global-batch-size 4 --train-iters 6 --dry-run --json");
  EXPECT_NEAR(flops / (6 * plan["megatron_flops_per_iteration"].get<double>()), 1, 0.02);
}

TEST(MegatronValues, FilesOfGpt2AreATokenizer) {
  TempFolder folder;
  std::string vocab =
      folder.write("my-vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})");
  std::string merges = folder.write("my-merges.txt", "#version: 0.2\na b\n");
  json plan = run_script(
      {std::string(kTiny), "1"},
      concat("--train-iters 1 --dry-run --json --vocab-file ", vocab, " --merge-file ", merges));
  EXPECT_EQ(plan["config"]["vocab-size"], 4);
  EXPECT_EQ(plan["config"]["eod-id"], 3);
  run_script({std::string(kTiny), "1"},
             concat("--train-iters 1 --mock-data --vocab-file ", vocab, " --merge-file ", merges,
                    " --export-hf ", folder.path("out")));
  std::unique_ptr<Tokenizer> exported = open_tokenizer(folder.path("out"));
  EXPECT_THAT(exported->encode("abba"), ElementsAre(2, 1, 0));
  EXPECT_THAT(open_tokenizer(concat(vocab, "+", merges))->encode("aab"), ElementsAre(0, 2));
}

TEST(MegatronValues, ListsAndQuotesAreThoseOfPythonAndShells) {
  auto config = [](const std::string& words) {
    return run_script({std::string(kTiny), "1"},
                      concat("--vocab-size 64 --train-iters 1 --dry-run --json --num-layers 4 ",
                             words))["config"];
  };
  EXPECT_EQ(config("--split '99,1,0'")["split"], "99,1,0");
  EXPECT_EQ(config("--num-experts 2 --moe-layer-freq [0]*1+[1]*3")["moe-layer-freq"],
            json({0, 1, 1, 1}));
  EXPECT_EQ(config("--num-experts 2 --moe-layer-freq 2")["moe-layer-freq"], json({2}));
  EXPECT_EQ(config("--window-size (8,0) --window-attn-skip-freq [1,0]*2")["window-attn-skip-freq"],
            json({1, 0, 1, 0}));
  EXPECT_EQ(config("--global-batch-size 8 --step-batch-size-schedule \"0:2 1K:8\"")
                ["step-batch-size-schedule"],
            "0:2 1K:8");
}

// Megatron's latent attention has yarn's frequencies by itself.
TEST(MegatronValues, FlagsOfYarnChooseItForLatentAttention) {
  auto config = [](const std::string& words) {
    return run_script({std::string(kTiny), "1"},
                      concat("--vocab-size 64 --train-iters 1 --dry-run --json "
                             "--multi-latent-attention --position-embedding-type rope ",
                             words))["config"];
  };
  json yarn = config("--mscale 1.0 --mscale-all-dim 1.0");
  EXPECT_EQ(yarn["rope-scaling-type"], "yarn");
  EXPECT_EQ(yarn["rope-scaling-factor"], 40);
  EXPECT_EQ(yarn["rope-original-max-position-embeddings"], 4096);
  EXPECT_EQ(config("--rotary-scaling-factor 8 --rope-type linear")["rope-scaling-type"], "linear");
  EXPECT_EQ(config("")["rope-scaling-type"], "default");
  json plain = run_script({std::string(kTiny), "1"},
                          "--vocab-size 64 --train-iters 1 --dry-run --json "
                          "--position-embedding-type yarn --rotary-scaling-factor 32")["config"];
  EXPECT_EQ(plain["position-embedding-type"], "rope");
  EXPECT_EQ(plain["rope-scaling-type"], "yarn");
}

}  // namespace
}  // namespace bev
