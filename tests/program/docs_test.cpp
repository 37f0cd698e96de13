// The documentation is correct: links resolve, quoted commands run, and quoted figures are those
// that the program prints.
#include <gtest/gtest.h>

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
                                             "docs/parallelism.md",
                                             "docs/gpu.md",
                                             "docs/checkpoints.md",
                                             "docs/checkpoint-format.md",
                                             "docs/evaluation.md",
                                             "docs/inference.md",
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
  if (reads || words.starts_with("generate") || words.starts_with("score"))
    return words + " --help";
  bool planned = words.find("--dry-run") != words.npos;
  return words.starts_with("train") && !planned ? words + " --dry-run" : words;
}

// A folder in which the paths of the documents exist.
void fill(const TempFolder& folder) {
  std::filesystem::create_directories(folder.path("docs/images"));
  std::filesystem::copy(source("configs"), folder.path("configs"));
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
  std::string flags = read_file(source("docs/flags.md"));
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

TEST(Documents, CommandsRun) {
  TempFolder folder;
  fill(folder);
  for (const std::string& document : kDocuments) {
    if (document == "docs/inference.md") continue;
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
