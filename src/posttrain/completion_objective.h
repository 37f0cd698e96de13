// Objectives over completions as training objectives: preferences, KTO and policy gradients of
// their log-probabilities, and rewards by a head of one label (posttrain/objectives.h), under any
// layout. What is true of a global batch as a
// whole (its counts, the kl of KTO, log-probabilities of a reference) becomes fields of the
// micro-batches before a step, so that a loss needs nothing but its micro-batch.
#pragma once

#include <string>
#include <vector>

#include "parallel/objective.h"
#include "parallel/rank_model.h"
#include "posttrain/objective_rules.h"

namespace bev {

// What the batches of a run have besides completions.
struct CompletionInputs {
  bool reference = false;  // reference log-probabilities: from a model, or with the data
  bool sampling = false;   // log-probabilities of the sampler
};

// The first weight of a batch is its tokens, by which losses of routers are divided too. Batches
// must have been prepared by a CompletionPreparation.
class CompletionObjective final : public Objective {
 public:
  CompletionObjective(const ObjectiveRule& rule, const CompletionInputs& inputs);
  std::vector<std::string> terms() const override { return terms_; }
  void add_weights(const Context& ctx, const MicroBatch& batch,
                   std::span<double> weights) const override;
  Var loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
           std::span<const Var> outputs, double* sums) const override;
  bool capturable() const override { return false; }
  bool by_samples() const override { return true; }

  struct Evaluated;

 private:
  Evaluated evaluate(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                     const Tensor& values, const Tensor& critic) const;

  ObjectiveRule rule_;
  std::vector<std::string> terms_;
};

class CompletionPreparation final : public BatchPreparation {
 public:
  // `reference` computes log-probabilities where batches have none; null: they are 0. If it is the
  // policy, it computes them without its adapters. Both models must outlive this object.
  CompletionPreparation(const ObjectiveRule& rule, RankModel& policy, RankModel* reference);
  void prepare(std::span<MicroBatch> batches) override;

 private:
  void set_scales(std::span<MicroBatch> batches);
  void add_reference(std::span<MicroBatch> batches);
  void add_kl(std::span<MicroBatch> batches);

  ObjectiveRule rule_;
  RankModel& policy_;
  RankModel* reference_;
};

}  // namespace bev
