#include "posttrain/distill_objective.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "ops/collective.h"
#include "ops/logit_loss.h"
#include "posttrain/completion_rows.h"
#include "posttrain/objectives.h"

namespace bev {

namespace {

constexpr FieldId kTeacherStates{"teacher_states"};  // [T, H of the teacher]
// The teacher's likeliest tokens: [T, k] i32, and [T, k + 1] f64 with that of all others.
constexpr FieldId kTeacherIds{"teacher_ids"}, kTeacherLogps{"teacher_logps"};

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

// The logits of a model's final hidden states, which are copied over tp.
NumberRows logits_of(RankModel& model, const Var& states) {
  const HeadSpec head = model.head_stage().head();
  Tensor own = lm_head_logits(model.ctx(), states, head);
  std::int64_t vocabulary = head.weight->shape[0];
  return rows_of(download_wide(model.ctx(), gather_vocabulary(model.ctx(), own, vocabulary)),
                 vocabulary);
}

std::vector<TopLogps> top_of(const Context& ctx, const MicroBatch& batch) {
  const Tensor& ids = batch.field(kTeacherIds).tensor;
  const std::int64_t k = ids.shape()[1];
  std::vector<std::int32_t> all = ctx.download<std::int32_t>(ids);
  std::vector<double> logps = ctx.download<double>(batch.field(kTeacherLogps).tensor);
  std::vector<TopLogps> out;
  for (std::int64_t t = 0; t < ids.shape()[0]; ++t) {
    auto id = all.begin() + t * k;
    auto logp = logps.begin() + t * (k + 1);
    out.push_back({{id, id + k}, {logp, logp + k + 1}});
  }
  return out;
}

// The loss of a micro-batch, chunk by chunk.
struct DistillRun {
  Context& ctx;
  const DistillSettings& settings;
  const HeadSpec head;
  RankModel* teacher;              // null: there is `top`
  Var teacher_states;              // copied over tp
  std::vector<TopLogps> top = {};  // of every token
  std::vector<double> weights, targets;
  double factor = 1;  // of the gradient
  // Sums over the tokens: of the loss, the divergences and the cross entropies.
  double loss = 0, divergences = 0, entropies = 0;

  NumberRows teacher_logits(Range rows) const {
    Var part = teacher_states;
    part.tensor = part.tensor.rows(rows.begin, rows.end);
    return logits_of(*teacher, part);
  }

  void operator()(Range rows, const Tensor& raw, bool with_gradient) {
    const std::int64_t vocabulary = head.weight->shape[0];
    if (rows.size() == 0) return;
    Tensor whole = gather_vocabulary(ctx, final_logits(ctx, wide(raw), head), vocabulary);
    DistillBatch batch;
    batch.student = {rows_of(download_wide(ctx, whole), vocabulary)};
    if (teacher != nullptr) {
      batch.teacher = {teacher_logits(rows)};
    } else {
      batch.top = {{top.begin() + rows.begin, top.begin() + rows.end}};
    }
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
  states.placement = hidden.placement;
  const bool by_states = batch.find(kTeacherStates) != nullptr;
  if (by_states) states.tensor = batch.field(kTeacherStates).tensor;
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
                 .teacher = by_states ? teacher_ : nullptr,
                 .teacher_states = states,
                 .top = by_states ? std::vector<TopLogps>() : top_of(ctx, batch),
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

void set_field(MicroBatch& batch, FieldId id, Tensor tensor) {
  std::erase_if(batch.fields, [&](const BatchField& field) { return field.id == id; });
  batch.fields.push_back({id, FieldRows::kTokens, std::move(tensor), {}});
}

// Rows of this rank's tokens, of k ids and k + 1 log-probabilities.
void set_top(Context& ctx, MicroBatch& batch, std::span<const std::int32_t> ids,
             std::span<const double> logps, std::int64_t k) {
  const std::int64_t tokens = batch.layout.tokens;
  set_field(batch, kTeacherIds, ctx.upload<std::int32_t>(ids, "batch").reshape({tokens, k}));
  set_field(batch, kTeacherLogps, ctx.upload<double>(logps, "batch").reshape({tokens, k + 1}));
}

// The tokens of each document of a micro-batch. Collective over cp.
std::vector<std::vector<std::int32_t>> documents_of(const CompletionRows& map,
                                                    const MicroBatch& batch) {
  const std::vector<double> tokens = map.gather(batch.tokens);
  std::vector<std::vector<std::int32_t>> out;
  for (const CompletionRow& row : map.rows()) {
    auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(row.begin);
    out.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(row.length));
  }
  return out;
}

class StateSink final : public OutputSink {
 public:
  StateSink(RankModel& model, std::span<MicroBatch> batches, const DistillSettings& settings,
            TeacherLogits* kept)
      : model_(model), batches_(batches), settings_(settings), kept_(kept) {}
  void on_outputs(std::int64_t micro_batch, std::span<const Var> outputs) override {
    MicroBatch& batch = batches_[static_cast<std::size_t>(micro_batch)];
    Var states = enter_tensor_parallel(model_.ctx(), outputs[0], batch.layout.tokens);
    if (settings_.top_k == 0) return set_field(batch, kTeacherStates, states.tensor);
    keep_likeliest(batch, states);
  }

