#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "app/commands/commands.h"
#include "base/file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/byte_tokenizer.h"

namespace bev {
namespace {

const std::string kModel = BEV_SOURCE_DIR "/tests/golden/models/gpt2";

struct Outcome {
  std::string out, log;
};

// Runs `generate` with these flags and returns its output.
Outcome generate(const std::vector<std::string>& args) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  try {
    EXPECT_EQ(run_command(find_command("generate"), args), kExitOk);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    testing::internal::GetCapturedStderr();
    throw;
  }
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.log = testing::internal::GetCapturedStderr();
  return outcome;
}

nlohmann::json generate_json(std::vector<std::string> args) {
  args.push_back("--json");
  std::string out = generate(args).out;
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
  return nlohmann::json::parse(out);
}

// Copies the fixture, with the byte tokenizer and the given end tokens.
void copy_model(const TempFolder& folder, const std::string& generation_config) {
  for (const char* name : {"config.json", "model.safetensors"}) {
    folder.write(name, read_file(join_path(kModel, name)));
  }
  folder.write("tokenizer.json", byte_tokenizer_json());
  folder.write("generation_config.json", generation_config);
}

TEST(GenerateCommand, JsonHoldsIdsAndLogprobsAndNullTextWithoutATokenizer) {
  TempFolder folder;
  std::string prompts = folder.write("p.json", R"({"input_ids": [[5, 6, 7], [8], [9, 10]]})");
  std::vector<std::string> args = {"--hf-model",       kModel, "--prompt-tokens", prompts,
                                   "--max-new-tokens", "4",    "--ignore-eos"};
  nlohmann::json line = generate_json(args);
  ASSERT_EQ(line.size(), 3u);
  EXPECT_TRUE(line["text"].is_null());
  ASSERT_EQ(line["generated"].size(), 3u);
  ASSERT_EQ(line["logprobs"].size(), 3u);
  std::string ids;
  for (std::size_t s = 0; s < 3; ++s) {
    ASSERT_EQ(line["generated"][s].size(), 4u);
    ASSERT_EQ(line["logprobs"][s].size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
      ids += (i == 0 ? "" : " ") + line["generated"][s][i].dump();
      EXPECT_LT(line["logprobs"][s][i].get<double>(), 0);
    }
    ids += "\n";
  }
  Outcome live = generate(args);
  EXPECT_EQ(live.out, ids);
  EXPECT_NE(live.log.find("generated 12 tokens"), std::string::npos) << live.log;
  EXPECT_NE(live.log.find("tokens/s"), std::string::npos) << live.log;
}

// Generation has no context parallelism; its ranks, which ep includes, become data-parallel
// replicas.
TEST(GenerateCommand, RanksOfContextParallelLayoutsGenerateToo) {
  TempFolder folder;
  std::string prompts = folder.write("p.json", R"({"input_ids": [[5, 6, 7], [8], [9, 10]]})");
  std::vector<std::string> args = {
      "--hf-model",       BEV_SOURCE_DIR "/tests/golden/models/qwen2_moe",
      "--prompt-tokens",  prompts,
      "--max-new-tokens", "4",
      "--ignore-eos"};
  nlohmann::json alone = generate_json(args);
  args.insert(args.end(), {"--cp", "2", "--ep", "2"});
  EXPECT_EQ(generate_json(args)["generated"], alone["generated"]);
}

TEST(GenerateCommand, TextGoesInAndOutThroughTheTokenizer) {
  TempFolder folder;
  copy_model(folder, "{}");
  std::vector<std::string> args = {"--hf-model",       folder.path(), "--prompt",    "A!",
                                   "--max-new-tokens", "9",           "--seed",      "3",
                                   "--temperature",    "1.5",         "--ignore-eos"};
  nlohmann::json line = generate_json(args);
  ASSERT_EQ(line["text"].size(), 1u);
  EXPECT_FALSE(line["text"][0].get<std::string>().empty());
  EXPECT_EQ(generate(args).out, line["text"][0].get<std::string>() + "\n");
  EXPECT_EQ(generate_json(args), line);
}

TEST(GenerateCommand, EndTokensComeFromTheModelFolder) {
  TempFolder folder;
  copy_model(folder, "{}");
  std::vector<std::string> args = {"--hf-model", folder.path(),      "--prompt",
                                   "A!",         "--max-new-tokens", "4"};
  std::vector<std::string> all = args;
  all.push_back("--ignore-eos");
  nlohmann::json free = generate_json(all);
  std::string first = free["generated"][0][0].dump();
  folder.write("generation_config.json", "{\"eos_token_id\": [" + first + "]}");
  nlohmann::json ended = generate_json(args);
  EXPECT_EQ(ended["generated"].dump(), "[[" + first + "]]");
  EXPECT_EQ(ended["text"].dump(), "[\"\"]");
  EXPECT_EQ(generate(args).out, "\n");
  EXPECT_EQ(generate_json(all), free);
}

TEST(GenerateCommand, NoNewTokensGiveEmptyLists) {
  TempFolder folder;
  copy_model(folder, "{}");
  nlohmann::json line =
      generate_json({"--hf-model", folder.path(), "--prompt", "A!", "--max-new-tokens", "0"});
  EXPECT_EQ(line.dump(), R"({"generated":[[]],"logprobs":[[]],"text":[""]})");
}

TEST(GenerateCommand, MistakesAreErrorsOfTheirKind) {
  TempFolder folder;
  expect_error(ErrorKind::kInput, {"--prompt", "tokenizer.json", "--prompt-tokens"}, [&] {
    generate({"--hf-model", kModel, "--prompt", "hello"});
  });
  std::string prompts = folder.write("p.json", R"({"input_ids": [[1, 100000]]})");
  expect_error(ErrorKind::kInput, {"p.json", "100000"}, [&] {
    generate({"--hf-model", kModel, "--prompt-tokens", prompts});
  });
  prompts = folder.write("p.json", R"({"input_ids": [[1, 2]]})");
  expect_error(ErrorKind::kConfig, {"--max-new-tokens", "at most 46"}, [&] {
    generate({"--hf-model", kModel, "--prompt-tokens", prompts, "--max-new-tokens", "47"});
  });
  expect_error(ErrorKind::kConfig, {"--hf-model", "--prompt"}, [&] { generate({}); });
}

}  // namespace
}  // namespace bev
