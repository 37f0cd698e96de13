#include "infer/embedding.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/divide.h"
#include "base/error.h"
#include "infer/shared_numbers.h"
#include "infer/token_scores.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "ops/collective.h"
#include "ops/converted.h"

namespace bev {

namespace {

using TokenRows = std::span<const std::vector<std::int32_t>>;
using Vectors = std::vector<std::vector<double>>;

// Indices of the rows that are computed together, one micro-batch on each data-parallel rank.
using RowGroup = std::vector<std::size_t>;

// Rows of similar length, so that the micro-batches of a group have about as many tokens.
std::vector<RowGroup> group_rows(TokenRows rows, std::int64_t tokens) {
  RowGroup order(rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](std::size_t row) { return rows[row].size(); });
  std::vector<RowGroup> groups;
  std::int64_t filled = 0;
  for (std::size_t row : order) {
    std::int64_t length = std::ssize(rows[row]);
    if (groups.empty() || filled + length > tokens) {
      groups.emplace_back();
      filled = 0;
    }
    groups.back().push_back(row);
    filled += length;
  }
  return groups;
}

// Rows of a group on each data-parallel rank but the last ones.
std::int64_t share_of(const RowGroup& group, const MeshShape& mesh) {
  return ceil_div(std::ssize(group), mesh.dp);
}

// The part of a group that a data-parallel rank computes.
std::span<const std::size_t> part_of(const RowGroup& group, const MeshShape& mesh,
                                     std::int64_t dp) {
  std::int64_t share = share_of(group, mesh), count = std::ssize(group);
  auto begin = static_cast<std::size_t>(std::min(dp * share, count));
  auto end = static_cast<std::size_t>(std::min((dp + 1) * share, count));
  return std::span(group).subspan(begin, end - begin);
}

TokenSample sample_of(const std::vector<std::int32_t>& row) {
  TokenSample sample;
  sample.tokens = row;
  sample.targets.assign(row.size(), -1);
  sample.weights.assign(row.size(), 0);
  sample.documents = {static_cast<std::int32_t>(row.size())};
  return sample;
}

// Rows [first, end) of the hidden states, one stretch for each sample, to [samples, H] in the wide
// dtype: the wanted row, or the sum of all.
Tensor pooled(Context& ctx, const Tensor& hidden, std::span<const std::int64_t> lengths,
              Pooling pooling) {
  const std::int64_t count = std::ssize(lengths), width = hidden.shape()[1];
  const bool sums = pooling == Pooling::kMean;
  Tensor out = ctx.allocate(sums ? ctx.wide() : hidden.dtype(), {count, width}, "activations");
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t end = first + lengths[static_cast<std::size_t>(i)];
    View to = out.view().rows(i, i + 1).flat();
    if (sums) {
      ctx.kernels.elementwise.column_sum(ctx.stream, hidden.view().rows(first, end), 0, to);
    } else {
      std::int64_t row = pooling == Pooling::kCls ? first : end - 1;
      ctx.kernels.device.copy(ctx.stream, hidden.view().rows(row, row + 1).flat(), to);
    }
    first = end;
  }
  return converted(ctx, out, ctx.wide(), "activations");
}

Vectors download_rows(Context& ctx, const Tensor& x) {
  Vectors rows(static_cast<std::size_t>(x.shape()[0]));
  const auto width = static_cast<std::ptrdiff_t>(x.shape()[1]);
  auto cut = [&](const auto& values) {
    auto at = values.begin();
    for (std::vector<double>& row : rows) {
      row.assign(at, at + width);
      at += width;
    }
  };
  x.dtype() == Dtype::kF64 ? cut(ctx.download<double>(x)) : cut(ctx.download<float>(x));
  return rows;
}

// Pools the final hidden states of micro-batches, on the ranks of the last stage.
class PoolingSink : public OutputSink {
 public:
  // lengths: of the samples of each micro-batch.
  PoolingSink(RankModel& model, std::span<const MicroBatch> batches,
              std::vector<std::vector<std::int64_t>> lengths, Pooling pooling)
      : model_(model), batches_(batches), lengths_(std::move(lengths)), pooling_(pooling) {}

  void on_outputs(std::int64_t micro_batch, std::span<const Var> outputs) override {
    Context& ctx = model_.ctx();
    auto index = static_cast<std::size_t>(micro_batch);
    const SequenceLayout& layout = batches_[index].layout;
    Var hidden = enter_tensor_parallel(ctx, outputs[0], layout.tokens);
    Tensor whole = join_sequences(model_, layout, hidden.tensor);
    const std::vector<std::int64_t>& lengths = lengths_[index];
    if (lengths.empty()) return;
    Vectors rows = download_rows(ctx, pooled(ctx, whole, lengths, pooling_));
    for (std::size_t i = 0; i < rows.size() && pooling_ == Pooling::kMean; ++i) {
      for (double& value : rows[i]) value /= static_cast<double>(lengths[i]);
    }
    std::ranges::move(rows, std::back_inserter(vectors));
  }
  Vectors vectors;  // of all samples, in order

