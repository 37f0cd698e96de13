// Flags that say how completions are rewarded, for `reward` and `rl`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reward/reward.h"

namespace bev {

class FieldList;

struct RewardFlags {
  std::vector<std::string> reward;
  std::vector<double> reward_weights;
  RewardOptions options;

  void fields(FieldList& list);
  std::vector<std::string> problems() const;
};

// Rewards and the weights of their sum.
struct WeightedRewards {
  std::vector<std::unique_ptr<Reward>> rewards;
  std::vector<double> weights;
};
// Throws Error(kConfig) for what is no reward, or cannot be used here.
WeightedRewards make_rewards(const RewardFlags& flags);

}  // namespace bev
