// Conversations through the program: chat tokens, and training on them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/run_program.h"
#include "tests/support/temp_folder.h"

namespace bev {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class ChatProgram : public testing::Test {
 protected:
  ChatProgram() {
    write_file(folder_.path("chat.jinja"), read_file(BEV_SOURCE_DIR "/tests/golden/chat/templates/"
                                                                    "chatml_generation.jinja"));
    std::string lines;
    for (int i = 0; i < 24; ++i) {
      char letter = static_cast<char>('a' + i % 4);
      lines += concat(R"({"prompt": "say )", letter, R"(", "response": ")", std::string(4, letter),
                      "\"}\n");
    }
    write_file(folder_.path("chats.jsonl"), lines);
  }
  Outcome run(const std::string& words) {
    return run_shell(folder_, concat(BEV_BINARY_DIR, "/bevatron ", words));
  }

  TempFolder folder_;
};

TEST_F(ChatProgram, TokenizesAChatWithItsMask) {
  write_file(
      folder_.path("m.json"),
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})");
  Outcome outcome = run("tokenize --tokenizer byte --chat m.json --chat-template chat.jinja");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  json result = json::parse(outcome.out);
  EXPECT_EQ(result["text"], "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n");
  std::string said;
  for (std::size_t i = 0; i < result["input_ids"].size(); ++i) {
    if (result["assistant_masks"][i] == 1)
      said.push_back(static_cast<char>(result["input_ids"][i].get<int>()));
  }
  EXPECT_EQ(said, "a<|im_end|>");
  EXPECT_EQ(result["mask_source"], "generation tags");
}

TEST_F(ChatProgram, TokenizesSeveralChatsWithAPromptAndVariables) {
  write_file(
      folder_.path("m.json"),
      R"([[{"role": "user", "content": "1"}], {"messages": [{"role": "user", "content": "2"}]}])");
  write_file(folder_.path("t.jinja"),
             "{{ messages[0].content }}{{ tools|length }}{{ extra }}{{ add_generation_prompt }}");
  write_file(folder_.path("tools.json"), "[{}, {}]");
  Outcome outcome =
      run("tokenize --tokenizer byte --chat m.json --chat-template t.jinja --tools tools.json "
          "--add-generation-prompt --template-kwargs '{\"extra\": [1.0, null]}'");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  json result = json::parse(outcome.out);
  ASSERT_EQ(result.size(), 2u);
  EXPECT_EQ(result[0]["text"], "12[1.0, None]True");
  EXPECT_EQ(result[1]["text"], "22[1.0, None]True");
  EXPECT_EQ(result[0]["assistant_masks"], std::vector<int>(result[0]["input_ids"].size()));
  EXPECT_EQ(result[0]["mask_source"], "provenance");
}

TEST_F(ChatProgram, SaysWhatIsWrong) {
  Outcome outcome = run("tokenize --tokenizer byte --text x --tools t.json");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--chat: is missing"));
  outcome = run("tokenize --tokenizer byte --chat chats.jsonl --chat-template chat.jinja");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("chats.jsonl"));
  outcome = run("train --train-iters 1 --family llama --sft-data chats.jsonl");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--tokenizer: is missing"));
}

TEST_F(ChatProgram, TrainsOnConversations) {
  Outcome outcome =
      run("train --family llama --num-layers 1 --hidden-size 32 --num-attention-heads 2 "
          "--ffn-hidden-size 64 --position-embedding-type rope --normalization RMSNorm --swiglu "
          "--disable-bias-linear --vocab-size 256 --seq-length 150 --micro-batch-size 2 "
          "--global-batch-size 4 --lr 1e-2 --loss-svg '' --train-iters 30 --metrics-out metrics "
          "--sft-data chats.jsonl --sft-valid-data chats.jsonl --eval-interval 30 --eval-iters 1 "
          "--tokenizer byte --chat-template chat.jinja");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("24 conversations in 12 samples of 150 tokens"));
  std::vector<std::string> lines =
      split(std::string(trim(read_file(folder_.path("metrics")))), '\n');
  double first = json::parse(lines.front())["loss"], last = json::parse(lines.back())["loss"];
  EXPECT_GT(first, 5.0);
  EXPECT_LT(last, 1.5);
}

TEST_F(ChatProgram, ShowsTheSamplesOfConversations) {
  Outcome outcome =
      run("data samples --sft-data chats.jsonl --tokenizer byte --chat-template chat.jinja "
          "--seq-length 80 --dump 2");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  json train = json::parse(outcome.out)["train"];
  EXPECT_EQ(train["num_samples"], 24);
  ASSERT_EQ(train["samples"].size(), 2u);
  EXPECT_EQ(train["samples"][0]["tokens"].size(), 80u);
  std::string said;
  for (int label : train["samples"][0]["labels"]) {
    if (label >= 0) said.push_back(static_cast<char>(label));
  }
  EXPECT_THAT(said, testing::MatchesRegex("[abcd]{4}<.im_end.>"));
}

}  // namespace
}  // namespace bev