 private:
  RankModel& model_;
  std::span<const MicroBatch> batches_;
  std::vector<std::vector<std::int64_t>> lengths_;
  Pooling pooling_;
};

// The vectors of this rank's part of all groups; empty on the ranks of other stages than the last.
Vectors compute_part(RankModel& model, TokenRows rows, std::span<const RowGroup> groups,
                     Pooling pooling) {
  const MeshShape& mesh = model.mesh().shape();
  std::vector<MicroBatch> batches;
  std::vector<std::vector<std::int64_t>> lengths;
  for (const RowGroup& group : groups) {
    std::vector<TokenSample> samples;
    for (std::size_t row : group) samples.push_back(sample_of(rows[row]));
    std::ranges::move(rank_micro_batches(model.ctx(), samples, share_of(group, mesh),
                                         mtp_spec(model.options().model)),
                      std::back_inserter(batches));
    std::vector<std::int64_t>& of_batch = lengths.emplace_back();
    for (std::size_t row : part_of(group, mesh, model.mesh().at().dp)) {
      of_batch.push_back(std::ssize(rows[row]));
    }
  }
  PoolingSink sink(model, batches, std::move(lengths), pooling);
  model.forward_outputs(batches, sink);
  return std::move(sink.vectors);
}

// World rank 0 receives the vectors of a data-parallel rank; its own stay where they are.
Vectors bring_to_first(RankModel& model, std::int64_t dp, const Vectors& own) {
  Group& world = model.mesh().world().host();
  const PipelineShape& pipeline = model.pipeline().shape;
  std::int64_t head_rank = pipeline.place_of(pipeline.stages() - 1).rank;
  auto source = static_cast<int>(rank_of(model.mesh().shape(), {0, 0, dp, head_rank}));
  if (source == 0) return world.rank() == 0 ? own : Vectors();
  auto pass = [](SharedNumbers& numbers, Vectors& vectors) {
    numbers.pass_list(vectors, [&](std::vector<double>& row) { numbers.pass_list(row); });
  };
  Vectors moved;
  if (world.rank() == source) {
    SharedNumbers numbers(true);
    moved = own;
    pass(numbers, moved);
    numbers.send(world, 0);
  }
  if (world.rank() != 0) return {};
  SharedNumbers numbers(false);
  numbers.receive(world, source);
  pass(numbers, moved);
  return moved;
}

void normalise(std::vector<double>& row) {
  constexpr double kLeast = 1e-12;  // as PyTorch's normalize
  double squares = 0;
  for (double value : row) squares += value * value;
  for (double& value : row) value /= std::max(std::sqrt(squares), kLeast);
}

}  // namespace

void check_embedding_row(const ModelConfig& model, std::span<const std::int32_t> row,
                         const std::string& what) {
  BEV_CHECK(!row.empty(), ErrorKind::kInput, what, ": gives no token; leave it out");
  for (std::int32_t token : row) {
    BEV_CHECK(token >= 0 && token < model.vocab_size, ErrorKind::kInput, what, ": has token ",
              token, ", outside of the model's vocabulary of ", model.vocab_size);
  }
  const std::int64_t most = model.longest_sequence();
  BEV_CHECK(most == 0 || std::ssize(row) <= most, ErrorKind::kInput, what, ": has ", row.size(),
            " tokens, more than the ", most, " ", model.longest_sequence_reason(), "; shorten it");
}

std::vector<std::vector<double>> embeddings(RankModel& model,
                                            std::span<const std::vector<std::int32_t>> rows,
                                            const EmbeddingOptions& options) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    check_embedding_row(model.options().model, rows[i], concat("row ", i));
  }
  const MeshShape& mesh = model.mesh().shape();
  std::vector<RowGroup> groups = group_rows(rows, options.batch_tokens * mesh.dp * mesh.cp);
  if (groups.empty()) return {};
  Vectors own = compute_part(model, rows, groups, options.pooling);
  bool first = model.mesh().world().rank() == 0;
  Vectors out(first ? rows.size() : 0);
  for (std::int64_t dp = 0; dp < mesh.dp; ++dp) {
    Vectors part = bring_to_first(model, dp, own);
    if (!first) continue;
    auto next = part.begin();
    for (const RowGroup& group : groups) {
      for (std::size_t row : part_of(group, mesh, dp)) out[row] = std::move(*next++);
    }
  }
  for (std::vector<double>& row : out) {
    if (options.normalize) normalise(row);
  }
  return out;
}

}  // namespace bev
