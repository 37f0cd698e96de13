#include <gtest/gtest.h>

#include <algorithm>
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
  int status = 0;
};

Outcome run(const char* command, const std::vector<std::string>& args) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  try {
    outcome.status = run_command(find_command(command), args);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    testing::internal::GetCapturedStderr();
    throw;
  }
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.log = testing::internal::GetCapturedStderr();
  return outcome;
}

// Runs `generate` with these flags and returns its output.
Outcome generate(const std::vector<std::string>& args) {
  Outcome outcome = run("generate", args);
  EXPECT_EQ(outcome.status, kExitOk);
  return outcome;
}

nlohmann::json run_json(const char* command, const std::vector<std::string>& args) {
  std::string out = run(command, args).out;
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
  return nlohmann::json::parse(out);
}

nlohmann::json generate_json(std::vector<std::string> args) {
  args.push_back("--json");
  return run_json("generate", args);
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
  ASSERT_EQ(line.size(), 4u);
  EXPECT_TRUE(line["text"].is_null());
  ASSERT_EQ(line["sequences"].size(), 3u);
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
  EXPECT_EQ(line["sequences"][0]["finish_reason"], "length");
  line.erase("sequences");
  EXPECT_EQ(line.dump(), R"({"generated":[[]],"logprobs":[[]],"text":[""]})");
}

TEST(GenerateCommand, SequencesAndBeamsOfAPromptAreListed) {
  TempFolder folder;
  std::string prompts = folder.write("p.json", R"({"input_ids": [[5, 6, 7], [8]]})");
  std::vector<std::string> args = {"--hf-model",       kModel, "--prompt-tokens", prompts,
                                   "--max-new-tokens", "5",    "--ignore-eos"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), args.begin(), args.end());
    return generate_json(more);
  };
  nlohmann::json several = with({"--n", "3", "--temperature", "1", "--seed", "4"});
  ASSERT_EQ(several["sequences"].size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    const nlohmann::json& each = several["sequences"][i];
    EXPECT_EQ(each["prompt"], i / 3);
    EXPECT_EQ(each["index"], i % 3);
    EXPECT_EQ(each["finish_reason"], "length");
    double sum = 0;
    for (const auto& logprob : each["logprobs"]) sum += logprob.get<double>();
    EXPECT_NEAR(each["score"].get<double>(), sum, 1e-9);
  }
  EXPECT_EQ(several["generated"][1], several["sequences"][3]["tokens"]);
  // The first of several is the one that comes alone.
  EXPECT_EQ(with({"--temperature", "1", "--seed", "4"})["generated"], several["generated"]);

  nlohmann::json beams = with({"--num-beams", "4", "--num-return-sequences", "2"});
  ASSERT_EQ(beams["sequences"].size(), 4u);
  EXPECT_GE(beams["sequences"][0]["score"].get<double>(),
            beams["sequences"][1]["score"].get<double>());
  EXPECT_EQ(beams["generated"][1], beams["sequences"][2]["tokens"]);
  double sum = 0;
  for (const auto& logprob : beams["sequences"][0]["logprobs"]) sum += logprob.get<double>();
  EXPECT_NEAR(beams["sequences"][0]["score"].get<double>(), sum / 5, 1e-5);
  // The best beam is at least as likely as the greedy sequence.
  nlohmann::json greedy = with({});
  double greedily = 0;
  for (const auto& logprob : greedy["logprobs"][0]) greedily += logprob.get<double>();
  EXPECT_GE(sum, greedily - 1e-5);
}

