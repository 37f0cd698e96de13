// SFT dataset: conversations as training data.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "base/file.h"
#include "chat/jinja/value_text.h"
#include "data/sft/sft_dataset.h"
#include "data/sft/sft_pack.h"
#include "tests/support/archives.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

constexpr const char* kMarked =
    "{% for m in messages %}<{{ m.role[0] }}>{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}.{% endgeneration %}{% else %}{{ m.content }}.{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}";
constexpr const char* kPlain =
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}.{% endfor %}"
    "{% if add_generation_prompt %}<a>{% endif %}";
constexpr const char* kTwoTurns =
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "aä"},
        {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}]})";

ChatTemplate make_template(const char* text) { return {jinja::Template(text, "t"), {}}; }

SftTokens encode(const std::string& line, const char* text) {
  return encode_sft_row(read_sft_row(line, "row"), make_template(text), *open_tokenizer("byte"));
}

// The text with tokens outside the loss as underscores.
std::string learned_text(const SftTokens& tokens) {
  std::string out;
  for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
    out.push_back(tokens.learned[i] ? static_cast<char>(tokens.ids[i]) : '_');
  }
  return out;
}

std::string roles_and_contents(const std::string& line) {
  std::string out;
  SftRow row = read_sft_row(line, "row");
  for (const jinja::Value& message : row.messages.sequence()->items) {
    out += *message.dict()->find_name("role")->string() + ":" +
           jinja::python_str(*message.dict()->find_name("content")) + "|";
  }
  return out;
}

TEST(SftRows, UnderstandsTheUsualLayouts) {
  EXPECT_EQ(roles_and_contents(R"({"prompt": "p", "response": "r"})"), "user:p|assistant:r|");
  EXPECT_EQ(roles_and_contents(R"({"prompt": "p", "completion": "c", "system": "s"})"),
            "system:s|user:p|assistant:c|");
  EXPECT_EQ(roles_and_contents(R"({"prompt": [{"role": "user", "content": "p"}],
                                   "completion": [{"role": "assistant", "content": "c"}]})"),
            "user:p|assistant:c|");
  EXPECT_EQ(roles_and_contents(R"({"instruction": "i", "input": "", "output": "o"})"),
            "user:i|assistant:o|");
  EXPECT_EQ(roles_and_contents(R"({"instruction": "i", "input": "n", "output": "o"})"),
            "user:i\n\nn|assistant:o|");
  EXPECT_EQ(roles_and_contents(R"({"conversations": [{"from": "human", "value": "h"},
                                   {"from": "gpt", "value": "g"}, {"role": "tool", "content": "t"}]})"),
            "user:h|assistant:g|tool:t|");
  // Dolly's names, LLaMA-Factory's calls and a system prompt of its own.
  EXPECT_EQ(roles_and_contents(R"({"instruction": "i", "context": "c", "response": "r",
                                   "category": "x"})"),
            "user:i\n\nc|assistant:r|");
  EXPECT_EQ(roles_and_contents(R"({"system": "s", "conversations": [{"from": "human", "value": "h"},
                                   {"from": "function_call", "value": "f"}]})"),
            "system:s|user:h|assistant:f|");
  EXPECT_EQ(roles_and_contents(R"({"system": "s", "messages": [{"role": "system", "content": "own"},
                                   {"role": "user", "content": "u"}]})"),
            "system:own|user:u|");
}

TEST(SftRows, AConversationMayBeEmpty) {
  for (const char* line : {R"({"messages": []})", R"({"messages": null})",
                           R"({"conversations": []})", R"({"messages": [], "system": "s"})"}) {
    EXPECT_EQ(roles_and_contents(line), "") << line;
  }
  // Null is like absent where there is another layout.
  EXPECT_EQ(roles_and_contents(R"({"messages": null, "prompt": "p", "response": "r"})"),
            "user:p|assistant:r|");
}

