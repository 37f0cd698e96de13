// Tables of examples, and their tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/batch_file.h"
#include "data/labelled/example_encoder.h"
#include "data/labelled/table_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using testing::ElementsAre;
using Ids = std::vector<std::int32_t>;

TEST(TableFile, ReadsCsvWithQuotes) {
  TempFolder folder;
  auto rows =
      read_table(folder.write("t.csv", "\xef\xbb\xbfid,text\r\n1,\"a, \"\"b\"\"\nc\"\r\n\n2,d\n"));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].member("text").scalar_text(), "a, \"b\"\nc");
  EXPECT_EQ(rows[1].member("text").scalar_text(), "d");
  EXPECT_THAT(rows[1].where(), testing::HasSubstr("t.csv:5"));
}

TEST(TableFile, SaysWhatIsWrong) {
  TempFolder folder;
  auto refuse = [&](const char* name, const char* text, std::vector<std::string> parts) {
    expect_error(ErrorKind::kInput, parts, [&] { read_table(folder.write(name, text)); });
  };
  refuse("a.csv", "x,y\n1\n", {"a.csv:2", "1 cells for 2 columns"});
  refuse("a.csv", "x,y,x\n1,2,3\n", {"a.csv:1", "'x' is there twice"});
  refuse("a.csv", "x\n\"1\n", {"a.csv:2", "does not end"});
  refuse("a.csv", "x\n\"1\"2\n", {"behind the closing quote"});
  refuse("a.tsv", "", {"is empty"});
  refuse("a.tsv", "x\n", {"has no row"});
  refuse("a.jsonl", "{\"x\": 1}\n[2]\n", {"a.jsonl:2", "expected an object"});
  refuse("a.xls", "x", {".jsonl", ".csv or .tsv"});
}

// Words are numbers; [CLS] is 101 and [SEP] 102.
class WordTokenizer final : public Tokenizer {
 public:
  Ids encode(std::string_view text) const override {
    Ids ids;
    for (char c : text) {
      if (c != ' ' && c != ',') ids.push_back(c);
    }
    return ids;
  }
  void add_special_tokens(Ids& ids) const override {
    ids.insert(ids.begin(), 1);
    ids.push_back(2);
  }
  std::string decode(std::span<const std::int32_t>) const override { return ""; }
  std::int64_t vocab_size() const override { return 256; }
  std::optional<std::int32_t> token_id(std::string_view) const override { return std::nullopt; }
  std::optional<std::string> token_text(std::int32_t) const override { return std::nullopt; }
};

TEST(ExampleEncoder, PutsPairsTogether) {
  WordTokenizer tokenizer;
  ExampleFormat format{.labels = {"no", "yes"}, .max_length = 8, .token_types = 2};
  TextExample example;
  example.text = "abcd";
  example.pair = "xyz";
  example.labels = {"yes"};
  // Two tokens more than there is room for: the longer text loses its end first.
  EncodedExample out = ExampleEncoder(tokenizer, format).encode(example);
  EXPECT_THAT(out.sample.tokens, ElementsAre(1, 'a', 'b', 'c', 2, 'x', 'y', 2));
  EXPECT_EQ(std::get<Ids>(out.sample.fields.at(0).values), (Ids{0, 0, 0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(out.sample.fields.at(1).id, kClassLabels);
  EXPECT_EQ(std::get<Ids>(out.sample.fields.at(1).values), Ids{1});
  EXPECT_EQ(out.sample.weights.front(), 1);
  format.double_separator = true;
  format.token_types = 0;
  out = ExampleEncoder(tokenizer, format).encode(example);
  EXPECT_THAT(out.sample.tokens, ElementsAre(1, 'a', 'b', 2, 2, 'x', 'y', 2));
  example.labels = {"perhaps"};
  expect_error(ErrorKind::kInput, {"'perhaps' is none of no, yes"},
               [&] { ExampleEncoder(tokenizer, format).encode(example); });
}

TEST(ExampleEncoder, GivesTagsToFirstTokens) {
  WordTokenizer tokenizer;
  ExampleFormat format{
      .task = TextTask::kTags, .labels = {"O", "B"}, .weights = {1, 3}, .max_length = 7};
  TextExample example;
  example.words = {"ab", "c", "de", "fg"};
  example.labels = {"O", "B", "B", "O"};
  EncodedExample out = ExampleEncoder(tokenizer, format).encode(example);
  EXPECT_THAT(out.sample.tokens, ElementsAre(1, 'a', 'b', 'c', 'd', 'e', 2));
  EXPECT_THAT(out.word_tokens, ElementsAre(1, 3, 4, -1));
  EXPECT_THAT(out.sample.targets, ElementsAre(-1, 0, -1, 1, 1, -1, -1));
  EXPECT_THAT(out.sample.weights, ElementsAre(0, 1, 0, 3, 3, 0, 0));
}

TEST(ExampleEncoder, FindsAnswers) {
  WordTokenizer tokenizer;
  TempFolder folder;
  const std::string path = folder.write(
      "s.jsonl", R"({"question": "q", "context": "éa bc de", "answers": {"text": ["bc"], )"
                 R"("answer_start": [3]}})");
  auto examples = read_text_examples(path, TextTask::kSpans, {}, true);
  ASSERT_EQ(examples.size(), 1u);
  EXPECT_EQ(examples[0].answer_begin, 4);  // é has two bytes
  ExampleFormat format{.task = TextTask::kSpans, .labels = {}, .max_length = 20};
  EncodedExample out = ExampleEncoder(tokenizer, format).encode(examples[0]);
  EXPECT_EQ(out.first_token, 3);
  EXPECT_EQ(std::get<Ids>(out.sample.fields.at(0).values), Ids{3 + 3});
  EXPECT_EQ(std::get<Ids>(out.sample.fields.at(1).values), Ids{3 + 4});
  EXPECT_EQ(out.begins.at(3), 4);
  EXPECT_EQ(out.ends.at(3), 6);
  format.max_length = 7;
  EXPECT_TRUE(ExampleEncoder(tokenizer, format).encode(examples[0]).answer_cut);
}

TEST(TextExamples, NameTheirColumns) {
  TempFolder folder;
  const std::string path = folder.write("t.tsv", "a\tb\tc\nx\ty\t3\nz\tw\t12\n");
  auto examples = read_text_examples(path, TextTask::kClasses, {"a", "b", "c"}, true);
  EXPECT_EQ(examples[1].pair, "w");
  EXPECT_EQ(label_names(examples), (std::vector<std::string>{"3", "12"}));
  expect_error(ErrorKind::kInput, {"t.tsv:2", "no column 'label'", "a, b, c"}, [&] {
    read_text_examples(path, TextTask::kClasses, {"a", "", ""}, true);
  });
  expect_error(ErrorKind::kInput, {"t.tsv:2", "which is no number"}, [&] {
    read_text_examples(path, TextTask::kNumber, {"a", "", "b"}, true);
  });
}

}  // namespace
}  // namespace bev
