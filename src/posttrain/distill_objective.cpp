#include "posttrain/distill_objective.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "ops/collective.h"
#include "ops/logit_loss.h"
#include "posttrain/objectives.h"

namespace bev {

namespace {

constexpr FieldId kTeacherStates{"teacher_states"};  // [T, H of the teacher]

std::vector<double> download_wide(const Context& ctx, const View& view) {
  if (view.dtype == Dtype::kF64) return ctx.download<double>(view);
  std::vector<float> values = ctx.download<float>(view);
  return {values.begin(), values.end()};
}

NumberRows rows_of(const std::vector<double>& values, std::int64_t width) {
  NumberRows rows;
  for (auto at = values.begin(); at != values.end(); at += width) rows.emplace_back(at, at + width);
  return rows;
}

// Adds values to sums on the device.
void add_to(Context& ctx, double* sums, const std::vector<double>& values) {
  View at{sums, Dtype::kF64, {std::ssize(values)}};
  auto all = ctx.download<double>(at);
  for (std::size_t i = 0; i < values.size(); ++i) all[i] += values[i];
  ctx.kernels.device.upload(ctx.stream, all.data(), at);
}

// The loss of a micro-batch, chunk by chunk.
struct DistillRun {
  Context& ctx;
  const DistillSettings& settings;
  const HeadSpec head;
  Context& teacher_ctx;
  const HeadSpec teacher_head;
  Var teacher_states;  // copied over tp
  std::vector<double> weights, targets;
  double factor = 1;  // of the gradient
  // Sums over the tokens: of the loss, the divergences and the cross entropies.
  double loss = 0, divergences = 0, entropies = 0;

  NumberRows teacher_logits(Range rows) const {
    Var part = teacher_states;
    part.tensor = part.tensor.rows(rows.begin, rows.end);
    Tensor own = lm_head_logits(teacher_ctx, part, teacher_head);
    std::int64_t vocabulary = teacher_head.weight->shape[0];
    return rows_of(download_wide(ctx, gather_vocabulary(teacher_ctx, own, vocabulary)), vocabulary);
  }

  void operator()(Range rows, const Tensor& raw, bool with_gradient) {
    const std::int64_t vocabulary = head.weight->shape[0];
    if (rows.size() == 0) return;
    Tensor whole = gather_vocabulary(ctx, final_logits(ctx, wide(raw), head), vocabulary);
    DistillBatch batch;
    batch.student = {rows_of(download_wide(ctx, whole), vocabulary)};
    batch.teacher = {teacher_logits(rows)};
    auto part = [&](const std::vector<double>& all) {
      return Numbers(all.begin() + rows.begin, all.begin() + rows.end);
    };
    batch.mask = {part(weights)};
    batch.labels = {part(targets)};
    DistillValue value = distill_objective(settings, batch);
    loss += value.loss * value.weight;
    divergences += value.metrics[0].sum;
    entropies += value.metrics[1].sum;
    if (!with_gradient) return;
    write_gradient(batch.student[0], value.student[0], value.weight * factor, raw);
  }

  // A copy that final_logits may change.
  Tensor wide(const Tensor& raw) const {
    Tensor copy = ctx.allocate(ctx.wide(), raw.shape(), "logits");
    ctx.kernels.elementwise.axpby(ctx.stream, 1, raw, 0, copy);
    return copy;
  }

  // The gradient by the final logits, of all tokens, becomes that by this rank's raw ones.
  void write_gradient(const NumberRows& logits, const NumberRows& slopes, double scale,
                      const Tensor& raw) const {
    const Group& tp = ctx.mesh.tp();
    Range own = shard_range(head.weight->shape[0], tp.size(), tp.rank());
    const auto stride = static_cast<std::size_t>(raw.shape()[1]);
    std::vector<double> values(static_cast<std::size_t>(raw.shape()[0]) * stride);
    for (std::size_t row = 0; row < slopes.size(); ++row) {
      for (std::int64_t i = own.begin; i < own.end; ++i) {
        auto token = static_cast<std::size_t>(i);
        double capped = head.softcap > 0 ? logits[row][token] / head.softcap : 0;
        values[row * stride + static_cast<std::size_t>(i - own.begin)] =
            scale * slopes[row][token] * head.logit_scale * (1 - capped * capped);
      }
    }
    Tensor gradient =
        ctx.wide() == Dtype::kF64
            ? ctx.upload<double>(values, "gradients")
            : ctx.upload<float>(std::vector<float>(values.begin(), values.end()), "gradients");
    ctx.kernels.elementwise.axpby(ctx.stream, 1, gradient.reshape(raw.shape()), 0, raw);
  }
};

}  // namespace

std::vector<std::string> DistillObjective::terms() const {
  return {"distill loss", "divergence", "cross entropy"};
}

void DistillObjective::add_weights(const Context&, const MicroBatch& batch,
                                   std::span<double> weights) const {
  for (double& weight : weights) weight += batch.targets.weight_sum;
}

Var DistillObjective::loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                           std::span<const Var> outputs, double* sums) const {
  Var hidden = enter_tensor_parallel(ctx, outputs[0], batch.layout.tokens);
  Var states;
  states.tensor = batch.field(kTeacherStates).tensor;
  states.placement = hidden.placement;
  std::vector<float> weights = ctx.download<float>(batch.targets.weights);
  std::vector<std::int32_t> targets = ctx.download<std::int32_t>(batch.targets.targets);
  // What is no target has no loss.
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] < 0) weights[i] = 0;
  }
  View factor{const_cast<double*>(&ctx.step->loss_factor), Dtype::kF64, {1}};
  DistillRun run{.ctx = ctx,
                 .settings = settings_,
                 .head = stage.head(),
                 .teacher_ctx = teacher_->ctx(),
                 .teacher_head = teacher_->head_stage().head(),
                 .teacher_states = states,
                 .weights = {weights.begin(), weights.end()},
                 .targets = {targets.begin(), targets.end()},
                 .factor = ctx.download<double>(factor).front()};
  auto each = [&](Range rows, const Tensor& raw, bool with_gradient) {
    run(rows, raw, with_gradient);
  };
  Var loss = logit_loss(ctx, hidden, run.head, each);
  // All tp ranks have the sums over this rank's tokens.
  if (ctx.mesh.tp().rank() == 0) {
    add_to(ctx, sums, {run.loss, run.divergences, run.entropies});
  }
  return loss;
}

namespace {

class StateSink final : public OutputSink {
 public:
  StateSink(RankModel& model, std::span<MicroBatch> batches) : model_(model), batches_(batches) {}
  void on_outputs(std::int64_t micro_batch, std::span<const Var> outputs) override {
    MicroBatch& batch = batches_[static_cast<std::size_t>(micro_batch)];
    Var states = enter_tensor_parallel(model_.ctx(), outputs[0], batch.layout.tokens);
    std::erase_if(batch.fields, [](const BatchField& field) { return field.id == kTeacherStates; });
    batch.fields.push_back({kTeacherStates, FieldRows::kTokens, states.tensor, {}});
  }

 private:
  RankModel& model_;
  std::span<MicroBatch> batches_;
};

}  // namespace

void DistillPreparation::prepare(std::span<MicroBatch> batches) {
  StateSink sink(teacher_, batches);
  teacher_.forward_outputs(batches, sink);
}

}  // namespace bev
