#include "app/reward_flags.h"

#include "base/error.h"
#include "base/fields.h"
#ifdef BEV_HAS_SERVE
#include "serve/http_reward.h"
#endif

namespace bev {

namespace {

bool is_url(const std::string& spec) {
  return spec.starts_with("http://") || spec.starts_with("https://");
}

std::unique_ptr<Reward> make_one(const std::string& spec, const RewardOptions& options) {
  if (!is_url(spec)) return make_reward(spec, options);
#ifdef BEV_HAS_SERVE
  return make_http_reward(spec, options);
#else
  BEV_FAIL(ErrorKind::kConfig, "--reward ", spec,
           ": this build has no HTTP client; build with Boost and OpenSSL, or give exec:COMMAND");
#endif
}

}  // namespace

void RewardFlags::fields(FieldList& list) {
  list.section("reward");
  list.add(
      "reward", reward,
      "what completions are worth: exact, numeric[:TOLERANCE], gsm8k, boxed, math, choice, "
      "regex:PATTERN, format:think, format:PATTERN, length:LEAST-MOST, json:SCHEMA.json, "
      "code[:INTERPRETER] (run before the tests in the label), exec:COMMAND, http://HOST/PATH; "
      "several are added up");
  list.add("reward-weights", reward_weights, "factor of each of them").defaults_to("1");
  list.add("reward-timeout", options.timeout_s, "seconds for the rewards of all rows together")
      .above(0);
  list.add("reward-row-timeout", options.row_timeout_s,
           "seconds for a row at a worker, or for its tests")
      .above(0);
  list.add("reward-workers", options.workers, "processes of exec: and code").min(1).limit(1024);
  list.add("reward-worker-rows", options.worker_rows, "rows that a worker of exec: has at a time")
      .min(1)
      .limit(1 << 16);
  list.add("reward-memory-mb", options.memory_mb, "memory of a process that runs tests").min(16);
  list.add("allow-unsandboxed-code", options.allow_unsandboxed_code,
           "code: run tests without namespaces, where they reach the network and other processes");
}

std::vector<std::string> RewardFlags::problems() const {
  std::vector<std::string> out;
  if (reward.empty()) out.push_back("--reward: is missing; give one, such as --reward numeric");
  if (!reward_weights.empty() && reward_weights.size() != reward.size()) {
    out.push_back(concat("--reward-weights: ", reward_weights.size(), " weights for ",
                         reward.size(), " rewards; give one for each"));
  }
  return out;
}

WeightedRewards make_rewards(const RewardFlags& flags) {
  WeightedRewards out;
  out.weights = flags.reward_weights;
  out.weights.resize(flags.reward.size(), 1);
  for (const std::string& spec : flags.reward) {
    out.rewards.push_back(make_one(spec, flags.options));
  }
  return out;
}

}  // namespace bev
