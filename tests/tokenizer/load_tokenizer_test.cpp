#include <gtest/gtest.h>

#include <array>
#include <random>
#include <thread>

#include "base/file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/tokenizer.h"

namespace bev {
namespace {

using Ids = std::vector<std::int32_t>;

const std::string kFolder = BEV_SOURCE_DIR "/tests/golden/tokenizers/";

// Opens a tokenizer and encodes; an invalid file may only throw Error.
bool try_tokenizer(const TempFolder& folder, const std::string& name) {
  try {
    auto tokenizer = open_tokenizer(join_path(folder.path(), name));
    tokenizer->decode(tokenizer->encode("Hello wörld 中文 \xff 123"));
    return true;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
    return false;
  }
}

TEST(BrokenTokenizers, CutFilesAreErrors) {
  for (const char* name : {"sp_unigram.model", "sp_bpe.model", "t5.json", "gpt2.json"}) {
    const std::string whole = read_file(kFolder + name);
    for (std::size_t size = 0; size < whole.size(); size += 1 + whole.size() / 40) {
      TempFolder folder;
      folder.write(name, whole.substr(0, size));
      EXPECT_FALSE(try_tokenizer(folder, name)) << name << " cut to " << size;
    }
  }
}

TEST(BrokenTokenizers, ChangedBytesDoNoHarm) {
  std::mt19937 random(3);
  for (const char* name : {"sp_unigram.model", "sp_bpe.model", "ranks.tiktoken"}) {
    const std::string whole = read_file(kFolder + name);
    for (int i = 0; i < 60; ++i) {
      std::string changed = whole;
      for (int k = 0; k < 4; ++k) changed[random() % changed.size()] = static_cast<char>(random());
      TempFolder folder;
      folder.write(name, changed);
      try_tokenizer(folder, name);
    }
  }
}

TEST(OpenTokenizer, KnowsNamesAndFolders) {
  EXPECT_EQ(open_tokenizer("byte")->encode("A\xff"), (Ids{65, 255}));
  auto null = open_tokenizer("null:100");
  EXPECT_EQ(null->encode("5 17  99"), (Ids{5, 17, 99}));
  EXPECT_EQ(null->decode(Ids{5, 17}), "5 17");
  EXPECT_EQ(null->eod(), 100);
  EXPECT_EQ(null->vocab_size(), 101);
  expect_error(ErrorKind::kInput, {"abc"}, [&] { null->encode("abc"); });
  expect_error(ErrorKind::kConfig, {"null:"}, [] { open_tokenizer("null:x"); });
  expect_error(ErrorKind::kInput, {"nowhere"}, [] { open_tokenizer("/nowhere"); });
  expect_error(ErrorKind::kInput, {"no_pattern"},
               [] { open_tokenizer(kFolder + "ranks.tiktoken:no_pattern"); });
  TempFolder folder;
  expect_error(ErrorKind::kInput, {folder.path()}, [&] { open_tokenizer(folder.path()); });
  folder.write("vocab.txt", read_file(kFolder + "bert_vocab/vocab.txt"));
  auto bert = open_tokenizer(folder.path());
  EXPECT_EQ(bert->encode("the wise fox"),
            open_tokenizer(kFolder + "bert.json")->encode("the wise fox"));
  folder.write("tokenizer.json", read_file(kFolder + "gpt2.json"));
  EXPECT_EQ(open_tokenizer(folder.path())->encode("the wise fox"),
            open_tokenizer(kFolder + "gpt2.json")->encode("the wise fox"));
}

TEST(OpenTokenizer, HonoursTheConfiguration) {
  TempFolder folder;
  folder.write("tokenizer.model", read_file(kFolder + "sp_bpe.model"));
  Ids with_begin = {7};
  open_tokenizer(folder.path())->add_special_tokens(with_begin);
  EXPECT_EQ(with_begin, (Ids{1, 7}));
  folder.write("tokenizer_config.json", R"({"add_bos_token": false, "add_eos_token": true})");
  Ids with_end = {7};
  open_tokenizer(folder.path())->add_special_tokens(with_end);
  EXPECT_EQ(with_end, (Ids{7, 2}));

  TempFolder words;
  words.write("tokenizer.json", read_file(kFolder + "word_level.json"));
  auto plain = open_tokenizer(words.path());
  Ids ids = plain->encode("fox .");
  words.write("tokenizer_config.json", R"({"clean_up_tokenization_spaces": true})");
  EXPECT_EQ(plain->decode(ids), "fox .");
  EXPECT_EQ(open_tokenizer(words.path())->decode(ids), "fox.");
}

// A rank file with as many tokens as a published one: the bytes, then tokens of three bytes.
std::string rank_file(int ranks) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  auto digit = [&](int value) { return kDigits[static_cast<std::size_t>(value & 63)]; };
  std::string out;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank < 256) {
      out += {digit(rank >> 2), digit(rank << 4), '=', '='};
    } else {
      out += {digit(rank >> 18), digit(rank >> 12), digit(rank >> 6), digit(rank)};
    }
    out += " " + std::to_string(rank) + "\n";
  }
  return out;
}

