// Rewards by a program of the user. Several processes of it read rows as JSON lines and write
// answers, in any order:
//
//   {"id": 7, "prompt": .., "completion": .., "completion_ids": [..], "label": .., "row": {..},
//    "step": 3}
//   {"id": 7, "reward": 0.5 | null, "metrics": {"name": number}}
//
// Those of an environment read "turn" and "last_turn" too, and answer
//
//   {"id": 7, "reply": "text behind the turn" | "messages": [..]} to go on, or
//   {"id": 7, "done": true, "reward": 0.5 | null} to end the conversation
//
// Other lines are ignored. A worker that ends, or that has a row for longer than the row's time, is
// started again; rows that it had besides go to another one, once.
#pragma once

#include <memory>
#include <string>

#include "reward/reward.h"

namespace bev {

// `command` is run by /bin/sh.
std::unique_ptr<Reward> make_program_reward(const std::string& command,
                                            const RewardOptions& options);

}  // namespace bev
