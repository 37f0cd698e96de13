#include "parallel/recorded_step.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/philox.h"
#include "kernels/device.h"

namespace bev {

namespace {

// Calls visit with each tensor of a micro-batch, in pairs of two of them.
template <class Visit>
void for_tensors(const MicroBatch& from, MicroBatch& to, const Visit& visit_each) {
  auto visit = [&](const Tensor& of_from, Tensor& of_to) {
    if (!of_from.empty()) visit_each(of_from, of_to);
  };
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
  for (ContextRows SequenceLayout::*rows :
       {&SequenceLayout::ring, &SequenceLayout::mixed, &SequenceLayout::heads}) {
    visit((from.layout.*rows).samples, (to.layout.*rows).samples);
    visit((from.layout.*rows).sample_positions, (to.layout.*rows).sample_positions);
  }
}

std::uint64_t hash_of(const StepShape& shape) {
  std::uint64_t hash = mix_bits(static_cast<std::uint64_t>(shape.kinds),
                                std::bit_cast<std::uint64_t>(shape.clip_grad));
  auto add = [&](std::int64_t value) { hash = mix_bits(hash, static_cast<std::uint64_t>(value)); };
  add(shape.tokens);
  add(shape.samples);
  for (const SequenceRows& rows : shape.sequences) {
    for (std::int64_t value : {rows.begin, rows.end, rows.length}) add(value);
  }
  for (const auto* values : {&shape.documents, &shape.expert_tokens}) {
    add(std::ssize(*values));
    for (std::int64_t value : *values) add(value);
  }
  return hash;
}

std::vector<std::int64_t> documents_of(const MicroBatch& batch) {
  std::vector<std::int64_t> lengths;
  for (const AttentionRun& run : batch.layout.runs) lengths.push_back(run.q_count);
  return lengths;
}

}  // namespace

std::unique_ptr<StepShape> shape_of(std::span<const MicroBatch> batches, double clip_grad,
                                    bool one_rank) {
  if (batches.empty()) return nullptr;
  auto shape_of_batch = [&](const MicroBatch& batch) {
    StepShape shape;
    shape.kinds = std::min<std::int64_t>(std::ssize(batches), one_rank ? 2 : 3);
    shape.tokens = batch.layout.tokens;
    shape.samples = batch.layout.sample_count;
    shape.sequences = batch.layout.sequences;
    shape.documents = documents_of(batch);
    shape.expert_tokens = batch.layout.expert_tokens;
    shape.clip_grad = clip_grad;
    return shape;
  };
  auto first = std::make_unique<StepShape>(shape_of_batch(batches[0]));
  bool alike = std::ranges::all_of(
      batches, [&](const MicroBatch& batch) { return shape_of_batch(batch) == *first; });
  return alike ? std::move(first) : nullptr;
}

bool agree_on_shape(Group& hosts, StepShape* shape) {
  // A rank that has none says 0.
  std::uint64_t mine = shape != nullptr ? hash_of(*shape) | 1 : 0;
  std::vector<std::uint64_t> all(static_cast<std::size_t>(hosts.size()));
  hosts
      .all_gather({&mine, Dtype::kI64, {1}}, {all.data(), Dtype::kI64, {hosts.size()}},
                  "shape of a step")
      .wait();
  if (std::ranges::count(all, 0u) > 0) return false;
  shape->all_ranks = 0;
  for (std::uint64_t theirs : all) shape->all_ranks = mix_bits(shape->all_ranks, theirs);
  return true;
}

RecordedStep::RecordedStep(Context& ctx, StepShape shape, const MicroBatch& like,
                           const StepParts& parts)
    : shape_(std::move(shape)), batch_(like) {
  for_tensors(like, batch_, [&](const Tensor& from, Tensor& to) {
    to = Tensor(ctx.inputs, from.dtype(), from.shape(), "recorded batch");
  });
  auto recording = [&](const auto& body) { return record(ctx.kernels.device, ctx.stream, body); };
  micro_batches_.push_back(recording([&] { parts.first(batch_); }));
  while (std::ssize(micro_batches_) < shape_.kinds) {
    micro_batches_.push_back(recording([&] { parts.next(batch_); }));
  }
  end_ = recording([&] { parts.end(); });
}

RecordedStep::~RecordedStep() = default;

void RecordedStep::start(Context& ctx, std::span<const MicroBatch> batches, StateReader* reader) {
  for (std::size_t i = 0; i < batches.size(); ++i) {
    for_tensors(batches[i], batch_, [&](const Tensor& from, Tensor& to) {
      ctx.kernels.device.copy(ctx.stream, from, to);
    });
    std::size_t last = micro_batches_.size() - 1;
    micro_batches_[i + 1 == batches.size() ? last : std::min<std::size_t>(i, 1)]->start();
  }
  if (reader != nullptr) reader->wait_read();
  end_->start();
}

}  // namespace bev