 private:
  std::int64_t k() const {
    return std::min(settings_.top_k, model_.head_stage().head().weight->shape[0]);
  }

  void keep_likeliest(MicroBatch& batch, const Var& states) {
    constexpr std::int64_t kRows = 256;  // whose logits exist at a time
    std::vector<std::int32_t> ids;
    std::vector<double> logps;
    for (std::int64_t begin = 0; begin < batch.layout.tokens; begin += kRows) {
      Var part = states;
      part.tensor = states.tensor.rows(begin, std::min(begin + kRows, batch.layout.tokens));
      for (const Numbers& logits : logits_of(model_, part)) {
        TopLogps top = top_logps(logits, settings_.temperature, k());
        ids.insert(ids.end(), top.ids.begin(), top.ids.end());
        logps.insert(logps.end(), top.logps.begin(), top.logps.end());
      }
    }
    set_top(model_.ctx(), batch, ids, logps, k());
    if (kept_ != nullptr) store(batch);
  }

  // All context-parallel ranks have a part of every document; one of them writes.
  void store(const MicroBatch& batch) {
    Context& ctx = model_.ctx();
    CompletionRows map(ctx, batch.layout);
    const auto documents = documents_of(map, batch);
    const std::vector<double> ids = map.gather(batch.field(kTeacherIds).tensor, k());
    const std::vector<double> logps = map.gather(batch.field(kTeacherLogps).tensor, k() + 1);
    if (ctx.mesh.tp().rank() != 0 || ctx.mesh.cp().rank() != 0) return;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      const CompletionRow& row = map.rows()[i];
      auto rows = [&](const std::vector<double>& all, std::int64_t columns) {
        auto width = static_cast<std::size_t>(columns);
        return std::span(all).subspan(row.begin * width, row.length * width);
      };
      const auto own_ids = rows(ids, k()), own_logps = rows(logps, k() + 1);
      kept_->add(documents[i],
                 {{own_ids.begin(), own_ids.end()}, {own_logps.begin(), own_logps.end()}});
    }
  }

  RankModel& model_;
  std::span<MicroBatch> batches_;
  DistillSettings settings_;
  TeacherLogits* kept_;
};

}  // namespace

void DistillPreparation::prepare(std::span<MicroBatch> batches) {
  StateSink sink(teacher_, batches, settings_, kept_);
  teacher_.forward_outputs(batches, sink);
}

void StoredPreparation::prepare(std::span<MicroBatch> batches) {
  const PipelineShape& pipeline = student_.pipeline().shape;
  const std::int64_t last = pipeline.place_of(pipeline.stages() - 1).rank;
  if (student_.mesh().at().pp != last) return;  // only the loss needs them
  Context& ctx = student_.ctx();
  const std::int64_t k = logits_.format().top_k;
  for (MicroBatch& batch : batches) {
    CompletionRows map(ctx, batch.layout);
    std::vector<double> ids, logps;
    for (const std::vector<std::int32_t>& document : documents_of(map, batch)) {
      DocumentLogits found = logits_.find(document);
      ids.insert(ids.end(), found.ids.begin(), found.ids.end());
      logps.insert(logps.end(), found.logps.begin(), found.logps.end());
    }
    const std::vector<double> own = map.own(ids, k);
    const std::vector<std::int32_t> own_ids(own.begin(), own.end());
    set_top(ctx, batch, own_ids, map.own(logps, k + 1), k);
  }
}

}  // namespace bev
