// Distillation as a training objective: the divergence of the student's tokens from a teacher's,
// and the cross entropy of their labels, under any layout. The teacher is a frozen model of another
// size on the student's ranks; what it gives a micro-batch are its final hidden states, from which
// its logits follow chunk by chunk, so that those of all tokens exist of neither model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/objective.h"
#include "parallel/rank_model.h"
#include "posttrain/objective_rules.h"

namespace bev {

// Batches must have been prepared by a DistillPreparation. Tokens count as their targets do.
class DistillObjective final : public Objective {
 public:
  explicit DistillObjective(const DistillSettings& settings) : settings_(settings) {}
  std::vector<std::string> terms() const override;
  void add_weights(const Context& ctx, const MicroBatch& batch,
                   std::span<double> weights) const override;
  Var loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
           std::span<const Var> outputs, double* sums) const override;
  bool capturable() const override { return false; }

  // The model whose hidden states batches have; set once, before the first step.
  void set_teacher(RankModel& teacher) { teacher_ = &teacher; }

 private:
  DistillSettings settings_;
  RankModel* teacher_ = nullptr;
};

// Runs the teacher over every micro-batch before its step.
class DistillPreparation final : public BatchPreparation {
 public:
  explicit DistillPreparation(RankModel& teacher) : teacher_(teacher) {}
  void prepare(std::span<MicroBatch> batches) override;

 private:
  RankModel& teacher_;
};

}  // namespace bev
