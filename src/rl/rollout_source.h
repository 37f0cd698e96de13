// The batches of reinforcement learning. A phase samples completions of the next prompts with the
// inference engine, on the parameters that the run trains, rewards them, scores them under the
// policy and the reference, and turns rewards into advantages; the updates that follow train on
// them.
//
//   phase:   sample -> reward -> log-probabilities -> advantages -> bank
//   updates: [rows of the phase, cut into batches] x num_iterations
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "parallel/engine.h"
#include "posttrain/completion_objective.h"
#include "rl/conversation.h"
#include "rl/rollout.h"
#include "rl/rollout_parts.h"
#include "rl/sampler.h"
#include "train/step_source.h"

namespace bev {

class SharedNumbers;

class RolloutSource final : public StepSource {
 public:
  // `reference`: null: the policy without its adapters, if the objective has a reference. All must
  // outlive this object, which becomes the engine's preparation.
  RolloutSource(Engine& engine, RolloutParts& parts, RankModel* reference,
                RankModel* teacher = nullptr);

  StepBatch next(std::int64_t iteration) override;
  const std::vector<Metric>& metrics() const override { return metrics_; }

 private:
  RankModel& model() { return engine_.model(); }
  Group& world() { return model().mesh().world().host(); }
  bool first() { return model().mesh().world().rank() == 0; }

  // Sets phase_: from the bank, or sampled. `begun`: updates with it are done.
  void begin_phase(std::int64_t number, std::int64_t step, bool begun);
  RolloutPhase sample(std::int64_t number, std::int64_t step);
  // Where the phase before has ended. Null: this is the first one.
  std::optional<RolloutPhase> phase_before(std::int64_t number);
  std::int64_t first_prompt(std::int64_t number);
  // The groups of the next prompts, complete on world rank 0.
  std::vector<std::vector<SampledRow>> sample_groups(std::int64_t place, std::int64_t step);
  // What the environment says; false if no conversation goes on.
  bool reply(std::span<std::vector<SampledRow>> groups, std::int64_t step) const;
  // Those that end first among the groups under way; the others are carried to the next phase.
  std::vector<std::vector<SampledRow>> sample_partly(RolloutPhase& phase);
  void restart_old_groups(RolloutPhase& phase) const;
  void reward(std::span<std::vector<SampledRow>> groups, std::int64_t step);
  void reward_without_functions(std::span<std::vector<SampledRow>> groups, std::int64_t step);
  void add_environment(SampledRow& row) const;
  void warn_of_missing(std::span<const std::vector<SampledRow>> groups, std::int64_t step) const;
  // Keeps the groups that the phase uses; false if more must be sampled.
  bool take(std::vector<std::vector<SampledRow>> groups, RolloutPhase& phase) const;
  void score(RolloutPhase& phase);
  std::vector<Numbers> completion_logps(RankModel& by, const std::vector<SampledRow>& rows,
                                        std::vector<Numbers>* values = nullptr);
  void share(RolloutPhase& phase);
  void record(const RolloutPhase& phase);
  void keep_sample(const RolloutPhase& phase);
  bool agreed(bool on_first);
  void share_with_all(FunctionRef<void(SharedNumbers& numbers)> pass);

  Engine& engine_;
  RolloutParts& parts_;
  RankModel *reference_, *teacher_;
  CompletionPreparation preparation_;
  RolloutSampler sampler_;
  RolloutPhase phase_;  // number -1: none
  std::vector<Metric> metrics_;
  bool recorded_ = false;  // --rollouts-out has been opened
};

}  // namespace bev
