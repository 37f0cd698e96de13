// Rewards of code: a program followed by unit tests, the label of the row, is run; 1 if that
// comes to its end and succeeds, 0 if it does not, none if its time is over.
#pragma once

#include <memory>
#include <string>

#include "reward/reward.h"

namespace bev {

// `interpreter` gets the name of the file. Throws Error(kConfig) if processes cannot be isolated
// here and the options do not allow code without.
std::unique_ptr<Reward> make_code_reward(const std::string& interpreter,
                                         const RewardOptions& options);

// The last block of code between fences of Markdown; the whole text if there is none.
std::string code_of(const std::string& completion);

}  // namespace bev
