#include "parallel/encoder_objective.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/batch_file.h"
#include "kernels/device.h"
#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "models/encoder_heads.h"
#include "ops/collective.h"
#include "ops/converted.h"
#include "ops/elementwise.h"
#include "ops/label_loss.h"
#include "ops/objective.h"

namespace bev {

namespace {

// Set by PairWeights: [samples] f32.
constexpr FieldId kPairWeights{"pair_weights"};

// Samples whose first token this rank has.
std::int64_t own_samples(const MicroBatch& batch) {
  return std::ranges::count_if(batch.layout.own.pieces(),
                               [](const DocumentPiece& piece) { return piece.sample_begin == 0; });
}

void add_total(Context& ctx, const LossResult& result, const Tensor& weights, double* sum) {
  // The tp ranks of the stage have the same losses; one of them counts.
  if (ctx.mesh.tp().rank() != 0 || result.token_loss.numel() == 0) return;
  ctx.kernels.loss.total(ctx.stream, {result.token_loss, weights.as<float>(), sum});
}

// The values [T] f32 of the first tokens: [samples], 0 where another rank has them.
Tensor of_first_tokens(Context& ctx, const SequenceLayout& layout, const Tensor& values) {
  Tensor out = ctx.allocate(Dtype::kF32, {layout.sample_count}, "loss");
  ctx.kernels.embedding.forward(ctx.stream, {.index = layout.first_rows.as<std::int32_t>(),
                                             .weight = values.view().reshape({layout.tokens, 1}),
                                             .out = out.view().reshape({layout.sample_count, 1})});
  return out;
}

// In the arena of the step, not that of its inputs: a plan counts what a loss allocates.
Tensor upload_wide(Context& ctx, const std::vector<double>& values, const char* tag) {
  Tensor out = ctx.allocate(ctx.wide(), {std::ssize(values)}, tag);
  if (ctx.wide() == Dtype::kF64) {
    ctx.kernels.device.upload(ctx.stream, values.data(), out);
  } else {
    const std::vector<float> narrow(values.begin(), values.end());
    ctx.kernels.device.upload(ctx.stream, narrow.data(), out);
  }
  return out;
}

std::vector<double> download_numbers(Context& ctx, const Tensor& x) {
  auto list = [](const auto& values) { return std::vector<double>(values.begin(), values.end()); };
  return ctx.wide() == Dtype::kF64
             ? list(ctx.download<double>(converted(ctx, x, Dtype::kF64, "loss")))
             : list(ctx.download<float>(converted(ctx, x, Dtype::kF32, "loss")));
}

// The loss of a micro-batch computed on the host: its sum, and the gradient of every output.
struct HostLoss {
  double sum = 0;
  std::vector<double> gradient;
};

Var given_loss(Context& ctx, const Var& outputs, HostLoss value, double* sum) {
  View step{const_cast<double*>(&ctx.step->loss_factor), Dtype::kF64, {1}};
  const double factor = ctx.download<double>(step).front();
  for (double& slope : value.gradient) slope *= factor;
  if (ctx.mesh.tp().rank() == 0) {
    View at{sum, Dtype::kF64, {1}};
    const double total = ctx.download<double>(at).front() + value.sum;
    ctx.kernels.device.upload(ctx.stream, &total, at);
  }
  Tensor gradient = upload_wide(ctx, value.gradient, "gradients").reshape(outputs.shape());
  return given_gradient(ctx, "label_loss", outputs, upload_wide(ctx, {factor * value.sum}, "loss"),
                        converted(ctx, gradient, outputs.dtype(), "gradients"));
}

HostLoss squared_error(const std::vector<double>& outputs, const std::vector<double>& labels,
                       const std::vector<double>& weights) {
  HostLoss loss;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const double error = outputs[i] - labels[i];
    loss.sum += weights[i] * error * error;
    loss.gradient.push_back(weights[i] * 2 * error);
  }
  return loss;
}

// Adds the cross entropy of one end of a span among rows [begin, end) of outputs [T, 2].
void add_end(const std::vector<double>& outputs, std::size_t begin, std::size_t end,
             std::size_t column, std::int32_t target, HostLoss& loss) {
  if (target < 0 || target >= static_cast<std::int64_t>(end - begin)) return;
  auto at = [&](std::size_t row) { return outputs[2 * row + column]; };
  double most = at(begin), sum = 0;
  for (std::size_t row = begin; row < end; ++row) most = std::max(most, at(row));
  for (std::size_t row = begin; row < end; ++row) sum += std::exp(at(row) - most);
  const std::size_t wanted = begin + static_cast<std::size_t>(target);
  loss.sum += 0.5 * (std::log(sum) + most - at(wanted));
  for (std::size_t row = begin; row < end; ++row) {
    const double share = std::exp(at(row) - most) / sum;
    loss.gradient[2 * row + column] += 0.5 * (share - (row == wanted ? 1 : 0));
  }
}

HostLoss span_loss(Context& ctx, const Tensor& outputs, const MicroBatch& batch) {
  BEV_CHECK(ctx.mesh.cp().size() == 1, ErrorKind::kConfig,
            "--context-parallel-size: ", ctx.mesh.cp().size(),
            "; spans are chosen among all tokens of a sequence, which no rank holds; give 1");
  const std::vector<double> values = download_numbers(ctx, outputs);
  HostLoss loss;
  loss.gradient.resize(values.size());
  auto begins = ctx.download<std::int32_t>(batch.field(kStartPositions).tensor);
  auto ends = ctx.download<std::int32_t>(batch.field(kEndPositions).tensor);
  for (const DocumentPiece& piece : batch.layout.own.pieces()) {
    auto sample = static_cast<std::size_t>(piece.sample),
         first = static_cast<std::size_t>(piece.row);
    const std::size_t end = first + static_cast<std::size_t>(piece.count);
    add_end(values, first, end, 0, begins[sample], loss);
    add_end(values, first, end, 1, ends[sample], loss);
  }
  return loss;
}

}  // namespace

