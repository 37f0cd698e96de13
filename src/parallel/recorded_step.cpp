#include "parallel/recorded_step.h"

#include <algorithm>
#include <utility>

namespace bev {

namespace {

// Calls visit with each tensor of a micro-batch, in pairs of two of them. Context parallelism has
// more, and is not recorded.
template <class Visit>
void for_tensors(const MicroBatch& from, MicroBatch& to, const Visit& visit) {
  visit(from.tokens, to.tokens);
  visit(from.targets.targets, to.targets.targets);
  visit(from.targets.weights, to.targets.weights);
  for (std::size_t depth = 0; depth < from.future.size(); ++depth) {
    visit(from.future[depth].tokens, to.future[depth].tokens);
    visit(from.future[depth].targets.targets, to.future[depth].targets.targets);
    visit(from.future[depth].targets.weights, to.future[depth].targets.weights);
  }
  visit(from.layout.positions, to.layout.positions);
  visit(from.layout.samples, to.layout.samples);
  visit(from.layout.sample_positions, to.layout.sample_positions);
  visit(from.layout.batch_samples, to.layout.batch_samples);
}

}  // namespace

std::unique_ptr<StepShape> shape_of(std::span<const MicroBatch> batches, double clip_grad) {
  auto alike = [&](const MicroBatch& batch) {
    return batch.layout.tokens == batches[0].layout.tokens &&
           batch.layout.sequences == batches[0].layout.sequences;
  };
  if (batches.empty() || !std::ranges::all_of(batches, alike)) return nullptr;
  return std::make_unique<StepShape>(StepShape{batches.size() > 1, batches[0].layout.tokens,
                                               batches[0].layout.sequences, clip_grad});
}

RecordedStep::RecordedStep(Context& ctx, StepShape shape, const MicroBatch& like,
                           const StepParts& parts)
    : shape_(std::move(shape)), batch_(like) {
  for_tensors(like, batch_, [&](const Tensor& from, Tensor& to) {
    to = Tensor(ctx.inputs, from.dtype(), from.shape(), "recorded batch");
  });
  auto recording = [&](const auto& body) { return record(ctx.kernels.device, ctx.stream, body); };
  first_ = recording([&] { parts.first(batch_); });
  if (shape_.several) next_ = recording([&] { parts.next(batch_); });
  last_ = recording([&] { parts.last(); });
}

void RecordedStep::start(Context& ctx, std::span<const MicroBatch> batches, StateReader* reader) {
  for (const MicroBatch& batch : batches) {
    for_tensors(batch, batch_, [&](const Tensor& from, Tensor& to) {
      ctx.kernels.device.copy(ctx.stream, from, to);
    });
    (&batch == batches.data() ? first_ : next_)->start();
  }
  if (reader != nullptr) reader->wait_read();
  last_->start();
}

}  // namespace bev
