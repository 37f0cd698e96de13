#include "infer/text_stream.h"

#include <gtest/gtest.h>

#include <string>

#include "infer/end_tokens.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/byte_tokenizer.h"

namespace bev {
namespace {

constexpr const char* kBad = "\xef\xbf\xbd";

// Words with a space before all but the first, as sentence-piece tokenizers decode.
class WordTokenizer : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view) const override { return {}; }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (std::int32_t id : ids) text += (text.empty() ? "w" : " w") + std::to_string(id);
    return text;
  }
  std::int64_t vocab_size() const override { return 100; }
  std::optional<std::int32_t> token_id(std::string_view) const override { return {}; }
  std::optional<std::string> token_text(std::int32_t) const override { return {}; }
};

TEST(TextStream, CutCharactersWaitForTheirRest) {
  ByteTokenizer tokenizer;
  TextStream stream(tokenizer, tokenizer.encode("prompt"));
  std::vector<std::string> pieces;
  for (std::int32_t id : tokenizer.encode("a\u00e9\u20ac\U0001f600z")) {
    pieces.push_back(stream.add(id));
  }
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "", "\u00e9", "", "", "\u20ac", "", "", "",
                                              "\U0001f600", "z"}));
  EXPECT_EQ(stream.finish(), "");
}

// Single-byte tokens among text tokens; a run of bytes is decoded as a whole, or each byte
// gives U+FFFD.
TEST(TextStream, BytesOfAFallbackWaitForTheirRest) {
  auto tokenizer = open_tokenizer(BEV_SOURCE_DIR "/tests/golden/tokenizers/llama2_first.json");
  auto stream_bytes = [&](std::string_view bytes) {
    std::vector<std::string> pieces;
    TextStream stream(*tokenizer, tokenizer->encode("hello"));
    for (char byte : bytes) {
      constexpr char kDigits[] = "0123456789ABCDEF";
      auto value = static_cast<unsigned char>(byte);
      auto token =
          tokenizer->token_id(std::string("<0x") + kDigits[value >> 4] + kDigits[value & 15] + ">");
      pieces.push_back(stream.add(token.value()));
    }
    pieces.push_back(stream.add(tokenizer->token_id("a").value()));
    pieces.push_back(stream.finish());
    return pieces;
  };
  using Pieces = std::vector<std::string>;
  const std::string bad = kBad;
  EXPECT_EQ(stream_bytes("\U0001f600"), (Pieces{"", "", "", "\U0001f600", "a", ""}));
  EXPECT_EQ(stream_bytes("\u00e9\u20ac"), (Pieces{"", "\u00e9", "", "", "\u20ac", "a", ""}));
  // A broken byte after a whole character does not take the character back.
  EXPECT_EQ(stream_bytes("\u00e9\xff"), (Pieces{"", "\u00e9", "", bad + "a", ""}));
  EXPECT_EQ(stream_bytes("\xff"), (Pieces{"", bad + "a", ""}));
  // Not held back for ever.
  EXPECT_EQ(stream_bytes("\xff\xff\xff\xff"), (Pieces{"", "", "", bad + bad + bad + bad, "a", ""}));
}

TEST(TextStream, BrokenCharactersAreReplaced) {
  ByteTokenizer tokenizer;
  TextStream stream(tokenizer, {});
  std::string text;
  for (std::int32_t id : {0xe2, 0x82, 0x78, 0xff, 0xf0, 0x9f}) text += stream.add(id);
  EXPECT_EQ(text, std::string(kBad) + "x" + kBad);
  EXPECT_EQ(stream.finish(), kBad);
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, PiecesDependOnWhatGoesBefore) {
  WordTokenizer tokenizer;
  TextStream after_prompt(tokenizer, std::vector<std::int32_t>{1, 2});
  TextStream alone(tokenizer, {});
  std::string continued, started;
  for (std::int32_t id : {3, 4, 5}) {
    continued += after_prompt.add(id);
    started += alone.add(id);
  }
  EXPECT_EQ(continued, " w3 w4 w5");
  EXPECT_EQ(started, "w3 w4 w5");
}

TEST(TextStream, InvalidUtf8IsReplacedByTheStandardsTable) {
  EXPECT_EQ(replace_invalid_utf8("ok \u20ac\U0010ffff"), "ok \u20ac\U0010ffff");
  EXPECT_EQ(replace_invalid_utf8("\xc0\xaf"), std::string(kBad) + kBad);             // overlong
  EXPECT_EQ(replace_invalid_utf8("\xed\xa0\x80"), std::string(kBad) + kBad + kBad);  // surrogate
  EXPECT_EQ(replace_invalid_utf8("\xf4\x90"), std::string(kBad) + kBad);  // beyond U+10FFFF
  EXPECT_EQ(replace_invalid_utf8("\xe2\x82"), kBad);
  EXPECT_EQ(replace_invalid_utf8(""), "");
  EXPECT_EQ(whole_characters("ab\xe2\x82"), 2u);
  EXPECT_EQ(whole_characters("ab\xe2\x82\xac"), 5u);
  EXPECT_EQ(whole_characters("\x82\x82\x82\x82"), 4u);
}

TEST(EndTokens, ComeFromTheGenerationConfigFirst) {
  TempFolder folder;
  EXPECT_TRUE(read_end_tokens(folder.path()).empty());
  folder.write("config.json", R"({"text_config": {"eos_token_id": 4}})");
  EXPECT_EQ(read_end_tokens(folder.path()), std::vector<std::int32_t>{4});
  folder.write("config.json", R"({"eos_token_id": 0, "text_config": {"eos_token_id": 4}})");
  EXPECT_EQ(read_end_tokens(folder.path()), std::vector<std::int32_t>{0});
  folder.write("generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(read_end_tokens(folder.path()), std::vector<std::int32_t>{0});
  folder.write("generation_config.json", R"({"eos_token_id": [7, -1, 9]})");
  EXPECT_EQ(read_end_tokens(folder.path()), (std::vector<std::int32_t>{7, 9}));
}

TEST(EndTokens, OtherValuesAreErrors) {
  TempFolder folder;
  for (const char* value : {"\"</s>\"", "1.5", "[[1]]", "-2", "18446744073709551615", "true"}) {
    folder.write("config.json", concat("{\"eos_token_id\": ", value, "}"));
    expect_error(ErrorKind::kInput, {"config.json", "eos_token_id", "not a token id"},
                 [&] { read_end_tokens(folder.path()); });
  }
}

}  // namespace
}  // namespace bev
