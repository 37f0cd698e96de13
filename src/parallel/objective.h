// Training objective: the terms of the loss, their weights over the global batch, and the names
// under which they are logged. An objective is a small immutable object; the executor calls it on
// the ranks of the last pipeline stage.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/model.h"

namespace bev {

class Objective {
 public:
  virtual ~Objective() = default;

  // Names of the terms as logged; the first is the loss.
  virtual std::vector<std::string> terms() const = 0;
  // Adds the contribution of a micro-batch to the weight of each term. `weights` is summed over all
  // dp and cp ranks, so a contribution that cp ranks share is added by one of them. A step divides
  // the sums of the terms by their weights over the global batch, and the gradient by the weight of
  // the first term: StepState::loss_factor is the loss scale over it.
  virtual void add_weights(const Context& ctx, const MicroBatch& batch,
                           std::span<double> weights) const = 0;
  // Returns the loss [1] of a micro-batch from the outputs of the last stage. Its gradient is
  // seeded with one, so the op that computes it multiplies by StepState::loss_factor. Adds the sums
  // of the terms (f64, on the device) to `sums`, in order; tensor-parallel and context-parallel
  // ranks add their shares, so that the sum over all ranks counts each token once. Other values go
  // to metrics (TrainOptions::metrics, Context::metric).
  virtual Var loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                   std::span<const Var> outputs, double* sums) const = 0;
  // False if loss() reads from the device: such steps are not captured as CUDA graphs.
  virtual bool capturable() const { return true; }
  // True if the loss is a mean over samples: an evaluation of several batches weighs each by its
  // samples rather than by its first weight.
  virtual bool by_samples() const { return false; }
};

// Sees the micro-batches of each step before the engine, and may add fields, such as outputs of a
// reference model.
class BatchPreparation {
 public:
  virtual ~BatchPreparation() = default;
  // Called by all ranks; `batches` are those of this rank.
  virtual void prepare(std::span<MicroBatch> batches) = 0;
};

// Cross entropy of the next token and, with multi-token prediction (MTP), of the later tokens. Aux
// losses of routers are not part of it: the routers add them.
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
