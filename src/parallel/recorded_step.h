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

// What the kernels of a step follow from, besides the model. Token values, positions and all of
// StepInputs are read on the device and may change.
struct StepShape {
  bool several = false;  // micro-batches; all are alike
  std::int64_t tokens = 0;
  std::vector<SequenceRows> sequences;
  double clip_grad = 0;
  bool operator==(const StepShape&) const = default;
};
// Null where the micro-batches are not alike: such a step is not recorded.
std::unique_ptr<StepShape> shape_of(std::span<const MicroBatch> batches, double clip_grad);

// What is to be recorded.
class StepParts {
 public:
  virtual ~StepParts() = default;
  virtual void first(const MicroBatch& batch) const = 0;  // of the step
  virtual void next(const MicroBatch& batch) const = 0;   // each after it
  virtual void last() const = 0;                          // all that follows them
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

  const StepShape& shape() const { return shape_; }
  // `reader`, where there is one, is waited for before the part that updates.
  void start(Context& ctx, std::span<const MicroBatch> batches, StateReader* reader);

 private:
  StepShape shape_;
  MicroBatch batch_;  // what the recordings read
  std::unique_ptr<Recording> first_, next_, last_;
};

}  // namespace bev
