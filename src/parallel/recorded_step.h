// The work of a training step as its device recorded it. Starting it again costs the host a few
// calls instead of one for each kernel, so that short steps keep the device busy. The bits are
// those of the step itself: the same kernels run in the same order on the same memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "models/decoder.h"

namespace bev {

class Recording;

// What the kernels of a step follow from, besides the model. Token values, positions and all of
// StepInputs are read on the device and may change.
struct StepShape {
  // Micro-batches that are recorded; the first of a step, others, its last. All are alike.
  std::int64_t kinds = 1;
  std::int64_t tokens = 0, samples = 0;
  std::vector<SequenceRows> sequences;
  std::vector<std::int64_t> documents;      // lengths, of the ranks that share them
  std::vector<std::int64_t> expert_tokens;  // of the ranks that share experts
  double clip_grad = 0;
  std::uint64_t all_ranks = 0;  // as they agreed
  bool operator==(const StepShape&) const = default;
};
// Null where the micro-batches are not alike: such a step is not recorded. A step of one rank needs
// no last kind: it is the one whose backward starts sums over ranks.
std::unique_ptr<StepShape> shape_of(std::span<const MicroBatch> batches, double clip_grad,
                                    bool one_rank);

// Ranks meet in the collectives of a step while it is recorded, and play it back together, so they
// decide alike: by the shapes of all. True where every rank has one (null: this one does not
// record); then it names them all. Each step once, by all ranks.
bool agree_on_shape(Group& hosts, StepShape* shape);

// What is to be recorded.
class StepParts {
 public:
  virtual ~StepParts() = default;
  virtual void first(const MicroBatch& batch) const = 0;  // of the step
  virtual void next(const MicroBatch& batch) const = 0;   // each after it, in turn a kind
  virtual void end() const = 0;                           // all that follows them
};

// Somebody who reads weights and optimizer state while a step is computed.
class StateReader {
 public:
  virtual ~StateReader() = default;
  // Waits until they may change.
  virtual void wait_read() = 0;
};

class RecordedStep {
 public:
  // Nothing is computed.
  RecordedStep(Context& ctx, StepShape shape, const MicroBatch& like, const StepParts& parts);
  ~RecordedStep();

  const StepShape& shape() const { return shape_; }
  // Of the same shape. `reader`, where there is one, is waited for before the part that updates.
  void start(Context& ctx, std::span<const MicroBatch> batches, StateReader* reader);

 private:
  StepShape shape_;
  MicroBatch batch_;                                       // what the recordings read
  std::vector<std::unique_ptr<Recording>> micro_batches_;  // by kind
  std::unique_ptr<Recording> end_;
};

}  // namespace bev