TEST(SftRows, ToolsMayBeTextOfJson) {
  SftRow row = read_sft_row(R"({"messages": [], "tools": "[{\"name\": \"f\"}]"})", "row");
  ASSERT_TRUE(row.tools.is_sequence());
  expect_error(ErrorKind::kInput, {"row", "tools"},
               [] { read_sft_row(R"({"messages": [], "tools": "no json"})", "row"); });
}

TEST(SftRows, NamesWhatIsWrongAndWhere) {
  auto fails = [](const std::string& line, const std::string& part) {
    expect_error(ErrorKind::kInput, {"f.jsonl, line 3", part},
                 [&] { read_sft_row(line, "f.jsonl, line 3"); });
  };
  fails("{", "JSON");
  fails("[]", "not a JSON object");
  fails("{}", "no messages");
  fails(R"({"messages": "x"})", "no list");
  fails(R"({"messages": [{"content": "x"}]})", "message 0 has no role");
  fails(R"({"messages": ["x"]})", "message 0 has no role");
  fails(R"({"prompt": "x"})", "\"response\" is missing");
  fails(R"({"prompt": 5, "response": "x"})", "\"prompt\" is no text");
  fails(R"({"instruction": "x"})", "\"output\" is missing");
  fails(R"({"conversations": [{"from": "martian", "value": "x"}]})", "martian");
  fails(R"({"conversations": [{"from": "human"}]})", "no from and value");
}

TEST(SftEncode, LearnsTheAnswersOnly) {
  EXPECT_EQ(learned_text(encode(kTwoTurns, kMarked)),
            "________a\xc3\xa4._"
            "_______b.");
}

TEST(SftEncode, ProvenanceAndMarksAgree) {
  SftTokens marked = encode(kTwoTurns, kMarked), plain = encode(kTwoTurns, kPlain);
  EXPECT_EQ(marked.ids, plain.ids);
  EXPECT_EQ(marked.learned, plain.learned);
}

TEST(SftEncode, AnAnswerMayComeFirst) {
  SftTokens tokens = encode(R"({"messages": [{"role": "assistant", "content": "x"}]})", kPlain);
  EXPECT_EQ(learned_text(tokens), "___x.");
}

TEST(SftEncode, TemplatesMayRewriteThePast) {
  const char* rewrites =
      "{% for m in messages %}{{ m.role[0] }}:{% if loop.last or m.role != 'assistant' %}"
      "{{ m.content }}{% else %}...{% endif %}{% endfor %}";
  EXPECT_EQ(learned_text(encode(kTwoTurns, rewrites)), "_____..._____b");
}

TEST(SftEncode, RefusesATemplateThatDoesNotWriteTheAnswer) {
  const char* forgets = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}";
  expect_error(ErrorKind::kInput, {"t: the loss mask is all zeros", "--chat-template"},
               [&] { encode(kTwoTurns, forgets); });
  const char* marks_nothing =
      "{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}";
  expect_error(ErrorKind::kInput, {"t: the loss mask is all zeros", "{% generation %}"},
               [&] { encode(kTwoTurns, marks_nothing); });
}

TEST(SftPack, FillsBinsAndLosesNothing) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 500; ++i) lengths.push_back(1 + i * 7919 % 100);
  auto bins = pack_lengths(lengths, 100);
  std::vector<int> seen(lengths.size());
  for (const auto& bin : bins) {
    std::int64_t total = 0;
    for (std::size_t at : bin) {
      total += lengths[at];
      ++seen[at];
    }
    EXPECT_LE(total, 100);
    EXPECT_TRUE(std::ranges::is_sorted(bin));
  }
  EXPECT_EQ(seen, std::vector<int>(lengths.size(), 1));
  std::int64_t all = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  EXPECT_LE(static_cast<std::int64_t>(bins.size()), all / 100 + 3);  // almost no space is wasted
  EXPECT_EQ(pack_lengths({}, 5).size(), 0u);
}

