#include "infer/token_scores.h"

#include <algorithm>

#include "base/function_ref.h"
#include "infer/selections.h"
#include "infer/shared_numbers.h"
#include "ops/collective.h"
#include "ops/converted.h"
#include "ops/label_scores.h"
#include "ops/token_log_probs.h"

namespace bev {

Tensor join_sequences(RankModel& model, const SequenceLayout& layout, Tensor rows) {
  Group& cp = model.mesh().cp();
  if (cp.size() == 1) return rows;
  Context& ctx = model.ctx();
  Shape shape{layout.all_tokens().tokens(), rows.shape()[1]};
  Tensor by_rank = ctx.allocate(rows.dtype(), shape, "logits");
  cp.all_gather(rows, by_rank, "logits").wait();
  Tensor ordered = ctx.allocate(rows.dtype(), shape, "logits");
  copy_into_order(ctx, layout.ring.sets, layout.all_tokens(), by_rank, ordered);
  return ordered;
}

namespace {

// Each token predicts the next one of its document.
TokenSample next_token_sample(const TokenSample& from) {
  TokenSample sample = from;
  sample.targets.assign(sample.tokens.size(), -1);
  sample.weights.assign(sample.tokens.size(), 0);
  std::size_t begin = 0;
  for (std::int32_t length : sample.documents) {
    std::size_t end = begin + static_cast<std::size_t>(length);
    for (std::size_t i = begin; i + 1 < end; ++i) sample.targets[i] = sample.tokens[i + 1];
    begin = end;
  }
  return sample;
}

class RowsSink : public OutputSink {
 public:
  RowsSink(RankModel& model, const MicroBatch& batch, RowsOfTokens compute)
      : model_(model), batch_(batch), compute_(compute) {}

  void on_outputs(std::int64_t, std::span<const Var> outputs) override {
    Context& ctx = model_.ctx();
    Tensor part = converted(ctx, compute_(ctx, batch_, outputs[0]), ctx.wide(), "logits");
    rows = download_wide(ctx, join_sequences(model_, batch_.layout, std::move(part)));
  }
  std::vector<double> rows;

 private:
  RankModel& model_;
  const MicroBatch& batch_;
  RowsOfTokens compute_;
};

}  // namespace

void for_token_rows(RankModel& model, std::span<const TokenSample> samples,
                    std::int64_t micro_batch_size, RowsOfTokens compute,
                    FunctionRef<void(std::span<const double> rows)> receive) {
  const MeshShape& mesh = model.mesh().shape();
  Group& world = model.mesh().world().host();
  const PipelineShape& pipeline = model.pipeline().shape;
  const std::int64_t head_rank = pipeline.place_of(pipeline.stages() - 1).rank;
  std::vector<MicroBatch> batches =
      rank_micro_batches(model.ctx(), samples, micro_batch_size, mtp_spec(model.options().model));
  for (std::size_t m = 0; m < batches.size(); ++m) {
    RowsSink sink(model, batches[m], compute);
    model.forward_outputs(std::span(batches).subspan(m, 1), sink);
    for (std::int64_t dp = 0; dp < mesh.dp; ++dp) {
      auto source = static_cast<int>(rank_of(mesh, {0, 0, dp, head_rank}));
      bool here = world.rank() == source;
      SharedNumbers numbers(here);
      if (here) numbers.pass_list(sink.rows);
      if (here && source != 0) numbers.send(world, 0);
      if (world.rank() != 0) continue;
      std::vector<double> part = sink.rows;
      if (source != 0) {
        numbers.receive(world, source);
        numbers.pass_list(part);
      }
      receive(part);
    }
  }
}

namespace {

// The rows of all tokens, sample after sample, on world rank 0. Collective.
std::vector<double> all_rows(RankModel& model, std::span<const TokenSample> samples,
                             std::int64_t micro_batch_size, RowsOfTokens compute) {
  std::vector<double> all;
  for_token_rows(model, samples, micro_batch_size, compute, [&](std::span<const double> part) {
    all.insert(all.end(), part.begin(), part.end());
  });
  return all;
}

}  // namespace

std::vector<std::vector<double>> token_scores(RankModel& model,
                                              std::span<const TokenSample> samples,
                                              std::int64_t micro_batch_size) {
  std::vector<TokenSample> scored;
  for (const TokenSample& sample : samples) scored.push_back(next_token_sample(sample));
  auto log_probs = [&](Context& ctx, const MicroBatch& batch, const Var& final) {
    std::int64_t tokens = batch.layout.tokens;
    Var hidden = enter_tensor_parallel(ctx, final, tokens);
    return token_log_probs(ctx, hidden, batch.targets.targets, model.head_stage().head())
        .tensor.reshape({tokens, 1});
  };
  std::vector<double> all = all_rows(model, scored, micro_batch_size, log_probs);
  if (model.mesh().world().rank() != 0) return {};
  std::vector<std::vector<double>> out;
  auto at = all.begin();
  for (const TokenSample& sample : samples) {
    // The row before a token has its score.
    std::vector<double>& row = out.emplace_back(sample.tokens.size());
    for (std::size_t i = 1; i < row.size(); ++i) row[i] = at[static_cast<std::ptrdiff_t>(i) - 1];
    at += static_cast<std::ptrdiff_t>(row.size());
  }
  return out;
}

std::vector<std::vector<double>> sequence_scores(RankModel& model,
                                                 std::span<const TokenSample> samples,
                                                 std::int64_t micro_batch_size) {
  const ModelConfig& config = model.options().model;
  auto scores = [&](Context& ctx, const MicroBatch& batch, const Var& final) {
    return label_scores(ctx, final, *model.head_stage().label_head(), batch.layout.tokens).tensor;
  };
  std::vector<double> all = all_rows(model, samples, micro_batch_size, scores);
  if (model.mesh().world().rank() != 0) return {};
  std::vector<std::vector<double>> out;
  auto labels = static_cast<std::size_t>(config.num_labels);
  auto begin = all.begin();
  for (const TokenSample& sample : samples) {
    std::span<const std::int32_t> tokens = sample.tokens;
    for (std::int32_t length : sample.documents) {
      auto count = static_cast<std::size_t>(length);
      std::size_t scored = scored_token(tokens.first(count), config.pad_token);
      auto at = begin + static_cast<std::ptrdiff_t>(labels * scored);
      out.emplace_back(at, at + static_cast<std::ptrdiff_t>(labels));
      begin += static_cast<std::ptrdiff_t>(labels * count);
      tokens = tokens.subspan(count);
    }
  }
  return out;
}

}  // namespace bev
