// Training steps as CUDA graphs: the work of a step is captured once, in parts, and launched again
// for later steps of the same shape. Launching costs the host a few calls instead of one for each
// kernel, so that short steps keep the device busy. The bits are those of the step itself: the same
// kernels run in the same order on the same memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/micro_batch.h"

namespace bev {

class Recording;

// What the kernels of a step follow from, besides the model. Token values, positions and all of
// StepInputs are read on the device and may change.
struct StepShape {
  // Micro-batches that are captured: the first of a step, others, its last. All are alike.
  std::int64_t kinds = 1;
  std::int64_t tokens = 0, samples = 0;
  std::vector<SequenceRows> sequences;
  std::vector<std::int64_t> documents;      // lengths, of the ranks that share them
  std::vector<std::int64_t> expert_tokens;  // of the ranks that share experts
  std::vector<std::int64_t> field_rows;     // of named fields, and their documents
  double clip_grad = 0;
  std::uint64_t all_ranks = 0;  // as they agreed
  bool operator==(const StepShape&) const = default;
};
// Null where the micro-batches are not alike: such a step is not captured. A step of one rank needs
// no last kind: it is the one whose backward starts sums over ranks.
std::unique_ptr<StepShape> shape_of(std::span<const MicroBatch> batches, double clip_grad,
                                    bool one_rank);

// Ranks meet in the collectives of a step while it is captured, and launch it together, so they
// decide alike: by the shapes of all. True where every rank has one (null: this one does not
// capture); then it names them all. Each step once, by all ranks.
bool agree_on_shape(Group& hosts, StepShape* shape);

// What is to be captured.
class StepParts {
 public:
  virtual ~StepParts() = default;
  virtual void first(const MicroBatch& batch, const StepShape& shape) const = 0;  // of the step
  virtual void next(const MicroBatch& batch) const = 0;  // a later micro-batch, once per kind
  virtual void end(double clip_grad) const = 0;          // all that follows the micro-batches
};

// Reads weights and optimizer state while a step is computed.
class StateReader {
 public:
  virtual ~StateReader() = default;
  // Waits until they may change.
  virtual void wait_read() = 0;
};

class StepGraph {
 public:
  // Nothing is computed.
  StepGraph(Context& ctx, StepShape shape, const MicroBatch& like, const StepParts& parts);
  ~StepGraph();

  const StepShape& shape() const { return shape_; }
  // Launches the graphs for micro-batches of the captured shape. Waits for `reader` (may be null)
  // before the optimizer's graph.
  void launch(Context& ctx, std::span<const MicroBatch> batches, StateReader* reader);

 private:
  StepShape shape_;
  MicroBatch batch_;                                       // what the graphs read
  std::vector<std::unique_ptr<Recording>> micro_batches_;  // by kind
  std::unique_ptr<Recording> end_;
};

// The graphs of a run. A step is captured when its shape comes a second time in a row: by then its
// kernels have run, and shapes that never return are not worth it.
class StepGraphs {
 public:
  // The graph for these micro-batches, captured now where it is time to; null: the step runs kernel
  // by kernel. Shapes are those of all ranks, so all find the same. `possible`: this rank may
  // capture now. Every step once, by all ranks.
  StepGraph* find(Context& ctx, std::span<const MicroBatch> batches, double clip_grad,
                  bool possible, const StepParts& parts);
  std::size_t size() const { return graphs_.size(); }

 private:
  std::unique_ptr<StepShape> last_shape_;
  std::vector<std::unique_ptr<StepGraph>> graphs_;
};

}  // namespace bev
