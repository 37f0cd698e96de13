#include "infer/token_scores.h"

#include <algorithm>

#include "infer/shared_numbers.h"
#include "ops/collective.h"
#include "ops/converted.h"
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

// The log-probabilities of the targets of one micro-batch, on the ranks that have the logits.
class ScoreSink : public OutputSink {
 public:
  ScoreSink(RankModel& model, const MicroBatch& batch) : model_(model), batch_(batch) {}

  void on_outputs(std::int64_t, std::span<const Var> outputs) override {
    Context& ctx = model_.ctx();
    const SequenceLayout& layout = batch_.layout;
    Var hidden = enter_tensor_parallel(ctx, outputs[0], layout.tokens);
    Tensor rows = token_log_probs(ctx, hidden, batch_.targets.targets, model_.head_stage().head())
                      .tensor.reshape({layout.tokens, 1});
    Tensor whole = join_sequences(model_, layout, converted(ctx, rows, ctx.wide(), "logits"));
    if (whole.dtype() == Dtype::kF64) {
      scores = ctx.download<double>(whole);
    } else {
      const std::vector<float> narrow = ctx.download<float>(whole);
      scores.assign(narrow.begin(), narrow.end());
    }
  }
  std::vector<double> scores;

 private:
  RankModel& model_;
  const MicroBatch& batch_;
};

}  // namespace

std::vector<std::vector<double>> token_scores(RankModel& model,
                                              std::span<const TokenSample> samples,
                                              std::int64_t micro_batch_size) {
  std::vector<TokenSample> scored;
  for (const TokenSample& sample : samples) scored.push_back(next_token_sample(sample));
  const MeshShape& mesh = model.mesh().shape();
  Group& world = model.mesh().world().host();
  const PipelineShape& pipeline = model.pipeline().shape;
  const std::int64_t head_rank = pipeline.place_of(pipeline.stages() - 1).rank;
  std::vector<MicroBatch> batches =
      rank_micro_batches(model.ctx(), scored, micro_batch_size, mtp_spec(model.options().model));
  std::vector<double> all;  // of all tokens, sample after sample
  for (std::size_t m = 0; m < batches.size(); ++m) {
    ScoreSink sink(model, batches[m]);
    model.forward_outputs(std::span(batches).subspan(m, 1), sink);
    for (std::int64_t dp = 0; dp < mesh.dp; ++dp) {
      auto source = static_cast<int>(rank_of(mesh, {0, 0, dp, head_rank}));
      bool here = world.rank() == source;
      SharedNumbers numbers(here);
      if (here) numbers.pass_list(sink.scores);
      if (here && source != 0) numbers.send(world, 0);
      if (world.rank() != 0) continue;
      std::vector<double> part = sink.scores;
      if (source != 0) {
        numbers.receive(world, source);
        numbers.pass_list(part);
      }
      all.insert(all.end(), part.begin(), part.end());
    }
  }
  if (world.rank() != 0) return {};
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

}  // namespace bev
