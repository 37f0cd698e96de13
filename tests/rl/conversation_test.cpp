// Turns of a conversation: what was sampled keeps its ids, and replies are not trained on.
#include "rl/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "tokenizer/tokenizer.h"

namespace bev::test {
namespace {

using testing::HasSubstr;

// Gives prepared answers, and keeps what it was asked.
class Spoken final : public Reward {
 public:
  explicit Spoken(std::vector<RowReward> answers) : answers_(std::move(answers)) {}
  std::string name() const override { return "spoken"; }
  bool needs_label() const override { return false; }
  std::vector<RowReward> score(std::span<const RewardRow> rows) override {
    asked.assign(rows.begin(), rows.end());
    return std::vector<RowReward>(answers_.begin(), answers_.begin() + std::ssize(rows));
  }
  std::vector<RewardRow> asked;

 private:
  std::vector<RowReward> answers_;
};

RowReward reply_of(const std::string& text, bool messages = false) {
  RowReward out;
  out.reply = TurnReply{text, messages};
  return out;
}

// Whole words are tokens of their own, which a text with them becomes.
class WordTokenizer final : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    while (!text.empty()) {
      std::size_t best = 0;
      for (std::size_t i = 0; i < kTokens.size(); ++i) {
        bool longer = kTokens[i].size() > kTokens[best].size() || !text.starts_with(kTokens[best]);
        if (text.starts_with(kTokens[i]) && longer) best = i;
      }
      ids.push_back(static_cast<std::int32_t>(best));
      text.remove_prefix(kTokens[best].size());
    }
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string out;
    for (std::int32_t id : ids) out += kTokens[static_cast<std::size_t>(id)];
    return out;
  }
  std::int64_t vocab_size() const override { return std::ssize(kTokens); }
  std::optional<std::int32_t> token_id(std::string_view) const override { return std::nullopt; }
  std::optional<std::string> token_text(std::int32_t id) const override {
    return std::string(kTokens[static_cast<std::size_t>(id)]);
  }

 private:
  static constexpr std::array<std::string_view, 7> kTokens = {"a",      "b",   "ab",     "<end>",
                                                              "<tool>", "aba", "<model>"};
};

struct Talk {
  explicit Talk(std::vector<RowReward> answers) : spoken(std::move(answers)) {}
  // A turn that the model has sampled.
  static SampledRow turn(TokenRow ids, const char* finish = "stop") {
    SampledRow row{.prompt = {2}, .completion = ids, .finish_reason = finish};
    row.sampling_logps = Numbers(ids.size(), -0.5);
    return row;
  }
  bool reply(std::vector<SampledRow>& group) {
    return Conversations({.prompts = prompts,
                          .tokenizer = tokenizer,
                          .chat_template = chat_template,
                          .environment = spoken,
                          .max_turns = 3,
                          .max_tokens = 12,
                          .end_tokens = {3}})
        .reply(std::span(&group, 1), 5);
  }

  static std::vector<PromptRow> rows() {
    return {{.where = "P:1", .prompt = "ab", .columns = "{}"}};
  }

  WordTokenizer tokenizer;
  PromptSet prompts = PromptSet(rows(), tokenizer, nullptr, 9, 1);
  const ChatTemplate* chat_template = nullptr;
  Spoken spoken;
};

TEST(Conversations, KeepTheIdsThatWereSampled) {
  Talk talk({reply_of("abab<model>")});
  const TokenRow sampled = {0, 1, 0, 3};  // "aba" has a token of its own
  ASSERT_NE(talk.tokenizer.encode(talk.tokenizer.decode(sampled)), sampled);
  std::vector<SampledRow> group = {Talk::turn(sampled)};
  EXPECT_TRUE(talk.reply(group));
  EXPECT_EQ(talk.spoken.asked[0].turn, 1);
  EXPECT_EQ(talk.spoken.asked[0].step, 5);
  EXPECT_FALSE(talk.spoken.asked[0].last_turn);
  EXPECT_EQ(group[0].completion, (TokenRow{0, 1, 0, 3, 5, 1, 6}));
  EXPECT_EQ(group[0].mask, (Numbers{1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(group[0].sampling_logps, (Numbers{-0.5, -0.5, -0.5, -0.5, 0, 0, 0}));
  EXPECT_FALSE(group[0].finished());
  EXPECT_EQ(group[0].turns, 2);
  // Nothing is asked about it before its next turn has ended; it still goes on.
  talk.spoken.asked.clear();
  EXPECT_TRUE(talk.reply(group));
  EXPECT_TRUE(talk.spoken.asked.empty());
  group[0].completion.push_back(1);
  group[0].sampling_logps.push_back(-0.5);
  group[0].mask.push_back(1);
  group[0].finish_reason = "stop";
  EXPECT_TRUE(talk.reply(group));
  EXPECT_EQ(TokenRow(group[0].completion.begin(), group[0].completion.begin() + 8),
            (TokenRow{0, 1, 0, 3, 5, 1, 6, 1}));
}

TEST(Conversations, EndWithAReward) {
  RowReward paid;
  paid.reward = 0.5;
  RowReward broken;
  broken.problem = "the worker has ended";
  Talk talk({paid, broken, reply_of("a"), reply_of("ababababababab")});
  std::vector<SampledRow> group = {Talk::turn({0}), Talk::turn({1}), Talk::turn({0}),
                                   Talk::turn({0, 0, 0, 0, 0, 0})};
  group[2].turns = 3;
  EXPECT_FALSE(talk.reply(group));
  EXPECT_EQ(group[0].environment_reward, 0.5);
  EXPECT_TRUE(group[0].finished());
  EXPECT_EQ(group[1].problem, "the worker has ended");
  EXPECT_THAT(group[2].problem, HasSubstr("has replied to turn 3, the last of --max-turns"));
  // A reply for which there is no room ends the completion as it was; its reward is asked for.
  EXPECT_EQ(group[3].completion.size(), 6U);
  EXPECT_TRUE(group[3].truncated());
  ASSERT_EQ(talk.spoken.asked.size(), 1U);
  EXPECT_TRUE(talk.spoken.asked[0].last_turn);
  EXPECT_EQ(group[3].environment_reward, 0.5);
}

TEST(Conversations, TemplatesWriteMessages) {
  Talk talk({reply_of(R"([{"role": "tool", "content": "b"}])", true)});
  ChatTemplate chat(
      jinja::Template("{% for m in messages %}{% if m.role == 'tool' %}<tool>{% endif %}"
                      "{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<model>"
                      "{% endif %}",
                      "chat"),
      {});
  std::vector<SampledRow> group = {Talk::turn({0, 1, 3})};
  EXPECT_THROW(talk.reply(group), Error);  // there is no template
  group = {Talk::turn({0, 1, 3})};
  talk.chat_template = &chat;
  EXPECT_TRUE(talk.reply(group));
  // The model's own end of turn is not written again.
  EXPECT_EQ(group[0].completion, (TokenRow{0, 1, 3, 4, 1, 3, 6}));
}

}  // namespace
}  // namespace bev::test
