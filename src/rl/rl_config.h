// Flags of reinforcement learning: how many completions are sampled for a step, how they become
// advantages, and the settings of the objective.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/preference_config.h"

namespace bev {

struct RlConfig {
  std::int64_t prompts_per_step = 8;  // of a phase: rollouts with one version of the weights
  std::int64_t num_generations = 8;   // completions of a prompt: a group
  std::int64_t num_iterations = 1;    // passes over the rollouts of a phase
  bool dynamic_sampling = false;      // groups with equal rewards are sampled anew
  std::int64_t max_gen_batches = 10;
  std::int64_t overlong_buffer = 0;  // tokens before the limit that cost
  double overlong_penalty = 1;
  bool mask_truncated_completions = false;
  std::int64_t partial_rollouts = 0;  // tokens of a completion that are sampled at a time; 0: all
  std::int64_t max_inflight_groups = 0;  // with them; 0: twice the prompts of a step
  std::int64_t rollout_max_lag = 1;      // phases between the first token and the update
  std::string env;                       // "": completions have one turn
  std::int64_t max_turns = 8;
  std::string stop;       // text that ends a completion
  std::string label_key;  // "": label, or answer
  std::string rollouts_out, report_html;
  std::int64_t rollout_bank_max_bytes = std::int64_t{1} << 30;
  // Settings of the objective as given; "": its own.
  std::string epsilon_low, epsilon_high, dual_clip, delta, kl, aggregation, advantage_std;
  std::string advantage_eps, leave_one_out, correction, correction_min, correction_max;
  std::string vf_coef, value_clip, gamma, lambda, whiten_advantages, kl_in_reward;

  void fields(FieldList& list);
  // Groups that are sampled at a time by partial rollouts.
  std::int64_t inflight_groups() const {
    return max_inflight_groups > 0 ? max_inflight_groups : 2 * prompts_per_step;
  }
  // Completions of a phase.
  std::int64_t rollouts() const { return prompts_per_step * num_generations; }
  // Both with a batch of an update of `global_batch_size` completions.
  std::vector<std::string> problems(const PreferenceConfig& preferences,
                                    std::int64_t global_batch_size) const;
  std::int64_t steps_per_phase(std::int64_t global_batch_size) const {
    return num_iterations * rollouts() / global_batch_size;
  }
  // --stop with its escapes read.
  std::string stop_text() const;
  // The objective with its settings; problems() must be empty.
  ObjectiveRule rule(const PreferenceConfig& preferences) const;

 private:
  std::vector<std::string> apply(const PreferenceConfig& preferences, ObjectiveRule& rule) const;
  void add_partial_problems(std::vector<std::string>& out) const;
  std::vector<std::string> apply_to_critic(ObjectiveRule& rule) const;
};

}  // namespace bev
