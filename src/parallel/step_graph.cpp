#include "parallel/step_graph.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/function_ref.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/text.h"
#include "kernels/device.h"

namespace bev {

namespace {

std::uint64_t hash_of(const StepShape& shape) {
  std::uint64_t hash = mix_bits(static_cast<std::uint64_t>(shape.kinds),
                                std::bit_cast<std::uint64_t>(shape.clip_grad));
  auto add = [&](std::int64_t value) { hash = mix_bits(hash, static_cast<std::uint64_t>(value)); };
  add(shape.tokens);
  add(shape.samples);
  for (const SequenceRows& rows : shape.sequences) {
    for (std::int64_t value : {rows.begin, rows.end, rows.length}) add(value);
  }
  for (const auto* values : {&shape.documents, &shape.expert_tokens, &shape.field_rows}) {
    add(std::ssize(*values));
    for (std::int64_t value : *values) add(value);
  }
  return hash;
}

std::vector<std::int64_t> documents_of(const SequenceLayout& layout) {
  std::vector<std::int64_t> lengths;
  for (const AttentionRun& run : layout.runs) lengths.push_back(run.q_count);
  return lengths;
}

std::vector<std::int64_t> field_rows_of(const MicroBatch& batch) {
  std::vector<std::int64_t> rows;
  for (const BatchField& field : batch.fields) {
    rows.push_back(field.tensor.numel());
    std::vector<std::int64_t> documents = documents_of(field.layout);
    rows.insert(rows.end(), documents.begin(), documents.end());
  }
  return rows;
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
    shape.documents = documents_of(batch.layout);
    shape.expert_tokens = batch.layout.expert_tokens;
    shape.field_rows = field_rows_of(batch);
    shape.clip_grad = clip_grad;
    return shape;
  };
  auto first = std::make_unique<StepShape>(shape_of_batch(batches[0]));
  bool alike = std::ranges::all_of(
      batches, [&](const MicroBatch& batch) { return shape_of_batch(batch) == *first; });
  return alike ? std::move(first) : nullptr;
}

bool agree_on_shape(Group& hosts, StepShape* shape) {
  // A rank without a shape contributes 0.
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

StepGraph::StepGraph(Context& ctx, StepShape shape, const MicroBatch& like, const StepParts& parts)
    : shape_(std::move(shape)), batch_(like) {
  for_tensors(like, batch_, [&](const Tensor& from, Tensor& to) {
    to = Tensor(ctx.inputs, from.dtype(), from.shape(), "recorded batch");
  });
  auto capture = [&](FunctionRef<void()> body) {
    return ctx.kernels.device.capture(ctx.stream, body);
  };
  micro_batches_.push_back(capture([&] { parts.first(batch_, shape_); }));
  while (std::ssize(micro_batches_) < shape_.kinds) {
    micro_batches_.push_back(capture([&] { parts.next(batch_); }));
  }
  end_ = capture([&] { parts.end(shape_.clip_grad); });
}

StepGraph::~StepGraph() = default;

void StepGraph::launch(Context& ctx, std::span<const MicroBatch> batches, StateReader* reader) {
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

StepGraph* StepGraphs::find(Context& ctx, std::span<const MicroBatch> batches, double clip_grad,
                            bool possible, const StepParts& parts) {
  constexpr std::size_t kMost = 8;
  Group& world = ctx.mesh.world();
  std::unique_ptr<StepShape> shape =
      possible ? shape_of(batches, clip_grad, world.size() == 1) : nullptr;
  if (!agree_on_shape(world.host(), shape.get())) return nullptr;
  for (const auto& graph : graphs_) {
    if (graph->shape() == *shape) return graph.get();
  }
  bool again = last_shape_ && *last_shape_ == *shape;
  last_shape_ = std::move(shape);
  if (!again || graphs_.size() == kMost) return nullptr;
  graphs_.push_back(std::make_unique<StepGraph>(ctx, *last_shape_, batches.front(), parts));
  if (world.rank() == 0) {
    log_info(concat("steps of ", batches.size(), " micro-batches of ", last_shape_->tokens,
                    " tokens are recorded as graphs"));
  }
  return graphs_.back().get();
}

}  // namespace bev