EncoderObjective::EncoderObjective(const ModelConfig& model)
    : model_(model.encoder), num_labels_(model.num_labels) {}

bool EncoderObjective::numbers() const {
  return model_.labels == LabelKind::kSequence && num_labels_ == 1;
}

bool EncoderObjective::capturable() const {
  return model_.labels != LabelKind::kSpans && !numbers();
}

std::vector<std::string> EncoderObjective::terms() const {
  if (model_.labels != LabelKind::kNone) return {"loss"};
  if (!pairs()) return {"lm loss"};
  if (!model_.language_head) return {"sop loss"};
  return {"loss", "lm loss", "sop loss"};
}

void EncoderObjective::add_weights(const Context&, const MicroBatch& batch,
                                   std::span<double> weights) const {
  const bool spans = model_.labels == LabelKind::kSpans;
  const bool by_sample = spans || (pairs() && !model_.language_head);
  weights[0] += by_sample ? static_cast<double>(own_samples(batch)) : batch.targets.weight_sum;
  if (weights.size() < 3) return;
  weights[1] += batch.targets.weight_sum;
  weights[2] += static_cast<double>(own_samples(batch));
}

Var EncoderObjective::masked_tokens(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                                    const Var& hidden, double* sums) const {
  Var inputs = stage.predictions(ctx, hidden);
  Var whole = enter_tensor_parallel(ctx, inputs, batch.layout.tokens);
  LossResult result = lm_head_loss(ctx, whole, batch.targets, stage.head());
  add_total(ctx, result, batch.targets.weights, sums);
  if (pairs()) add_total(ctx, result, batch.targets.weights, sums + 1);
  return result.loss;
}

