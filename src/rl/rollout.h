// Completions sampled by a run: what they are, how they become advantages, metrics, and lines of
// JSON.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/metrics.h"
#include "data/preference/preference_sample.h"
#include "posttrain/objectives.h"
#include "rl/rl_config.h"

namespace bev {

struct SampledRow {
  std::int64_t group = 0;  // place of the prompt in the order of the run
  std::int64_t index = 0;  // in the group
  TokenRow prompt = {}, completion = {};
  // One number for each token of the completion; most may be empty. Of the mask: 0 for what an
  // environment has said; empty: all are sampled.
  Numbers mask = {};
  Numbers sampling_logps = {}, old_logps = {}, ref_logps = {}, teacher_logps = {};
  Numbers values = {}, returns = {}, token_advantages = {};  // with a critic
  std::string text = {};                                     // of the completion
  double score = std::numeric_limits<double>::quiet_NaN();   // of the reward functions; NaN: none
  double reward = std::numeric_limits<double>::quiet_NaN();  // with shaping
  double advantage = 0;
  std::vector<std::pair<std::string, double>> rewards = {};  // by function
  std::string problem = {};                                  // why there is no score
  std::int64_t weights_version = 0;
  std::string finish_reason = {};  // "stop", "length"; "": it has no end yet
  std::int64_t turns = 1;          // of a conversation
  bool closed = false;             // its environment has nothing more to say
  double environment_reward = std::numeric_limits<double>::quiet_NaN();  // NaN: none
  bool finished() const { return !finish_reason.empty(); }
  // Whether a token was sampled.
  bool sampled(std::size_t token) const { return mask.empty() || mask[token] != 0; }
  bool truncated() const { return finish_reason == "length"; }
};

// Rollouts with one version of the weights, for one or several updates.
struct RolloutPhase {
  std::int64_t number = 0;        // from 0
  std::int64_t step = 0;          // the first iteration that uses it
  std::int64_t next_prompt = 0;   // where the next phase begins in the order of prompts
  std::int64_t groups_tried = 0;  // by dynamic sampling
  std::vector<SampledRow> rows = {};
  // Groups that were begun for later phases, some of their rows without an end.
  std::vector<std::vector<SampledRow>> carried = {};
  std::int64_t groups_restarted = 0;  // that had become too old
  std::int64_t weights_version = 0;   // when it begins
};

// Whether all scores of the rows are equal, or none has one.
bool all_equal(const std::vector<SampledRow>& group);
// What a completion of so many tokens loses: 0 down to -penalty within the last `buffer` tokens
// before `longest`.
double overlong_reward(std::int64_t tokens, std::int64_t longest, std::int64_t buffer,
                       double penalty);
// Sets rewards from scores, and advantages; with a critic returns and advantages of tokens.
void set_advantages(const RlConfig& config, const ObjectiveRule& rule, std::int64_t longest,
                    std::vector<SampledRow>& rows);
// The rollout as the objective takes it. A teacher adds to the advantage of each token.
TokenSample sample_of(const SampledRow& row, bool mask_truncated, double teacher_weight = 1);

// Metrics of a phase under TRL's names.
std::vector<Metric> phase_metrics(const RolloutPhase& phase);

// One line of --rollouts-out, without newline.
std::string row_json(const RolloutPhase& phase, const SampledRow& row);
// A phase as a file, and back; numbers keep all bits. `settings` is what the rollouts depend on
// besides the weights. Throws Error(kInput) naming the file.
std::string phase_text(const RolloutPhase& phase, std::string_view settings);
struct StoredPhase {
  RolloutPhase phase;
  std::string settings;
};
StoredPhase read_phase(const std::string& path);

}  // namespace bev
