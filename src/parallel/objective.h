// What a model is trained for: the terms of the loss, their weights over the global batch, and the
// names under which they are logged. An objective is a small constant object; the executor calls it
// on the ranks of the last pipeline stage.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/model.h"

namespace bev {

class Objective {
 public:
  virtual ~Objective() = default;

  // Names of its terms, as the log has them; the first is the loss.
  virtual std::vector<std::string> terms() const = 0;
  // Adds a micro-batch's share in the weight of each term to `weights`: those of all dp and cp
  // ranks are summed, so what the ranks of cp have in common is added by one of them. In the global
  // batch they are what a step divides the terms' sums by. The gradient is divided by the first:
  // StepState::loss_factor is the loss scale over it.
  virtual void add_weights(const Context& ctx, const MicroBatch& batch,
                           std::span<double> weights) const = 0;
  // Loss [1] of a micro-batch from the last stage's outputs, for the tape: its gradient is seeded
  // with one, so the op that makes it multiplies by StepState::loss_factor. The sums of the terms
  // (f64, on the device) are added to `sums`, in their order; a tensor-parallel or context-parallel
  // rank adds its share, so that the sum over all ranks counts everything once. What else is to be
  // told goes to metrics of its own (TrainOptions::metrics, Context::metric).
  virtual Var loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                   std::span<const Var> outputs, double* sums) const = 0;
  // False where loss() reads from the device: such steps are not captured as CUDA graphs.
  virtual bool capturable() const { return true; }
};

// Cross entropy of the next token, with that of later tokens where the model has depths of
// multi-token prediction (MTP). Losses that routers add are theirs.
class NextToken final : public Objective {
 public:
  explicit NextToken(const ModelConfig& model) : depths_(model.mtp_num_layers) {}
  std::vector<std::string> terms() const override;
  void add_weights(const Context& ctx, const MicroBatch& batch,
                   std::span<double> weights) const override;
  Var loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
           std::span<const Var> outputs, double* sums) const override;

 private:
  std::int64_t depths_;
};

}  // namespace bev