Var EncoderObjective::sentence_pairs(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                                     const Var& hidden, double* sums) const {
  const EncoderHeads& heads = *stage.encoder_heads();
  Var logits = heads.next_sentence(ctx, heads.pooled(ctx, hidden, batch.layout));
  LossTargets targets{batch.field(kNextSentenceLabel).tensor, batch.field(kPairWeights).tensor};
  LossResult result = label_loss(ctx, logits, targets);
  add_total(ctx, result, targets.weights, sums);
  if (!model_.language_head) return result.loss;
  // The mean over pairs counts those of this rank alone.
  Tensor ones = ctx.allocate(Dtype::kF32, {batch.layout.tokens}, "loss");
  ctx.kernels.fill(ctx.stream, ones, 1);
  add_total(ctx, result, of_first_tokens(ctx, batch.layout, ones), sums + 2);
  return result.loss;
}

Var EncoderObjective::labels(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                             const Var& hidden, double* sums) const {
  Var outputs = stage.encoder_heads()->labels(ctx, hidden, batch.layout);
  if (model_.labels == LabelKind::kSpans) {
    return given_loss(ctx, outputs, span_loss(ctx, outputs.tensor, batch), sums);
  }
  if (model_.labels == LabelKind::kTokens) {
    LossResult result = label_loss(ctx, outputs, batch.targets);
    add_total(ctx, result, batch.targets.weights, sums);
    return result.loss;
  }
  Tensor weights = of_first_tokens(ctx, batch.layout, batch.targets.weights);
  const Tensor& wanted = batch.field(kClassLabels).tensor;
  if (numbers()) {
    const std::vector<float> w = ctx.download<float>(weights), y = ctx.download<float>(wanted);
    HostLoss loss = squared_error(download_numbers(ctx, outputs.tensor), {y.begin(), y.end()},
                                  {w.begin(), w.end()});
    return given_loss(ctx, outputs, std::move(loss), sums);
  }
  LossResult result = label_loss(ctx, outputs, {wanted, weights});
  add_total(ctx, result, weights, sums);
  return result.loss;
}

Var EncoderObjective::loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                           std::span<const Var> outputs, double* sums) const {
  const Var& hidden = outputs[0];
  if (model_.labels != LabelKind::kNone) return labels(ctx, stage, batch, hidden, sums);
  BEV_CHECK(model_.language_head || pairs(), ErrorKind::kConfig,
            "the model is an encoder without heads, which has no loss; use `embed`, or give it a "
            "head (--label-kind with --num-labels)");
  if (!pairs()) return masked_tokens(ctx, stage, batch, hidden, sums);
  Var loss = sentence_pairs(ctx, stage, batch, hidden, sums);
  return model_.language_head ? add(ctx, masked_tokens(ctx, stage, batch, hidden, sums), loss)
                              : loss;
}

void PairWeights::prepare(std::span<MicroBatch> batches) {
  double counts[2] = {};  // masked tokens, pairs
  for (const MicroBatch& batch : batches) {
    counts[0] += batch.targets.weight_sum;
    counts[1] += static_cast<double>(own_samples(batch));
  }
  View all{counts, Dtype::kF64, {2}};
  ctx_.mesh.grads().host().all_reduce(all, Reduction::kSum, "pairs of the batch").wait();
  const double weight = !masks_ ? 1 : counts[1] > 0 ? counts[0] / counts[1] : 0;
  for (MicroBatch& batch : batches) {
    std::vector<float> weights(static_cast<std::size_t>(batch.layout.sample_count), 0.0f);
    for (const DocumentPiece& piece : batch.layout.own.pieces()) {
      if (piece.sample_begin != 0) continue;
      weights[static_cast<std::size_t>(piece.sample)] = static_cast<float>(weight);
    }
    std::erase_if(batch.fields, [](const BatchField& field) { return field.id == kPairWeights; });
    batch.fields.push_back(
        {kPairWeights, FieldRows::kSamples, ctx_.upload<float>(weights, "batch"), {}});
  }
}

std::unique_ptr<Objective> default_objective(const ModelConfig& model) {
  if (model.encoder.encoder) return std::make_unique<EncoderObjective>(model);
  return std::make_unique<NextToken>(model);
}

}  // namespace bev
