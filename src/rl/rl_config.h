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
  std::string stop;       // text that ends a completion
  std::string label_key;  // "": label, or answer
  std::string rollouts_out, report_html;
  std::int64_t rollout_bank_max_bytes = std::int64_t{1} << 30;
  // Settings of the objective as given; "": its own.
  std::string epsilon_low, epsilon_high, dual_clip, delta, kl, aggregation, advantage_std;
  std::string advantage_eps, leave_one_out, correction, correction_min, correction_max;

  void fields(FieldList& list);
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
};

}  // namespace bev
