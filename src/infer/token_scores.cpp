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

std::vector<double> side_by_side(const std::vector<std::vector<double>>& parts, std::size_t rows) {
  if (parts.size() == 1) return parts.front();
  std::vector<double> out;
  for (std::size_t row = 0; row < rows; ++row) {
    for (const std::vector<double>& part : parts) {
      const std::size_t columns = part.size() / rows;
      auto begin = part.begin() + static_cast<std::ptrdiff_t>(row * columns);
      out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(columns));
    }
  }
  return out;
}

class RowsSink : public OutputSink {
 public:
  RowsSink(RankModel& model, const MicroBatch& batch, RowsOfTokens compute)
      : model_(model), batch_(batch), compute_(compute) {}

  void on_outputs(std::int64_t, std::span<const Var> outputs) override {
    Context& ctx = model_.ctx();
    std::vector<std::vector<double>> parts;
    std::int64_t count = 0;
    for (Tensor& tensor : compute_(ctx, batch_, outputs[0])) {
      Tensor part = converted(ctx, std::move(tensor), ctx.wide(), "logits");
      Tensor whole = join_sequences(model_, batch_.layout, std::move(part));
      count = whole.shape()[0];
      parts.push_back(download_wide(ctx, whole));
    }
    rows = side_by_side(parts, static_cast<std::size_t>(count));
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
                                              std::int64_t micro_batch_size,
                                              std::vector<std::vector<double>>* values) {
  std::vector<TokenSample> scored;
  for (const TokenSample& sample : samples) scored.push_back(next_token_sample(sample));
  auto log_probs = [&](Context& ctx, const MicroBatch& batch, const Var& final) {
    std::int64_t tokens = batch.layout.tokens;
    const ModelStage& stage = model.head_stage();
    Var hidden = enter_tensor_parallel(ctx, final, tokens);
    Var logps = token_log_probs(ctx, hidden, batch.targets.targets, stage.head());
    std::vector<Tensor> out = {logps.tensor.reshape({tokens, 1})};
    if (values == nullptr) return out;
    out.push_back(label_scores(ctx, final, *stage.value_head(), tokens).tensor);
    return out;
  };
  std::vector<double> all = all_rows(model, scored, micro_batch_size, log_probs);
  if (model.mesh().world().rank() != 0) return {};
  const std::size_t columns = values != nullptr ? 2 : 1;
  std::size_t begin = 0;
  // The row before a token has its numbers.
  auto column = [&](std::size_t tokens, std::size_t number) {
    std::vector<double> row(tokens);
    for (std::size_t i = 1; i < tokens; ++i) row[i] = all[begin + (i - 1) * columns + number];
    return row;
  };
  std::vector<std::vector<double>> out;
  for (const TokenSample& sample : samples) {
    const std::size_t tokens = sample.tokens.size();
    out.push_back(column(tokens, 0));
    if (values != nullptr) values->push_back(column(tokens, 1));
    begin += tokens * columns;
  }
  return out;
}

std::vector<std::vector<double>> sequence_scores(RankModel& model,
                                                 std::span<const TokenSample> samples,
                                                 std::int64_t micro_batch_size) {
  const ModelConfig& config = model.options().model;
  auto scores = [&](Context& ctx, const MicroBatch& batch, const Var& final) {
    const Param& head = *model.head_stage().label_head();
    return std::vector<Tensor>{label_scores(ctx, final, head, batch.layout.tokens).tensor};
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
