#include "tokenizer/pipeline/splitters.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/expect_error.h"
#include "tokenizer/text/regex.h"
#include "tokenizer/text/utf8.h"
#include "tokenizer/tokenizer.h"

namespace bev {
namespace {

constexpr const char* kPatterns[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
};

// Text that is likely to exercise every alternative, with an occasional arbitrary character.
std::string random_text(std::mt19937& random) {
  constexpr const char* kParts[] = {
      " ",      " ",      "  ",     "\n",   "\r",         "\r\n",   "\t",     "'",
      "'s",     "'S",     "'ll",    "'LL",  "'rE",        "'v",     "ſ",      "'ſ",
      "a",      "b",      "Z",      "Q",    "e",          "ß",      "É",      "ǅ",
      "ʰ",      "ª",      "中",     "の",   "ह",          "ि",      "\u0301", "\u0903",
      "0",      "7",      "½",      "Ⅷ",    "٣",          "!",      ".",      "/",
      "-",      "$",      "_",      "€",    "“",          "\u00a0", "\u3000", "\u2028",
      "\u0085", "\u200b", "\u200d", "🙂", "\U0001f468", "\u0378", "\ufffd", "\U00010d4a"};
  std::string text;
  std::size_t length = random() % 24;
  for (std::size_t i = 0; i < length; ++i) {
    if (random() % 16 == 0) {
      CodePoint point = random() % 0x110000;
      append_point(text, point >= 0xd800 && point <= 0xdfff ? 'x' : point);
    } else {
      text += kParts[random() % std::size(kParts)];
    }
  }
  return text;
}

using Words = std::vector<std::string_view>;

Words words_of(const Splitter& splitter, std::string_view text) {
  Words words;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = splitter.word_end(text, at);
    words.push_back(text.substr(at, end - at));
    if (end <= at) break;
    at = end;
  }
  return words;
}

// Matches, and the text between them.
Words words_of(const Regex& regex, std::string_view text) {
  Words words;
  std::size_t done = 0;
  Regex::Matches matches(regex, text);
  while (std::optional<Match> match = matches.next()) {
    if (done < match->begin) words.push_back(text.substr(done, match->begin - done));
    words.push_back(text.substr(match->begin, match->end - match->begin));
    done = match->end;
  }
  if (done < text.size()) words.push_back(text.substr(done));
  return words;
}

void expect_same(std::string_view pattern, RegexDialect dialect) {
  SCOPED_TRACE(pattern);
  std::optional<Splitter> splitter = find_splitter(pattern, dialect);
  ASSERT_TRUE(splitter.has_value());
  Regex regex(pattern, dialect);
  std::mt19937 random(7);
  for (int i = 0; i < 4000; ++i) {
    std::string text = random_text(random);
    ASSERT_EQ(words_of(*splitter, text), words_of(regex, text)) << text;
  }
}

TEST(Splitters, AgreeWithPcre2OnRandomText) {
  for (const char* name : {"gpt2", "cl100k_base", "o200k_base", "llama3", "qwen2"}) {
    expect_same(*named_pattern(name), RegexDialect::kFancy);
  }
  for (const char* pattern : kPatterns) expect_same(pattern, RegexDialect::kOniguruma);
}

TEST(Splitters, PossessiveIntervalsAreNotTheSameInOniguruma) {
  EXPECT_FALSE(find_splitter(*named_pattern("cl100k_base"), RegexDialect::kOniguruma));
  std::string_view digits = "1234567";
  EXPECT_EQ(words_of(Regex(R"(\p{N}{1,3}+)", RegexDialect::kOniguruma), digits),
            (Words{"1234567"}));
  EXPECT_EQ(words_of(Regex(R"(\p{N}{1,3}+)", RegexDialect::kFancy), digits),
            (Words{"123", "456", "7"}));
}

TEST(Regex, OptionsAreThoseOfRuby) {
  auto words = [](std::string_view pattern) {
    return words_of(Regex(pattern, RegexDialect::kOniguruma), "ab\r\nA b");
  };
  EXPECT_EQ(words(".+"), (Words{"ab\r", "\n", "A b"}));
  EXPECT_EQ(words("(?m).+"), (Words{"ab\r\nA b"}));
  EXPECT_EQ(words("(?m:.)+"), (Words{"ab\r\nA b"}));
  EXPECT_EQ(words("(?-m).+"), (Words{"ab\r", "\n", "A b"}));
  EXPECT_EQ(words("(?im:A.)"), (Words{"ab", "\r\n", "A ", "b"}));
  EXPECT_EQ(words("(?m)^A."), (Words{"ab\r\n", "A ", "b"}));
  EXPECT_EQ(words("(?x) a b"), (Words{"ab", "\r\nA b"}));
  EXPECT_EQ(words("(?<=a)b|(?!A)A|(?>A )|(?<n>b)"), (Words{"a", "b", "\r\n", "A ", "b"}));
  for (const char* pattern : {"(?s).", "(?u)a", "(?a:b)"}) {
    expect_error(ErrorKind::kInput, {pattern, "option"}, [&] { words(pattern); });
  }
}

TEST(Splitters, UnknownPatternsHaveNone) {
  EXPECT_FALSE(find_splitter(R"(\w+)", RegexDialect::kOniguruma));
  EXPECT_FALSE(named_pattern("nothing"));
  EXPECT_FALSE(named_pattern(""));
}

TEST(ByteLevelTokenizers, TextRoundTripsExactly) {
  std::mt19937 random(11);
  const std::string folder = BEV_SOURCE_DIR "/tests/golden/tokenizers/";
  for (const char* name :
       {"gpt2.json", "llama3.json", "o200k.json", "deepseek.json", "odd_regex.json",
        "ranks.tiktoken:cl100k_base", "ranks.tiktoken:o200k_base"}) {
    auto tokenizer = open_tokenizer(folder + name);
    for (int i = 0; i < 500; ++i) {
      std::string text = random_text(random);
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << name;
    }
  }
}

// A hundred thousand characters without a break, of every kind: encoding must take linear time;
// with quadratic time this test would not end.
TEST(LongWords, TakeTimeInProportion) {
  const std::string folder = BEV_SOURCE_DIR "/tests/golden/tokenizers/";
  std::string letters, mixed;
  for (int i = 0; i < 100'000; ++i)
    letters.push_back(static_cast<char>('a' + std::int64_t{i} * i % 26));
  for (int i = 0; i < 30'000; ++i) mixed += i % 3 == 0 ? "中" : i % 3 == 1 ? "e\u0301" : "ж";
  for (const char* name : {"gpt2.json", "llama3.json", "o200k.json", "deepseek.json", "t5.json",
                           "llama2_legacy.json", "metaspace_unk.json", "bert.json", "sp_bpe.model",
                           "sp_unigram.model", "ranks.tiktoken:cl100k_base"}) {
    auto tokenizer = open_tokenizer(folder + name);
    for (const std::string& text :
         {letters, mixed, std::string(100'000, 'a'), std::string(100'000, ' '),
          std::string(100'000, '7'), std::string(100'000, '!'), std::string(100'000, '\0')}) {
      EXPECT_NO_THROW(tokenizer->encode(text)) << name;
    }
  }
}

}  // namespace
}  // namespace bev