TEST(GenerateCommand, RulesOfSamplingAreHeeded) {
  TempFolder folder;
  std::string prompts = folder.write("p.json", R"({"input_ids": [[5, 6, 7]]})");
  std::vector<std::string> args = {"--hf-model",       kModel, "--prompt-tokens", prompts,
                                   "--max-new-tokens", "6",    "--ignore-eos"};
  auto tokens_with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), args.begin(), args.end());
    return generate_json(more)["generated"][0].get<std::vector<int>>();
  };
  std::vector<int> plain = tokens_with({});
  std::string bias = folder.write("b.json", R"({"9": 100, "11": -5})");
  EXPECT_EQ(tokens_with({"--logit-bias", bias}), std::vector<int>(6, 9));
  EXPECT_EQ(tokens_with({"--stop-token-ids", std::to_string(plain[0])}).size(), 1u);
  std::vector<int> distinct = tokens_with({"--logit-bias", bias, "--frequency-penalty", "1000"});
  EXPECT_EQ(distinct[0], 9);
  EXPECT_NE(distinct[1], 9);
  EXPECT_EQ(tokens_with({"--forced-eos-token-id", "3"}).back(), 3);
  EXPECT_EQ(tokens_with({"--temperature", "5", "--min-p", "1"}), plain);
  std::vector<int> fresh = tokens_with({"--no-repeat-ngram-size", "1"});
  std::ranges::sort(fresh);
  EXPECT_EQ(std::ranges::adjacent_find(fresh), fresh.end());
  for (const char* wrong : {R"({"x": 1})", R"({"3": "y"})", "[1]"}) {
    std::string file = folder.write("wrong.json", wrong);
    expect_error(ErrorKind::kInput, {"--logit-bias", "wrong.json"}, [&] {
      tokens_with({"--logit-bias", file});
    });
  }
  expect_error(ErrorKind::kConfig, {"--num-return-sequences"}, [&] {
    tokens_with({"--num-return-sequences", "2"});
  });
  expect_error(ErrorKind::kConfig, {"--n", "--num-beams"}, [&] {
    tokens_with({"--num-beams", "2", "--n", "2"});
  });
}

// score --logprobs and generate --prompt-logprobs; under --exact to the bit.
TEST(GenerateCommand, PromptLogprobsAreTheScores) {
  TempFolder folder;
  std::string prompts =
      folder.write("p.json", R"({"input_ids": [[5, 6, 7, 9, 2, 40], [8], [9, 10]]})");
  for (const char* exact : {"--exact", "--no-exact"}) {
    nlohmann::json generated =
        generate_json({"--hf-model", kModel, "--prompt-tokens", prompts, "--max-new-tokens", "2",
                       "--prompt-logprobs", "--max-step-tokens", "4", exact});
    nlohmann::json scored =
        run_json("score", {"--hf-model", kModel, "--tokens", prompts, "--logprobs", exact});
    ASSERT_EQ(scored["logprobs"].size(), 3u);
    for (std::size_t row = 0; row < 3; ++row) {
      const nlohmann::json& a = generated["prompt_logprobs"][row];
      const nlohmann::json& b = scored["logprobs"][row];
      ASSERT_EQ(a.size(), b.size());
      EXPECT_TRUE(a[0].is_null() && b[0].is_null());
      for (std::size_t t = 1; t < a.size(); ++t) {
        bool to_the_bit = std::string(exact) == "--exact";
        EXPECT_NEAR(a[t].get<double>(), b[t].get<double>(), to_the_bit ? 0 : 1e-5);
      }
    }
  }
}

TEST(GenerateCommand, CheckExactReportsDifferences) {
  TempFolder folder;
  std::string prompts =
      folder.write("p.json", R"({"input_ids": [[5, 6, 7, 9, 2, 40], [8], [9, 10], [1, 2, 3]]})");
  Outcome outcome = generate({"--hf-model", kModel, "--prompt-tokens", prompts, "--max-new-tokens",
                              "4", "--ignore-eos", "--check-exact", "--exact"});
  EXPECT_EQ(outcome.status, 0);
  nlohmann::json report = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(report["different_tokens"], 0);
  EXPECT_EQ(report["max_abs_logprob_diff"], 0);
  EXPECT_EQ(report["mean_abs_logprob_diff"], 0);
  EXPECT_EQ(report["tokens"].get<int>() % 16, 0);
  EXPECT_GE(report["batch_sizes"].size(), 4u);
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
