// The documentation is correct: links resolve, quoted commands run, and quoted figures are those
// that the program prints.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <regex>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/byte_tokenizer.h"

namespace bev {
namespace {

const std::vector<std::string> kDocuments = {"README.md",
                                             "docs/architecture.md",
                                             "docs/cluster.md",
                                             "docs/data.md",
                                             "docs/encoders.md",
                                             "docs/optimizers.md",
                                             "docs/parallelism.md",
                                             "docs/gpu.md",
                                             "docs/checkpoints.md",
                                             "docs/checkpoint-format.md",
                                             "docs/megatron-checkpoints.md",
                                             "docs/evaluation.md",
                                             "docs/inference.md",
                                             "docs/posttraining.md",
                                             "docs/serving.md",
                                             "docs/first-ten-minutes.md",
                                             "docs/from-megatron.md",
                                             "docs/from-hugging-face.md",
                                             "docs/from-deepspeed.md",
                                             "bench/README.md"};

std::string source(const std::string& path) { return concat(BEV_SOURCE_DIR, "/", path); }
bool exists(const std::string& path) { return std::filesystem::exists(path); }

// The first group of every match.
std::vector<std::string> all_matches(const std::string& text, const std::string& pattern) {
  std::regex regex(pattern);
  std::vector<std::string> found;
  for (auto at = std::sregex_iterator(text.begin(), text.end(), regex);
       at != std::sregex_iterator(); ++at) {
    found.push_back((*at)[1].str());
  }
  return found;
}

// Arguments after build/bevatron in code lines, with continued lines joined. The text before it (a
// launcher, variables) and shell syntax at the end of the line are removed.
std::vector<std::string> quoted_commands(const std::string& document) {
  std::string text = std::regex_replace(document, std::regex("\\\\\n *"), "");
  std::vector<std::string> commands;
  bool code = false;
  for (std::string line : split(text, '\n')) {
    if (line.starts_with("```")) code = !code;
    constexpr std::string_view kProgram = "build/bevatron ";
    std::size_t at = line.find(kProgram);
    if (!code || at == line.npos) continue;
    bool in_quotes = line.find("bash -c '") != line.npos;
    line = line.substr(at + kProgram.size());
    while (!line.empty() && (line.back() == '&' || line.back() == ' ')) line.pop_back();
    if (in_quotes) line.pop_back();
    commands.push_back(line);
  }
  return commands;
}

// Merges stdout and stderr.
Outcome bevatron(const TempFolder& folder, const std::string& words) {
  return run_shell(folder, concat(BEV_BINARY_DIR, "/bevatron ", words, " 2>&1"));
}

// A variant of a command that can run here: training becomes a dry run, commands that need a model
// print their help.
std::string harmless(const std::string& words) {
  bool reads = words.find("--tokenizer ") != words.npos;
  const bool applies =
      std::ranges::any_of(std::to_array({"generate", "score", "predict", "evaluate", "embed"}),
                          [&](const char* command) { return words.starts_with(command); });
  if (reads || applies) return words + " --help";
  bool planned = words.find("--dry-run") != words.npos;
  return words.starts_with("train") && !planned ? words + " --dry-run" : words;
}

// A folder in which the paths of the documents exist.
void fill(const TempFolder& folder) {
  std::filesystem::create_directories(folder.path("docs/images"));
  std::filesystem::copy(source("configs"), folder.path("configs"));
  std::filesystem::copy(source("tests/golden/optimizers/input.safetensors"),
                        folder.path("grads.safetensors"));
}

TEST(Documents, WhatTheyNameExists) {
  for (const std::string& document : kDocuments) {
    SCOPED_TRACE(document);
    std::string text = read_file(source(document));
    std::string folder = parent_path(source(document));
    for (const std::string& link : all_matches(text, R"(\]\(([^)#]+)\))")) {
      EXPECT_TRUE(exists(concat(folder, "/", link))) << link;
    }
    for (const std::string& path :
         all_matches(text, "`((?:src|tests|docs|bench|tools|configs)/[A-Za-z0-9_./]+)`")) {
      EXPECT_TRUE(exists(source(path))) << path;
    }
  }
}

TEST(Documents, FlagsExist) {
  std::string flags =
      concat(read_file(source("docs/flags.md")), read_file(source("docs/from-megatron.md")));
  for (const char* document : {"README.md", "docs/parallelism.md", "docs/checkpoints.md"}) {
    for (const std::string& flag :
         all_matches(read_file(source(document)), "(--[a-z][a-z0-9]*(?:-[a-z0-9]+)*)")) {
      if (flag == "--config" || flag == "--search") continue;  // of all commands, and of help
      EXPECT_NE(flags.find(concat("`", flag, "`")), flags.npos) << document << ": " << flag;
    }
  }
}

// The commands of the page on inference run as they are, on a tiny model.
TEST(Documents, CommandsOfInferenceRun) {
  TempFolder folder;
  std::filesystem::copy(source("tests/golden/models/gpt2"), folder.path("model"));
  folder.write("model/tokenizer.json", byte_tokenizer_json());
  folder.write("prompts.json", R"({"input_ids": [[5, 6, 7, 8], [9, 10, 11]]})");
  int run_commands = 0;
  for (const std::string& words : quoted_commands(read_file(source("docs/inference.md")))) {
    Outcome run = bevatron(folder, words + " --device cpu");
    EXPECT_EQ(run.code, 0) << words << "\n" << run.out;
    ++run_commands;
  }
  EXPECT_GE(run_commands, 11);
}

// Those on reward models, in order, on a tiny one.
TEST(Documents, CommandsOfRewardModelsRun) {
  TempFolder folder;
  std::filesystem::copy(source("tests/golden/labels/llama"), folder.path("REWARD"));
  folder.write("tokens.json", R"({"input_ids": [[5, 6, 7, 8], [9, 10, 3]]})");
  folder.write(
      "padded.json",
      R"({"input_ids": [[3, 5, 6], [7, 8, 9]], "attention_mask": [[0, 1, 1], [1, 1, 1]]})");
  folder.write("pairs.json",
               R"({"pairs": [{"prompt_ids": [5], "chosen_ids": [6, 7], "rejected_ids": [8]}]})");
  std::string text = read_file(source("docs/posttraining.md"));
  text = text.substr(text.find("\n## Reward model"));
  text = text.substr(0, text.find("\n## ", 1));
  int run_commands = 0;
  for (const std::string& words : quoted_commands(text)) {
    if (words.starts_with("train")) continue;  // PreferenceTraining runs it
    Outcome run = bevatron(folder, words + (words.starts_with("score") ? " --device cpu" : ""));
    EXPECT_EQ(run.code, 0) << words << "\n" << run.out;
    ++run_commands;
  }
  EXPECT_GE(run_commands, 4);
  EXPECT_TRUE(exists(folder.path("copy/model.safetensors")));
}

// Those on LoRA, in order, on a tiny model and with little data; a server prints its help.
TEST(Documents, CommandsOfLoraRun) {
  TempFolder folder;
  folder.write("tokens.json", R"({"input_ids": [[5, 6, 7, 8], [9, 10, 11, 12]]})");
  std::string book;
  for (int i = 0; i < 200; ++i) book += "It was a dark and stormy night. ";
  folder.write("book.txt", book);
  Outcome base =
      bevatron(folder,
               "train --family llama --num-layers 2 --hidden-size 32 "
               "--num-attention-heads 4 --ffn-hidden-size 48 --text book.txt --tokenizer "
               "byte --seq-length 16 --train-iters 1 --export-hf BASE --device cpu");
  ASSERT_EQ(base.code, 0) << base.out;
  std::string text = read_file(source("docs/posttraining.md"));
  text = text.substr(text.find("\n## LoRA"));
  text = text.substr(0, text.find("\n## ", 1));
  int run_commands = 0;
  for (std::string words : quoted_commands(text)) {
    words = std::regex_replace(words, std::regex("--seq-length 512"), "--seq-length 16");
    words = std::regex_replace(words, std::regex("--train-iters 200"), "--train-iters 2");
    if (words.starts_with("serve")) words += " --help";
    if (!words.starts_with("convert")) words += " --device cpu";
    Outcome run = bevatron(folder, words);
    EXPECT_EQ(run.code, 0) << words << "\n" << run.out;
    ++run_commands;
  }
  EXPECT_GE(run_commands, 6);
  EXPECT_TRUE(exists(folder.path("adapter2/adapter_model.safetensors")));
  EXPECT_TRUE(exists(folder.path("merged/model.safetensors")));
}

// Those on reinforcement learning, rewards and distillation, in order, on a tiny model.
TEST(Documents, CommandsOfReinforcementLearningRun) {
  TempFolder folder;
  std::string text, prompts;
  for (int i = 0; i < 200; ++i) text += concat(i % 10, "+", i / 20, "=", i % 10 + i / 20, "\n");
  for (int i = 0; i < 9; ++i)
    prompts += concat("{\"prompt\": \"", i, "+1=\", \"answer\": ", i + 1, "}\n");
  folder.write("sums.txt", text);
  folder.write("sums.jsonl", prompts);
  folder.write("answers.jsonl", R"({"id": 1, "prompt": "1+1=", "completion": "2", "answer": 2})");
  for (const char* model : {"sums", "small"}) {
    Outcome base = bevatron(
        folder, concat("train --family llama --num-layers 2 --hidden-size 32 "
                       "--num-attention-heads 4 --ffn-hidden-size 48 --text sums.txt "
                       "--seq-length 32 --train-iters 3 --lr 1e-2 --device cpu --export-hf ",
                       model));
    ASSERT_EQ(base.code, 0) << base.out;
  }
  std::string page = read_file(source("docs/posttraining.md"));
  page = page.substr(page.find("\n## Reinforcement learning"));
  std::size_t begin = page.find("while read");
  ASSERT_NE(begin, page.npos);
  folder.write("judge.sh", page.substr(begin, page.find("```", begin) - begin));
  int run_commands = 0;
  for (std::string words : quoted_commands(page)) {
    words = std::regex_replace(words, std::regex("--train-iters 100"), "--train-iters 2");
    if (!words.starts_with("reward")) words += " --device cpu";
    Outcome run = bevatron(folder, words);
    EXPECT_EQ(run.code, 0) << words << "\n" << run.out;
    ++run_commands;
  }
  EXPECT_EQ(run_commands, 6);
  EXPECT_TRUE(exists(folder.path("run/rl.html")));
}

// Those of the page on serving: servers on free ports, and the other commands with the first one.
TEST(Documents, CommandsOfServingRun) {
#ifndef BEV_HAS_SERVE
  GTEST_SKIP() << "this build has no server";
#endif
  TempFolder folder;
  std::filesystem::copy(source("tests/golden/models/gpt2"), folder.path("model"));
  folder.write("model/tokenizer.json", byte_tokenizer_json());
  folder.write("model/chat_template.jinja", "{{ messages[0].content }}");
  folder.write("keys.txt", "one\ntwo\n");
  folder.write("control.txt", "three\n");
  std::string script = concat(
      "set -e\nopenssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 1 "
      "-subj "
      "/CN=localhost 2> openssl.log\nstart() { rm -f ready; ",
      BEV_BINARY_DIR,
      "/bevatron \"$@\" --port 0 --device cpu > ready 2>> log & pid=$!; for i in $(seq 600); do "
      "grep -q ready ready && break; sleep 0.05; done; "
      "url=$(sed -n 's/.*\"url\":\"\\([^\"]*\\)\".*/\\1/p' ready); }\n"
      "stop() { kill -TERM $pid; wait $pid; }\n");
  int servers = 0, calls = 0;
  std::string text = std::regex_replace(read_file(source("docs/serving.md")),
                                        std::regex("http://127.0.0.1:8000"), "$url");
  bool code = false;
  std::string late;  // starts another server
  for (const std::string& line : split(text, '\n')) {
    if (line.starts_with("```")) code = !code;
    if (!code || line.starts_with("```")) continue;
    constexpr std::string_view kProgram = "build/bevatron ";
    if (line.starts_with("build/bevatron serve ")) {
      std::string start = concat("start ", line.substr(kProgram.size()), "\n");
      servers++ == 0 ? script += start : late += start + "stop\n";
    } else if (line.starts_with(kProgram)) {
      script += concat(BEV_BINARY_DIR, "/", line.substr(6), " > out.json\n");
      ++calls;
    } else {
      ASSERT_TRUE(line.starts_with("curl ")) << line;
      std::string words = std::regex_replace(line, std::regex("curl"), "curl --fail");
      script += concat(words, " > answer\ntest -s answer\n");
      ++calls;
    }
  }
  Outcome run = run_shell(folder, concat(script, "stop\n", late, "echo complete"));
  EXPECT_EQ(run.out, "complete\n") << script << run.err << read_file(folder.path("log"));
  EXPECT_EQ(servers, 2);
  EXPECT_GE(calls, 4);
}

TEST(Documents, CommandsRun) {
  TempFolder folder;
  fill(folder);
  for (const std::string& document : kDocuments) {
    if (document == "docs/inference.md" || document == "docs/serving.md" ||
        document == "docs/posttraining.md") {
      continue;
    }
    for (const std::string& words : quoted_commands(read_file(source(document)))) {
      Outcome run = bevatron(folder, harmless(words));
      EXPECT_EQ(run.code, 0) << document << ": " << words << "\n" << run.out;
    }
  }
}

TEST(Documents, SchedulesAreAsPrintedAndDrawn) {
  TempFolder folder;
  fill(folder);
  std::string text = read_file(source("docs/parallelism.md"));
  int drawings = 0;
  for (const std::string& words : quoted_commands(text)) {
    if (!words.starts_with("plan schedule") || words.find("--svg") == words.npos) continue;
    Outcome run = bevatron(folder, words);
    std::string figures = run.out.substr(run.out.rfind("\nrank ") + 1);
    figures.erase(0, figures.find('\n') + 1);
    EXPECT_NE(text.find(concat(words, "\n", figures)), text.npos) << words << "\n" << figures;
    std::string drawing = words.substr(words.rfind(' ') + 1);
    EXPECT_TRUE(read_file(folder.path(drawing)) == read_file(source(drawing)))
        << "run: build/bevatron " << words;
    ++drawings;
  }
  EXPECT_EQ(drawings, 4);
}

TEST(Documents, TablesOfMemoryAreThoseOfADryRun) {
#ifndef BEV_HAS_CUDA
  GTEST_SKIP() << "they are of GPUs, whose rules this build does not know";
#endif
  TempFolder folder;
  std::string text = read_file(source("docs/parallelism.md"));
  std::string plan;
  for (const std::string& words : quoted_commands(text)) {
    if (words.find("--ranks 8 --dry-run") != words.npos) plan = words;
  }
  std::vector<std::string> rows =
      all_matches(text, R"(\n\| (`--[^`]*`(?: \| [0-9.]+ [GM]iB){5}) \|)");
  EXPECT_GT(rows.size(), 20u);
  for (const std::string& row : rows) {
    std::string flags = row.substr(1, row.find('`', 1) - 1);
    Outcome run = bevatron(folder, concat(plan, " ", flags));
    std::vector<std::string> most = all_matches(run.out, R"(([0-9][^\n]*)  < most)");
    ASSERT_EQ(most.size(), 1u) << flags << "\n" << run.out;
    std::string cells = concat("`", flags, "`");
    for (const std::string& bytes : all_matches(most[0], "([0-9.]+ [GM]iB)")) {
      cells += concat(" | ", bytes);
    }
    EXPECT_EQ(row, cells);
  }
}

}  // namespace
}  // namespace bev
