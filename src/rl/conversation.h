// Completions of several turns: an environment, a program of the user's such as one that runs
// tools, reads what the model has said and replies, and the model goes on behind the reply. Ids of
// earlier turns stay as they were sampled: only replies are tokenised, and they have no part in the
// loss.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "reward/reward.h"
#include "rl/prompts.h"
#include "rl/rollout.h"

namespace bev {

struct ConversationRules {
  const PromptSet& prompts;
  const Tokenizer& tokenizer;
  const ChatTemplate* chat_template = nullptr;  // null: replies are texts
  Reward& environment;
  std::int64_t max_turns = 1, max_tokens = 0;  // behind the prompt
  std::vector<std::int32_t> end_tokens = {};   // with which the model ends a turn
};

class Conversations {
 public:
  explicit Conversations(const ConversationRules& rules) : rules_(rules) {}

  // Asks the environment about all rows whose turn has ended. Rows that it replies to have no end
  // any more, and the reply behind their completion; the others keep the score that it gave, if
  // any. False if no row goes on.
  bool reply(std::span<std::vector<SampledRow>> groups, std::int64_t step);

 private:
  bool ask(std::span<std::vector<SampledRow>> groups, std::int64_t step);
  bool ended_turn(const SampledRow& row) const;
  RewardRow question(const SampledRow& row, std::int64_t step) const;
  void take(RowReward& answer, SampledRow& row) const;
  TokenRow reply_ids(const TurnReply& reply, const SampledRow& row) const;
  std::string rendered(const std::string& messages, const SampledRow& row) const;

  ConversationRules rules_;
};

}  // namespace bev
