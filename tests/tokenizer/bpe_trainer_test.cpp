// Byte-level BPE training against Hugging Face's trainer: tests/golden/tokenizers/trained_*.json.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "base/file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/pipeline/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/training/trained_tokenizer.h"
#include "tokenizer/training/word_counter.h"

namespace bev {
namespace {

using Json = nlohmann::json;
using Counts = std::map<std::string, std::int64_t>;

const std::string kFolder = BEV_SOURCE_DIR "/tests/golden/tokenizers/";

// Records the callbacks.
class Watcher : public TrainingWatcher {
 public:
  void counted(std::int64_t bytes) override { counted_bytes = bytes; }
  void dropped(std::int64_t words, std::int64_t most) override { drops.emplace_back(words, most); }
  void merged(std::int64_t tokens, std::int64_t) override { merged_tokens = tokens; }

  std::int64_t counted_bytes = 0, merged_tokens = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> drops;
};

std::vector<std::string> golden_strings() {
  return Json::parse(read_file(kFolder + "strings.json")).get<std::vector<std::string>>();
}

WordCounterOptions counting(const std::string& pattern, int workers) {
  WordCounterOptions options;
  options.pre_tokenizer = byte_level_pre_tokenizer(pattern);
  options.workers = workers;
  return options;
}

std::vector<WordTable> count(const std::vector<std::string>& documents,
                             const WordCounterOptions& options, Watcher& watcher) {
  WordCounter counter(options, watcher);
  for (const std::string& document : documents) counter.add_text(document);
  return counter.finish();
}

Counts as_map(const std::vector<WordTable>& tables) {
  Counts counts;
  for (const WordTable& table : tables) {
    table.for_each([&](std::string_view word, std::int64_t times) {
      EXPECT_TRUE(counts.emplace(word, times).second) << "in two parts: " << word;
    });
  }
  return counts;
}

TrainedBpe train(const std::vector<std::string>& documents, BpeTrainerOptions options,
                 const std::string& pattern = "llama3", int workers = 2) {
  Watcher watcher;
  return train_bpe(count(documents, counting(pattern, workers), watcher), options, watcher);
}

TEST(BpeTrainer, FindsTheMergesOfHuggingFacesTrainer) {
  for (const auto& [name, pattern] : {std::pair{"gpt2", "gpt2"},
                                      {"llama3", "llama3"},
                                      {"llama3", "cl100k"},
                                      {"o200k", "o200k"},
                                      {"regex", R"(\w+|\s)"}}) {
    const Json want =
        Json::parse(read_file(concat(kFolder, "trained_", name, ".json"))).at("model");
    for (int workers : {1, 3}) {
      SCOPED_TRACE(concat(pattern, ", ", workers, " workers"));
      TempFolder folder;
      const std::vector<std::string> special = {"<|endoftext|>", "<s>"};
      TrainedBpe trained = train(golden_strings(), {1100, 1, special}, pattern, workers);
      write_trained_tokenizer(folder.path(), trained, byte_level_pre_tokenizer(pattern), special);
      const Json ours = Json::parse(read_file(folder.path("tokenizer.json"))).at("model");
      ASSERT_EQ(ours.at("vocab"), want.at("vocab"));
      ASSERT_EQ(ours.at("merges"), want.at("merges"));
    }
  }
}

TEST(BpeTrainer, WhatIsWrittenEncodesAsTheReference) {
  TempFolder folder;
  const std::vector<std::string> special = {"<|endoftext|>", "<s>"};
  write_trained_tokenizer(folder.path("new/folder"),
                          train(golden_strings(), {1100, 1, special}, "o200k"),
                          byte_level_pre_tokenizer("o200k"), special);
  auto tokenizer = open_tokenizer(folder.path("new/folder"));
  EXPECT_EQ(tokenizer->vocab_size(), 1100);
  EXPECT_EQ(tokenizer->eod(), 0);
  const Json expected = Json::parse(read_file(kFolder + "trained_o200k.expected.json"));
  const std::vector<std::string> strings = golden_strings();
  for (std::size_t i = 0; i < strings.size(); ++i) {
    ASSERT_EQ(tokenizer->encode(strings[i]), expected["ids"][i].get<std::vector<std::int32_t>>())
        << strings[i];
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(strings[i])), strings[i]);
  }
}

TEST(BpeTrainer, CountsDecideAndThenIds) {
  // "bc" occurs 5 times, "ab" and "xy" 3 times; ids are in byte order.
  TrainedBpe trained =
      train({"xy xy xy", "ab ab ab", "bc bc bc bc bc"}, {260, 1, {"<e>"}}, R"(\S+)");
  ASSERT_EQ(trained.tokens.size(), 260u);
  EXPECT_EQ(trained.tokens[257], "bc");
  EXPECT_EQ(trained.tokens[258], "ab");
  EXPECT_EQ(trained.tokens[259], "xy");
}

TEST(BpeTrainer, RunsOfOneByteMergeFromTheLeft) {
  TrainedBpe trained = train({"aaaaaaa"}, {300, 1, {"<e>"}});
  // aa aa aa a, then aaaa aa a, then the rest.
  std::vector<std::string> merged(trained.tokens.begin() + 257, trained.tokens.end());
  EXPECT_EQ(merged, (std::vector<std::string>{"aa", "aaaa", "aaa", "aaaaaaa"}));
}