TEST(RankFiles, HaveTheSpecialTokensOfTheirName) {
  struct Row {
    const char* name;
    int ranks;
    std::int64_t vocab_size;
    std::int32_t eod;
    std::vector<std::pair<const char*, std::int32_t>> tokens;
  };
  const std::vector<Row> rows = {{"r50k_base", 50256, 50257, 50256, {{"<|endoftext|>", 50256}}},
                                 {"o200k_harmony",
                                  199998,
                                  201088,
                                  199999,
                                  {{"<|startoftext|>", 199998},
                                   {"<|reserved_200001|>", 200001},
                                   {"<|return|>", 200002},
                                   {"<|call|>", 200012},
                                   {"<|endofprompt|>", 200018},
                                   {"<|reserved_200018|>", 200018},
                                   {"<|reserved_201087|>", 201087}}},
                                 {"llama3",
                                  128000,
                                  128256,
                                  128001,
                                  {{"<|reserved_special_token_3|>", 128005},
                                   {"<|reserved_special_token_4|>", 128008},
                                   {"<|eot_id|>", 128009},
                                   {"<|reserved_special_token_5|>", 128010},
                                   {"<|reserved_special_token_250|>", 128255}}}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    TempFolder folder;
    folder.write("ranks", rank_file(row.ranks));
    auto tokenizer = open_tokenizer(folder.path("ranks:") + row.name);
    EXPECT_EQ(tokenizer->vocab_size(), row.vocab_size);
    EXPECT_EQ(tokenizer->eod(), row.eod);
    for (const auto& [text, id] : row.tokens) {
      EXPECT_EQ(tokenizer->encode(concat("a", text)), (Ids{'a', id})) << text;
      EXPECT_TRUE(tokenizer->is_special(id)) << text;
    }
    // An id with two names decodes to the reserved one.
    if (row.vocab_size == 201088) {
      EXPECT_EQ(tokenizer->token_text(200018), "<|reserved_200018|>");
    }
  }
  // A file of another size is not the published one.
  TempFolder folder;
  folder.write("short", rank_file(1000));
  EXPECT_EQ(open_tokenizer(folder.path("short:llama3"))->vocab_size(), 1000);
}