class SftFile : public testing::Test {
 protected:
  SftFile() {
    std::string lines;
    for (int i = 0; i < 40; ++i) {
      lines += concat(R"({"prompt": "p)", i, R"(", "response": ")",
                      std::string(static_cast<std::size_t>(i % 9), 'r'), "\"}\n");
    }
    write_file(path_, lines + "\r\n  \n");
    config_.files = {path_};
    config_.seq_length = 40;
    config_.seed = 5;
  }
  SftDataset open() { return {config_, *tokenizer_, make_template(kPlain)}; }

  TempFolder folder_;
  std::string path_ = folder_.path("chats.jsonl");
  std::unique_ptr<Tokenizer> tokenizer_ = open_tokenizer("byte");
  SftConfig config_;
};

TEST_F(SftFile, EveryAnswerIsLearnedOnceAnEpoch) {
  SftDataset data = open();
  for (std::int64_t epoch : {0, 1, 7}) {
    std::multiset<std::string> answers;
    for (std::int64_t i = 0; i < data.num_samples(); ++i) {
      TokenSample sample = data.sample(epoch * data.num_samples() + i);
      ASSERT_EQ(sample.tokens.size(), 40u);
      ASSERT_EQ(std::accumulate(sample.documents.begin(), sample.documents.end(), 0), 40);
      std::size_t at = 0;
      for (std::int32_t length : sample.documents) {
        std::string answer;
        for (std::int32_t t = 0; t < length; ++t, ++at) {
          bool learned = sample.targets[at] >= 0;
          ASSERT_EQ(sample.weights[at], learned ? 1.0f : 0.0f);
          if (!learned) continue;
          ASSERT_LT(t + 1, length);  // no target crosses the end of its conversation
          ASSERT_EQ(sample.targets[at], sample.tokens[at + 1]);
          answer.push_back(static_cast<char>(sample.targets[at]));
        }
        if (!answer.empty()) answers.insert(answer);
      }
    }
    std::multiset<std::string> expected;
    for (int i = 0; i < 40; ++i)
      expected.insert(std::string(static_cast<std::size_t>(i % 9), 'r') + ".");
    EXPECT_EQ(answers, expected);
  }
}

TEST_F(SftFile, TheOrderIsAFunctionOfTheSeed) {
  SftDataset a = open(), b = open();
  config_.seed = 6;
  SftDataset other = open();
  config_.shuffle = false;
  SftDataset unshuffled = open();
  bool differs = false, epochs_differ = false;
  for (std::int64_t i = 0; i < a.num_samples(); ++i) {
    EXPECT_EQ(a.sample(i).tokens, b.sample(i).tokens);
    differs |= a.sample(i).tokens != other.sample(i).tokens;
    epochs_differ |= a.sample(i).tokens != a.sample(i + a.num_samples()).tokens;
    EXPECT_EQ(unshuffled.sample(i).tokens, unshuffled.sample(i + a.num_samples()).tokens);
  }
  EXPECT_TRUE(differs);
  EXPECT_TRUE(epochs_differ);
}

TEST_F(SftFile, LongConversationsAreCutOrDroppedAndCounted) {
  config_.seq_length = 14;
  SftDataset cut = open();
  EXPECT_EQ(cut.report().conversations, 40);
  EXPECT_GT(cut.report().cut, 0);
  EXPECT_EQ(cut.report().dropped_long, 0);
  config_.too_long = TooLong::kDrop;
  SftDataset dropped = open();
  EXPECT_EQ(dropped.report().dropped_long, cut.report().cut);
  EXPECT_NE(to_text(dropped.report(), 14).find("longer than 14 tokens"), std::string::npos);
  config_.seq_length = 4;
  expect_error(ErrorKind::kInput, {"chats.jsonl", "none has an answer"}, [&] { open(); });
  config_.too_long = TooLong::kCut;
  expect_error(ErrorKind::kInput, {"40 have no answer within them"}, [&] { open(); });
}

