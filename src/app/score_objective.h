// score --objective: the loss of pairs, labelled rows or rollouts of token ids in a batch file,
// with gradients by their log-probabilities.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/batch.h"
#include "data/preference/preference_file.h"
#include "parallel/rank_model.h"
#include "posttrain/completion_objective.h"

namespace bev {

class ObjectiveScore {
 public:
  // Reads the batch for a model. `has_reference`: a reference model is at hand. Throws
  // Error(kInput) naming what is wrong with the batch or its settings.
  ObjectiveScore(const std::string& name, const std::string& path, const ModelConfig& model,
                 bool has_reference);

  const ObjectiveRule& rule() const { return rule_; }
  const GlobalBatch& batch() const { return batch_; }
  const Objective& objective() const { return *objective_; }
  // What `bevatron objective` says of the log-probabilities of the models, with "logps" and
  // "grad_norm", as JSON; on world rank 0, "" on others. Collective. `reference` may be null.
  // Reward models have "rewards" in place of "logps".
  std::string result(RankModel& policy, RankModel* reference, std::int64_t micro_batch_size,
                     double grad_norm) const;

 private:
  struct Scores;
  Scores score(RankModel& policy, RankModel* reference, std::int64_t micro_batch_size) const;
  void read_policy_batch(const JsonPlace& object, std::int64_t vocab_size, bool has_reference);

  ObjectiveRule rule_;
  GlobalBatch batch_;
  std::vector<std::int64_t> prompt_lengths_;  // of rollouts
  std::unique_ptr<CompletionObjective> objective_;
};

}  // namespace bev
