// What the ranks of a process share for their rollouts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "chat/chat_template.h"
#include "infer/engine.h"
#include "posttrain/objective_rules.h"
#include "reward/reward.h"
#include "rl/prompts.h"
#include "rl/report_page.h"
#include "rl/rl_config.h"
#include "rl/rollout_bank.h"

namespace bev {

struct RolloutParts {
  RlConfig config;
  ObjectiveRule rule;
  PromptSet prompts;
  std::vector<std::unique_ptr<Reward>> rewards;  // used by world rank 0
  std::vector<double> weights;
  const Tokenizer& tokenizer;
  Request request;          // without prompt
  InferenceOptions engine;  // limits
  RolloutBank bank;
  std::int64_t micro_batch_size = 1, global_batch_size = 1;  // of updates
  double teacher_weight = 1;
  std::unique_ptr<Reward> environment = {};     // of conversations, used by world rank 0; or null
  const ChatTemplate* chat_template = nullptr;  // of its messages
  std::vector<PageSample> samples = {};         // one of each phase; of world rank 0
};

}  // namespace bev
