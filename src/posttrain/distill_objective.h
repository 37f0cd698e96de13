// Distillation as a training objective: the divergence of the student's tokens from a teacher's,
// and the cross entropy of their labels, under any layout. The teacher is a frozen model of another
// size on the student's ranks, or what one has left on disk. A micro-batch gets its likeliest
// tokens or, where all tokens count, its final hidden states, from which its logits follow chunk by
// chunk: those of all tokens exist of neither model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/objective.h"
#include "parallel/rank_model.h"
#include "posttrain/objective_rules.h"
#include "posttrain/teacher_logits.h"

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
  RankModel* teacher_ = nullptr;  // null: batches have its likeliest tokens
};

// Runs the teacher over every micro-batch before its step.
class DistillPreparation final : public BatchPreparation {
 public:
  // `kept`: null, or where the likeliest tokens are kept too. All must outlive this object.
  DistillPreparation(const DistillSettings& settings, RankModel& teacher, TeacherLogits* kept)
      : settings_(settings), teacher_(teacher), kept_(kept) {}
  void prepare(std::span<MicroBatch> batches) override;

 private:
  DistillSettings settings_;
  RankModel& teacher_;
  TeacherLogits* kept_;
};

// Gives every micro-batch what a teacher has left on disk. Throws Error(kInput) at a step with a
// sample that is not there.
class StoredPreparation final : public BatchPreparation {
 public:
  StoredPreparation(RankModel& student, const TeacherLogits& logits)
      : student_(student), logits_(logits) {}
  void prepare(std::span<MicroBatch> batches) override;

 private:
  RankModel& student_;
  const TeacherLogits& logits_;
};

}  // namespace bev
