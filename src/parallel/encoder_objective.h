// Losses of encoders: masked tokens and the next-sentence head, or the head for labels.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel/objective.h"

namespace bev {

// Masked tokens: the mean cross entropy of the tokens that have a label ("lm loss"), plus that of
// the pairs ("sop loss") if the model has a next-sentence head. Labels of tokens and of sequences:
// their weighted mean, the weight of a sequence being that of its first token; one label is a
// number, with the squared error. Spans: the mean of the cross entropies of begin and end.
class EncoderObjective final : public Objective {
 public:
  explicit EncoderObjective(const ModelConfig& model);
  std::vector<std::string> terms() const override;
  void add_weights(const Context& ctx, const MicroBatch& batch,
                   std::span<double> weights) const override;
  Var loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
           std::span<const Var> outputs, double* sums) const override;
  bool capturable() const override;

 private:
  bool pairs() const { return model_.next_sentence; }
  bool numbers() const;  // regression
  Var masked_tokens(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                    const Var& hidden, double* sums) const;
  Var sentence_pairs(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                     const Var& hidden, double* sums) const;
  Var labels(Context& ctx, const ModelStage& stage, const MicroBatch& batch, const Var& hidden,
             double* sums) const;

  EncoderConfig model_;
  std::int64_t num_labels_;
};

// Gives every pair its weight relative to the masked tokens of the global batch.
class PairWeights final : public BatchPreparation {
 public:
  // The context must outlive it.
  explicit PairWeights(Context& ctx, const ModelConfig& model)
      : ctx_(ctx), masks_(model.has_output_layer()) {}
  void prepare(std::span<MicroBatch> batches) override;

 private:
  Context& ctx_;
  bool masks_;
};

// The loss of a model without another objective: of the next token, or of an encoder.
std::unique_ptr<Objective> default_objective(const ModelConfig& model);

}  // namespace bev
