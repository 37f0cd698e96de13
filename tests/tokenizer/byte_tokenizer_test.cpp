#include "tokenizer/byte_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

TEST(ByteTokenizer, EncodesBytesAndDecodesThemBack) {
  ByteTokenizer tokenizer;
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  Ids ids = tokenizer.encode(all);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(ids[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(tokenizer.decode(ids), all);
  EXPECT_EQ(tokenizer.encode("é\n"), (Ids{0xc3, 0xa9, 10}));
  EXPECT_TRUE(tokenizer.encode("").empty());
  EXPECT_EQ(tokenizer.vocab_size(), 256);
  EXPECT_EQ(tokenizer.eod(), std::nullopt);
}

TEST(ByteTokenizer, DecodesUnknownIdsToNothing) {
  EXPECT_EQ(ByteTokenizer().decode(Ids{'a', -1, 256, 'b', 1 << 30, -100, 0}),
            std::string("ab\0", 3));
}

TEST(ByteTokenizer, ExportsTheByteCharactersOfGpt2) {
  Json tokenizer = Json::parse(byte_tokenizer_json());
  const Json& vocab = tokenizer["model"]["vocab"];
  EXPECT_EQ(vocab.size(), 256u);
  EXPECT_EQ(vocab["A"], 65);
  EXPECT_EQ(vocab["Ġ"], 32);
  EXPECT_EQ(vocab["Ċ"], 10);
  EXPECT_EQ(vocab["Ā"], 0);
  EXPECT_EQ(vocab["ġ"], 127);
  EXPECT_EQ(vocab["ł"], 160);
  EXPECT_EQ(vocab["Ń"], 173);
  EXPECT_EQ(vocab["ÿ"], 255);
}

std::unique_ptr<Tokenizer> load(std::string_view text) {
  TempFolder folder;
  folder.write("tokenizer.json", text);
  return load_tokenizer(folder.path());
}

TEST(LoadTokenizer, ReadsItsOwnExport) {
  auto tokenizer = load(byte_tokenizer_json());
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->encode("\xff\x01z"), (Ids{255, 1, 'z'}));
}

// Hugging Face's output after loading and saving: other order, fields and spacing.
TEST(LoadTokenizer, RecognisesByContent) {
  Json tokenizer = Json::parse(byte_tokenizer_json());
  tokenizer["model"].erase("dropout");
  tokenizer["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  tokenizer["post_processor"] = {{"type", "ByteLevel"}, {"trim_offsets", true}};
  EXPECT_NE(load(tokenizer.dump()), nullptr);
  EXPECT_NE(load(tokenizer.dump(8)), nullptr);
}

TEST(IsByteTokenizer, LeavesEverythingElse) {
  const Json good = Json::parse(byte_tokenizer_json());
  auto expect_left = [&](const char* pointer, const Json& value) {
    Json changed = good;
    changed[Json::json_pointer(pointer)] = value;
    EXPECT_FALSE(is_byte_tokenizer(changed.dump(), "test")) << pointer << " = " << value;
  };
  EXPECT_TRUE(is_byte_tokenizer(good.dump(), "test"));
  expect_left("/model/type", "WordPiece");
  expect_left("/model/type", nullptr);
  expect_left("/model/merges", {"a b"});
  expect_left("/model/dropout", 0.1);
  expect_left("/model/end_of_word_suffix", "</w>");
  expect_left("/model/continuing_subword_prefix", "##");
  expect_left("/model/vocab/A", 66);  // duplicate id
  expect_left("/model/vocab/A", 65.5);
  expect_left("/model/vocab/A", "65");
  expect_left("/model/vocab/AB", 256);  // 257 entries
  expect_left("/model/vocab", Json::array());
  expect_left("/model", nullptr);
  expect_left("/model", 5);
  expect_left("/added_tokens", Json::array({{{"id", 256}, {"content", "<eos>"}}}));
  expect_left("/normalizer", {{"type", "NFC"}});
  expect_left("/truncation", {{"max_length", 5}});
  expect_left("/padding", {{"pad_id", 0}});
  expect_left("/pre_tokenizer", nullptr);
  expect_left("/pre_tokenizer/type", "Whitespace");
  expect_left("/pre_tokenizer/add_prefix_space", true);
  expect_left("/pre_tokenizer/add_prefix_space", nullptr);  // the default there is true
  expect_left("/post_processor", {{"type", "TemplateProcessing"}});
  expect_left("/decoder", nullptr);
  Json permuted = good;
  std::swap(permuted["model"]["vocab"]["A"], permuted["model"]["vocab"]["B"]);
  EXPECT_FALSE(is_byte_tokenizer(permuted.dump(), "test"));
  for (const char* text : {"{}", "[]", "5", "null", "\"x\""}) {
    EXPECT_FALSE(is_byte_tokenizer(text, "test")) << text;
  }
}

TEST(LoadTokenizer, NoFileIsNoTokenizer) {
  TempFolder folder;
  EXPECT_EQ(load_tokenizer(folder.path()), nullptr);
  EXPECT_EQ(load_tokenizer("/nowhere"), nullptr);
}

TEST(LoadTokenizer, BrokenFilesAreErrors) {
  std::string good = byte_tokenizer_json();
  for (const std::string& text : {std::string(), std::string("{"), good.substr(0, good.size() / 2),
                                  good + "x", std::string(100'000, '['), std::string("{}"),
                                  std::string("[]"), std::string("{\"model\": 5}")}) {
    expect_error(ErrorKind::kInput, {"tokenizer.json"}, [&] { load(text); });
  }
}

}  // namespace
}  // namespace bev