TEST(BpeTrainer, StopsWhenPairsAreRareOrUsedUp) {
  const std::vector<std::string> text = {"abab abab", "xyz"};
  EXPECT_EQ(train(text, {1000, 100, {"<e>"}}).tokens.size(), 257u);
  EXPECT_TRUE(train(text, {1000, 100, {"<e>"}}).merges.empty());
  TrainedBpe frequent = train(text, {1000, 2, {"<e>"}}), all = train(text, {1000, 1, {"<e>"}});
  EXPECT_GT(frequent.tokens.size(), 257u);
  EXPECT_GT(all.tokens.size(), frequent.tokens.size());
  EXPECT_EQ(std::ranges::count(all.tokens, "xyz"), 1);
  EXPECT_EQ(std::ranges::count(frequent.tokens, "xyz"), 0);
  EXPECT_EQ(train(text, {257, 1, {"<e>"}}).merges.size(), 0u);
}

// Lines of random words over a small alphabet, some with leading or trailing spaces.
std::string random_text(std::size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) {
    for (unsigned i = random() % 6; i-- > 0;) text.push_back(static_cast<char>('a' + random() % 5));
    constexpr std::string_view kEnds = "  \n\n\t!9";
    text.push_back(kEnds[random() % kEnds.size()]);
    if (random() % 50 == 0) text += "\u00e9\u4e2d";
  }
  return text;
}

TEST(WordCounter, LongDocumentsAreCutBetweenWords) {
  const std::string text = random_text(3 << 19, 1);
  for (const char* pattern : {"gpt2", "llama3", "o200k"}) {
    Counts want;
    const Splitter splitter =
        *only_splitter(JsonDocument(byte_level_pre_tokenizer(pattern), "test").root());
    for (std::size_t at = 0; at < text.size();) {
      std::size_t end = splitter.word_end(text, at);
      ++want[text.substr(at, end - at)];
      at = end;
    }
    Watcher watcher;
    EXPECT_EQ(as_map(count({text}, counting(pattern, 2), watcher)), want) << pattern;
    EXPECT_EQ(watcher.counted_bytes, static_cast<std::int64_t>(text.size()));
  }
}

TEST(WordCounter, TextWithoutLinesIsCutBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 500000; ++i) text += "\u4e2d";
  Watcher watcher;
  std::int64_t bytes = 0;
  for (const auto& [word, times] : as_map(count({text}, counting("llama3", 1), watcher))) {
    EXPECT_EQ(word.find("\ufffd"), std::string::npos);
    bytes += times * static_cast<std::int64_t>(word.size());
  }
  EXPECT_EQ(bytes, static_cast<std::int64_t>(text.size()));
}

TEST(WordCounter, DropsTheRarestWordsWhateverTheWorkers) {
  std::vector<std::string> documents;
  for (unsigned i = 0; i < 64; ++i) documents.push_back(random_text(4096, i));
  Counts one;
  std::vector<std::pair<std::int64_t, std::int64_t>> drops;
  for (int workers : {1, 2, 5}) {
    WordCounterOptions options = counting("llama3", workers);
    options.round_bytes = 32768;
    options.max_bytes = 200000;
    Watcher watcher;
    Counts counts = as_map(count(documents, options, watcher));
    ASSERT_FALSE(watcher.drops.empty());
    if (workers == 1) {
      one = counts;
      drops = watcher.drops;
    }
    EXPECT_EQ(counts, one);
    EXPECT_EQ(watcher.drops, drops);
  }
  Watcher watcher;
  Counts all = as_map(count(documents, counting("llama3", 2), watcher));
  EXPECT_TRUE(watcher.drops.empty());
  EXPECT_LT(one.size(), all.size());
  // Frequent words are counted exactly.
  for (const char* word : {" a", "\n", "!"}) EXPECT_EQ(one.at(word), all.at(word)) << word;
}

TEST(WordCounter, WhatIsNotUtf8CountsAsItIsEncoded) {
  Watcher watcher;
  Counts counts = as_map(count({"a\xff", "a\ufffd"}, counting("llama3", 1), watcher));
  EXPECT_EQ(counts, (Counts{{"a", 2}, {"\ufffd", 2}}));
}

TEST(WordCounter, ErrorsOfAWorkerReachTheCaller) {
  // Catastrophic backtracking: the matcher gives up.
  Watcher watcher;
  expect_error(ErrorKind::kInput, {"regular expression"},
               [&] { count({std::string(4000, 'a')}, counting("(a+a+)+[bc]", 2), watcher); });
}

TEST(TrainingPattern, IsANameOrAnExpression) {
  for (const char* pattern : {"llama4", "gpt-2", "", "cl100k_base"}) {
    expect_error(ErrorKind::kConfig, {"--pattern", "llama3"},
                 [&] { byte_level_pre_tokenizer(pattern); });
  }
  expect_error(ErrorKind::kConfig, {"--pattern", "(a"}, [] { byte_level_pre_tokenizer("(a"); });
}

}  // namespace
}  // namespace bev
