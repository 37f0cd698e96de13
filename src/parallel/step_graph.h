// Training steps as CUDA graphs: the kernels of a step are captured once, in several graphs, and
// launched again for later steps of the same shape. A launch costs the host a few calls instead of
// one per kernel, so that short steps keep the device busy. Results are bitwise those of the eager
// step: the same kernels run in the same order on the same memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ops/micro_batch.h"

namespace bev {

class DeviceGraph;

// Everything that the kernels of a step depend on, apart from the model. Token values, positions
// and StepInputs are read on the device and may change.
struct StepShape {
  // Number of micro-batch graphs: the first of a step, the middle ones, the last. All have one
  // shape.
  std::int64_t kinds = 1;
  std::int64_t tokens = 0, samples = 0;
  std::vector<SequenceRows> sequences;
  std::vector<std::int64_t> documents;      // document lengths, over the ranks that share them
  std::vector<std::int64_t> expert_tokens;  // over the ranks that share experts
  std::vector<std::int64_t> field_rows;     // rows of the named fields, and of their documents
  double clip_grad = 0;
  std::uint64_t all_ranks = 0;  // agreed hash of all ranks' shapes
  bool operator==(const StepShape&) const = default;
};
// Returns null if the micro-batches have different shapes: such a step is not captured. On a single
// rank the last micro-batch needs no graph of its own, because its backward starts no gradient
// reduction.
std::unique_ptr<StepShape> shape_of(std::span<const MicroBatch> batches, double clip_grad,
                                    bool one_rank);

// Ranks run collectives while a step is captured, and launch it together, so they must take the
// same decision. Returns true if every rank has a shape (null: this rank does not capture), and
// stores the hash of all shapes in `shape`. Collective, once per step.
bool agree_on_shape(Group& hosts, StepShape* shape);

// The parts of a step to capture.
class StepParts {
 public:
  virtual ~StepParts() = default;
  // The first micro-batch of the step, a later one (once per kind), and everything after them.
  virtual void first(const MicroBatch& batch, const StepShape& shape) const = 0;
  virtual void next(const MicroBatch& batch) const = 0;
  virtual void end(double clip_grad) const = 0;
};

// A concurrent reader of weights and optimizer state, such as a checkpoint being written.
class StateReader {
 public:
  virtual ~StateReader() = default;
  // Waits until the state may change.
  virtual void wait_read() = 0;
};

class StepGraph {
 public:
  // Captures without executing anything.
  StepGraph(Context& ctx, StepShape shape, const MicroBatch& like, const StepParts& parts);
  ~StepGraph();

  const StepShape& shape() const { return shape_; }
  // Launches the graphs for micro-batches of the captured shape. Waits for `reader` (may be null)
  // before the optimizer graph.
  void launch(Context& ctx, std::span<const MicroBatch> batches, StateReader* reader);

 private:
  StepShape shape_;
  MicroBatch batch_;                                         // input buffers of the graphs
  std::vector<std::unique_ptr<DeviceGraph>> micro_batches_;  // by kind
  std::unique_ptr<DeviceGraph> end_;
};

// The graphs of a run. A step is captured when its shape occurs twice in a row: by then its kernels
// have run eagerly, and shapes that do not recur are not worth capturing.
class StepGraphs {
 public:
  // Returns the graph for these micro-batches, capturing it if it is due, or null if the step runs
  // eagerly. Shapes are agreed over all ranks, so all ranks return alike. `possible`: this rank may
  // capture now. Collective, once per step.
  StepGraph* find(Context& ctx, std::span<const MicroBatch> batches, double clip_grad,
                  bool possible, const StepParts& parts);
  std::size_t size() const { return graphs_.size(); }

 private:
  std::unique_ptr<StepShape> last_shape_;
  std::vector<std::unique_ptr<StepGraph>> graphs_;
};

}  // namespace bev