TEST_F(SftFile, ArchivesFoldersAndPatternsAreTheSame) {
  std::vector<std::int32_t> expected = open().sample(3).tokens;
  const std::string lines = read_file(path_);
  const std::size_t half = lines.find("{\"prompt\": \"p20");
  ASSERT_NE(half, lines.npos);
  folder_.write("split/1.jsonl.gz", gzip(lines.substr(0, half)));
  folder_.write("split/2.zst", zstd(lines.substr(half)));
  for (const std::string& name : {folder_.path("split"), folder_.path("split/[12].*")}) {
    config_.files = {name};
    EXPECT_EQ(open().sample(3).tokens, expected) << name;
  }
  config_.files = {folder_.path("split")};
  folder_.write("split/3.jsonl.gz", gzip("{\"prompt\": \"a\", \"response\": \"b\"}\n{}\n"));
  expect_error(ErrorKind::kInput, {"3.jsonl.gz, line 2"}, [&] { open(); });
}

TEST_F(SftFile, ArraysAndParquetAreTheSame) {
  std::vector<std::int32_t> expected = open().sample(3).tokens;
  std::string array = "[";
  for (const std::string& line : split(read_file(path_), '\n')) {
    if (trim(line).empty()) continue;
    array += concat(array.size() > 1 ? ",\n" : "", line);
  }
  config_.files = {folder_.write("chats.json", array + "]")};
  EXPECT_EQ(open().sample(3).tokens, expected);
  const std::string golden = BEV_SOURCE_DIR "/tests/golden/parquet/";
  config_.shuffle = false;
  config_.files = {golden + "chats.jsonl"};
  std::vector<std::int32_t> rows = open().sample(0).tokens;
  for (const char* name : {"snappy_v1", "zstd_v2", "gzip_plain", "none_pages", "plain_v2"}) {
    config_.files = {concat(golden, "chats_", name, ".parquet")};
    SftDataset data = open();
    EXPECT_EQ(data.sample(0).tokens, rows) << name;
    EXPECT_EQ(data.report().conversations, 24);
    EXPECT_EQ(data.report().empty, 5);
    EXPECT_NE(to_text(data.report(), 40).find("5 left out, being empty"), std::string::npos);
  }
}

// Rows are encoded in blocks of a few thousand.
TEST_F(SftFile, ManyConversationsStayInOrder) {
  std::string lines;
  for (int i = 0; i < 9000; ++i)
    lines += concat(R"({"prompt": ")", i, R"(", "response": "r"})", "\n");
  config_.shuffle = false;
  write_file(path_, lines);
  SftDataset data = open();
  EXPECT_EQ(data.report().conversations, 9000);
  std::multiset<std::string> prompts;
  for (std::int64_t i = 0; i < data.num_samples(); ++i) {
    TokenSample sample = data.sample(i);
    std::string text(sample.tokens.begin(), sample.tokens.end());
    for (std::size_t at = text.find("<u>"); at != text.npos; at = text.find("<u>", at + 1)) {
      prompts.insert(text.substr(at + 3, text.find('.', at) - at - 3));
    }
  }
  EXPECT_EQ(prompts.size(), 9000u);
  for (int i : {0, 4095, 4096, 8191, 8192, 8999}) EXPECT_EQ(prompts.count(concat(i)), 1u) << i;
  write_file(path_, lines + "{\"prompt\": 1}\n");
  expect_error(ErrorKind::kInput, {"line 9001"}, [&] { open(); });
}

TEST_F(SftFile, ErrorsNameFileAndLine) {
  write_file(path_, "{\"prompt\": \"a\", \"response\": \"b\"}\n\n{\"prompt\": \"a\"}\n{}\n");
  expect_error(ErrorKind::kInput, {"chats.jsonl, line 3", "response"}, [&] { open(); });
  write_file(path_, "{\"messages\": [{\"role\": \"user\"}]}\n");
  EXPECT_THROW(open(), Error);  // nothing to train on
  config_.vocab_size = 100;
  write_file(path_, "{\"prompt\": \"a\", \"response\": \"zz\"}\n");
  expect_error(ErrorKind::kInput, {"token 122", "100"}, [&] { open(); });
  write_file(path_, "");
  expect_error(ErrorKind::kInput, {"of 0 conversations"}, [&] { open(); });
}

}  // namespace
}  // namespace bev
