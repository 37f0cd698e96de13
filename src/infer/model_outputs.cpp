#include "infer/model_outputs.h"

#include "base/error.h"
#include "infer/token_scores.h"
#include "models/encoder_heads.h"
#include "ops/collective.h"
#include "ops/copy_columns.h"
#include "ops/sequence_rows.h"

namespace bev {

namespace {

constexpr std::string_view kLogits = "logits", kHidden = "last_hidden_state",
                           kPooled = "pooler_output", kPair = "seq_relationship_logits",
                           kStart = "start_logits", kEnd = "end_logits";

// A column of x [T, C] as [T, 1].
Tensor column_of(Context& ctx, const Tensor& x, std::int64_t column) {
  const std::int64_t rows = x.shape()[0];
  Tensor out = ctx.allocate(x.dtype(), {rows, 1}, "logits");
  copy_columns(ctx, x, column, out, 0, 1);
  return out;
}

Tensor logits_of(Context& ctx, const ModelStage& stage, const MicroBatch& batch, const Var& final) {
  const ModelConfig& model = stage.config();
  if (model.has_output_layer()) {
    return gather_vocabulary(ctx, stage_logits(ctx, stage, final, batch.layout.tokens),
                             model.vocab_size);
  }
  return stage.encoder_heads()->labels(ctx, final, batch.layout).tensor;
}

// Rows of all tokens of a micro-batch, or of its samples.
Tensor rows_of(Context& ctx, std::string_view name, const ModelStage& stage,
               const MicroBatch& batch, const Var& final) {
  if (name == kLogits) return logits_of(ctx, stage, batch, final);
  if (name == kHidden) return gather_tokens(ctx, final, batch.layout.tokens).tensor;
  const EncoderHeads& heads = *stage.encoder_heads();
  if (name == kStart || name == kEnd) {
    return column_of(ctx, heads.labels(ctx, final, batch.layout).tensor, name == kEnd ? 1 : 0);
  }
  Var pooled = heads.pooled(ctx, final, batch.layout);
  return name == kPooled ? pooled.tensor : heads.next_sentence(ctx, pooled).tensor;
}

// Cuts rows of all tokens of consecutive samples into those of each sample.
class SampleCutter {
 public:
  SampleCutter(const ModelOutput& output, std::span<const TokenSample> samples)
      : output_(output), samples_(samples) {}

  void cut(std::span<const double> rows, FunctionRef<void(std::span<const double>)> receive) {
    const auto columns = static_cast<std::size_t>(output_.columns);
    while (!rows.empty()) {
      const std::size_t all = columns * samples_[next_++].tokens.size();
      receive(rows.first(output_.by_token ? all : columns));
      rows = rows.subspan(all);
    }
  }

 private:
  const ModelOutput& output_;
  std::span<const TokenSample> samples_;
  std::size_t next_ = 0;
};

}  // namespace

std::vector<ModelOutput> outputs_of(const ModelConfig& model) {
  const EncoderConfig& encoder = model.encoder;
  std::vector<ModelOutput> list = {{std::string(kHidden), model.hidden_size}};
  auto add = [&](std::string_view name, std::int64_t columns, bool by_token, bool flat = false) {
    list.push_back({std::string(name), columns, by_token, flat});
  };
  if (model.has_output_layer()) add(kLogits, model.vocab_size, true);
  if (encoder.labels == LabelKind::kSequence) add(kLogits, model.num_labels, false);
  if (encoder.labels == LabelKind::kTokens) add(kLogits, model.num_labels, true);
  if (encoder.labels == LabelKind::kSpans) {
    add(kStart, 1, true, true);
    add(kEnd, 1, true, true);
  }
  if (encoder.pooler) add(kPooled, model.hidden_size, false);
  if (encoder.next_sentence) add(kPair, 2, false);
  return list;
}

void compute_output(RankModel& model, const ModelOutput& output,
                    std::span<const TokenSample> samples, std::int64_t micro_batch_size,
                    FunctionRef<void(std::span<const double> rows)> receive) {
  auto compute = [&](Context& ctx, const MicroBatch& batch, const Var& final) {
    Tensor rows = rows_of(ctx, output.name, model.head_stage(), batch, final);
    return output.by_token ? rows : at_first_tokens(ctx, rows, batch.layout);
  };
  SampleCutter cutter(output, samples);
  for_token_rows(model, samples, micro_batch_size, compute,
                 [&](std::span<const double> rows) { cutter.cut(rows, receive); });
}

}  // namespace bev