// A file of its own pattern and special tokens, and the folder that keeps them.
TEST(RankFiles, TakeTheirPatternAndSpecialTokensFromOptions) {
  TempFolder folder;
  std::string path = folder.write("mine.tiktoken", rank_file(256) + "YWI= 256\nMTI= 257\n");
  TiktokenOptions options;
  options.pattern = R"(\d|\p{L}+|[^\d\p{L}]+)";  // one digit each: "12" is never merged
  options.special_tokens = folder.write("special.json", R"({"<|end|>": 300, "</s>": 258})");
  auto tokenizer = open_tokenizer(path, options);
  const Ids want = {256, '1', '2', 300, '!', 258};
  EXPECT_EQ(tokenizer->encode("ab12<|end|>!</s>"), want);
  EXPECT_EQ(open_tokenizer(path)->encode("ab12"), (Ids{256, 257}));
  EXPECT_EQ(tokenizer->vocab_size(), 301);
  EXPECT_EQ(tokenizer->eod(), 258);
  EXPECT_TRUE(tokenizer->is_special(300));
  EXPECT_EQ(tokenizer->decode(want), "ab12<|end|>!</s>");
  for (const TokenizerFile& file : rank_file_folder(path, options)) {
    folder.write("kept/" + file.name, file.content);
  }
  auto kept = open_tokenizer(folder.path("kept"));
  EXPECT_EQ(kept->encode("ab12<|end|>!</s>"), want);
  EXPECT_EQ(kept->eod(), 258);
  // A list of tokens follows the ranks; a name stands for tiktoken's pattern.
  options.special_tokens = folder.write("list.json", R"(["<|a|>", "<|endoftext|>"])");
  options.pattern = "cl100k";
  EXPECT_EQ(open_tokenizer(path, options)->encode("12<|a|>"), (Ids{257, 258}));
  EXPECT_EQ(open_tokenizer(path, options)->eod(), 259);
  // Other words of the folder's configuration stay.
  folder.write("kept/tokenizer_config.json",
               R"({"chat_template": "x", "tiktoken_pattern": "gpt2", "eos_token": "<|a|>",
                   "added_tokens_decoder": {"400": {"content": "<|old|>", "special": true}}})");
  EXPECT_EQ(open_tokenizer(folder.path("kept"))->encode("<|old|>"), (Ids{400}));
  std::string config = rank_file_folder(folder.path("kept"), options)[1].content;
  for (const char* part : {"\"chat_template\": \"x\"", "cl100k_base", "<|a|>"}) {
    EXPECT_NE(config.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(config.find("<|old|>"), std::string::npos);
}

TEST(RankFiles, NameWhatIsWrongWithTheirOptions) {
  TempFolder folder;
  std::string path = folder.write("mine.tiktoken", rank_file(256));
  auto fails = [&](ErrorKind kind, const std::string& tokenizer, const TiktokenOptions& options,
                   const std::vector<std::string>& parts) {
    expect_error(kind, parts, [&] { open_tokenizer(tokenizer, options); });
  };
  fails(ErrorKind::kInput, path, {"cl100", ""}, {"'cl100' is not known", "cl100k"});
  fails(ErrorKind::kInput, path, {"(a", ""}, {"(a"});
  fails(ErrorKind::kConfig, path + ":gpt2", {"gpt2", ""}, {"--tiktoken-pattern", "give one"});
  fails(ErrorKind::kConfig, "byte", {"gpt2", ""}, {"--tiktoken-pattern", "rank files"});
  fails(ErrorKind::kConfig, kFolder + "gpt2.json", {"", "x"}, {"--tiktoken-special-tokens"});
  auto special = [&](const std::string& json, const std::vector<std::string>& parts) {
    fails(ErrorKind::kInput, path, {"gpt2", folder.write("s.json", json)}, parts);
  };
  special(R"({"<a>": 65})", {"s.json", "that of a rank", "256"});
  special(R"({"<a>": 300, "<b>": 300})", {"s.json", "300"});
  special(R"({"": 300})", {"empty"});
  special(R"({"<a>": -1})", {"outside"});
  special(R"("<a>")", {"a list of tokens"});
  special(R"(["<a>", "<a>"])", {"the same"});
  special("{", {"s.json"});
}

TEST(PipelineTokenizer, KnowsTokensAndSpecialOnes) {
  auto tokenizer = open_tokenizer(kFolder + "roberta.json");
  std::optional<std::int32_t> mask = tokenizer->token_id("[MASK]");
  ASSERT_TRUE(mask.has_value());
  EXPECT_TRUE(tokenizer->is_special(*mask));
  EXPECT_EQ(tokenizer->token_text(*mask), "[MASK]");
  EXPECT_FALSE(tokenizer->is_special(*tokenizer->token_id("a")));
  EXPECT_EQ(tokenizer->token_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer->token_text(1 << 20), std::nullopt);
  EXPECT_EQ(tokenizer->eod(), tokenizer->token_id("<|endoftext|>"));
}

TEST(PipelineTokenizer, ReplacesWhatIsNotUtf8) {
  auto tokenizer = open_tokenizer(kFolder + "gpt2.json");
  EXPECT_EQ(tokenizer->encode("a\xff\xc3(\xe4\xb8"), tokenizer->encode("a\ufffd\ufffd(\ufffd"));
}

TEST(PipelineTokenizer, GivesTheSameOnManyThreads) {
  auto tokenizer = open_tokenizer(kFolder + "o200k.json");
  std::string text;
  for (int i = 0; i < 2000; ++i) text += " word" + std::to_string(i * 7919 % 1000);
  const Ids want = tokenizer->encode(text);
  std::vector<std::thread> threads;
  std::array<bool, 4> same{};
  for (std::size_t t = 0; t < same.size(); ++t) {
    threads.emplace_back([&, t] {
      same[t] = true;
      for (int i = 0; i < 20; ++i) same[t] = same[t] && tokenizer->encode(text) == want;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (bool good : same) EXPECT_TRUE(good);
}

}  // namespace
}  // namespace bev
