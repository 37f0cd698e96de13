// Rewards by an HTTP server in OpenRLHF's form:
//
//   POST {"query": [prompt + completion, ..], "prompts": [..], "labels": [..]}
//   -> {"rewards": [number | null, ..], "extra_logs": {name: [number, ..]}}
#pragma once

#include <memory>
#include <string>

#include "reward/reward.h"

namespace bev {

// `urls`: one or several, separated by commas, which share the rows. A request that fails is sent
// again, to the next server, while there is time. Throws Error(kConfig) for what is no URL.
std::unique_ptr<Reward> make_http_reward(const std::string& urls, const RewardOptions& options);

}  // namespace bev
