#include "posttrain/completion_objective.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "base/scoped_value.h"
#include "data/preference/preference_sample.h"
#include "kernels/device.h"
#include "ops/elementwise.h"
#include "ops/label_scores.h"
#include "ops/objective.h"
#include "posttrain/completion_rows.h"
#include "posttrain/objectives.h"

namespace bev {

namespace {

// Fields that the preparation adds; each is one number for the whole batch, repeated for every
// sample.
constexpr FieldId kLossScale{"loss_scale"};  // tokens of the batch over what the loss is a mean of
constexpr FieldId kNllScale{"nll_scale"};    // tokens of the batch over those of the likelihood
constexpr FieldId kKl{"kl"};
// Added by it where the data has none, one number per sample.
constexpr FieldId kRefLogp{"ref_logp"};

// Metrics of a batch of one row, which has everything.
std::vector<ObjectiveMetric> metrics_of(const ObjectiveRule& rule, const CompletionInputs& inputs) {
  switch (rule.kind) {
    case ObjectiveKind::kPair:
      return pair_objective(rule.pair, {{-1}, {-1}, {-1}, {-1}, {1}, {1}}).metrics;
    case ObjectiveKind::kKto:
      return kto_objective(rule.kto, {{-1}, {-1}, {}, {}, {1}}).metrics;
    case ObjectiveKind::kReward:
      return reward_objective(rule.reward, {{1}, {0}, {}}).metrics;
    case ObjectiveKind::kPolicy: {
      PolicyBatch batch{{{-1}}, {{-1}}, {}, {}, {{1}}, {{0}}};
      if (inputs.reference) batch.ref_logps = {{-1}};
      if (inputs.sampling) batch.sampling_logps = {{-1}};
      if (rule.policy.critic) batch.values = batch.returns = {{0}};
      return policy_objective(rule.policy, batch).metrics;
    }
    default:
      BEV_FAIL(ErrorKind::kConfig, "--objective ", rule.name, ": is no objective over completions");
  }
}

// Whether the loss is a mean over tokens rather than samples.
bool by_token(const ObjectiveRule& rule) {
  return rule.kind == ObjectiveKind::kPolicy && rule.policy.aggregation == Aggregation::kTokenMean;
}

// This rank's share of what the loss is a mean of: ranks that share samples count them once.
double unit_count(const Context& ctx, const ObjectiveRule& rule, const MicroBatch& batch) {
  if (by_token(rule)) return batch.targets.weight_sum;
  return ctx.mesh.cp().rank() == 0 ? static_cast<double>(batch.layout.sample_count) : 0;
}

double one_of(const std::vector<double>& field) { return field.empty() ? 0 : field.front(); }

Numbers every_second(const std::vector<double>& values, std::size_t first) {
  Numbers out;
  for (std::size_t i = first; i < values.size(); i += 2) out.push_back(values[i]);
  return out;
}

// The rows of values at all tokens; empty if there are no values.
NumberRows cut(std::span<const CompletionRow> rows, const std::vector<double>& values) {
  NumberRows out;
  for (const CompletionRow& row : rows) {
    if (values.empty()) return {};
    auto begin = values.begin() + static_cast<std::ptrdiff_t>(row.begin);
    out.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(row.length));
  }
  return out;
}

}  // namespace

// The terms of a micro-batch as sums over its units, and the gradient of the first by the
// log-probability of every token.
struct CompletionObjective::Evaluated {
  double loss = 0;
  std::vector<ObjectiveMetric> metrics;
  std::vector<double> gradient;
  std::vector<double> value_gradient = {};  // by every value of a critic

  // Gradient by the sum of a row, where it counts.
  void pull(const CompletionRow& row, std::span<const double> weights, double slope) {
    for (std::size_t t = row.begin; t < row.begin + row.length; ++t) {
      if (weights[t] != 0) gradient[t] += slope;
    }
  }
};

namespace {

using Evaluated = CompletionObjective::Evaluated;

// What objectives see of a micro-batch.
struct Tokens {
  Context& ctx;
  const MicroBatch& batch;
  const CompletionRows& map;
  std::vector<double> logps, weights;
  std::vector<double> critic = {};  // values of all tokens; empty: there is no critic

  std::span<const CompletionRow> rows() const { return map.rows(); }
  Numbers sums() const { return row_sums(rows(), logps, weights); }
  Numbers counts() const {
    return row_sums(rows(), std::vector<double>(logps.size(), 1.0), weights);
  }
  Numbers number(FieldId id) const { return sample_field(ctx, batch, id); }
  std::vector<double> values(FieldId id) const {
    const BatchField* field = batch.find(id);
    return field != nullptr ? map.gather(field->tensor) : std::vector<double>();
  }
};

// Adds the likelihood of the chosen rows, whose every target counts.
void add_likelihood(const PairSettings& settings, const Tokens& in, double scale, Evaluated& out) {
  std::vector<double> targets = in.map.gather(in.batch.targets.targets);
  double per_token = one_of(in.number(kNllScale)) / scale, sum = 0;
  for (std::size_t i = 0; i < in.rows().size(); i += 2) {
    const CompletionRow& row = in.rows()[i];
    for (std::size_t t = row.begin; t < row.begin + row.length; ++t) {
      if (targets[t] < 0) continue;
      sum -= in.logps[t];
      out.gradient[t] -= settings.nll_factor() * per_token;
    }
  }
  out.loss += settings.nll_factor() * per_token * sum;
  auto nll = std::ranges::find(out.metrics, "nll_loss", &ObjectiveMetric::name);
  nll->sum = per_token * sum;
}

void evaluate_pairs(const ObjectiveRule& rule, const Tokens& in, double scale, Evaluated& out) {
  Numbers sums = in.sums(), counts = in.counts();
  PairValue value = pair_objective(
      rule.pair, {every_second(sums, 0), every_second(sums, 1), in.number(kRefChosenLogp),
                  in.number(kRefRejectedLogp), every_second(counts, 0), every_second(counts, 1)});
  out.loss = value.loss * value.weight;
  out.metrics = std::move(value.metrics);
  for (std::size_t i = 0; i < value.chosen.size(); ++i) {
    out.pull(in.rows()[2 * i], in.weights, value.chosen[i] * value.weight);
    out.pull(in.rows()[2 * i + 1], in.weights, value.rejected[i] * value.weight);
  }
  if (rule.pair.nll_factor() != 0) add_likelihood(rule.pair, in, scale, out);
}

void evaluate_kto(const ObjectiveRule& rule, const Tokens& in, Evaluated& out) {
  KtoValue value = kto_objective(
      rule.kto, {in.sums(), in.number(kRefLogp), {one_of(in.number(kKl))}, {}, in.number(kLabel)});
  out.loss = value.loss * value.weight;
  out.metrics = std::move(value.metrics);
  for (std::size_t i = 0; i < value.policy.size(); ++i) {
    out.pull(in.rows()[i], in.weights, value.policy[i] * value.weight);
  }
}

// The values are scores of all tokens, those of a row at its last token that is not pad_token.
void evaluate_rewards(const ObjectiveRule& rule, const Tokens& in, std::int64_t pad_token,
                      Evaluated& out) {
  std::vector<double> ids = in.map.gather(in.batch.tokens);
  const std::vector<std::int32_t> tokens(ids.begin(), ids.end());
  std::vector<std::size_t> places;
  RewardBatch batch;
  for (const CompletionRow& row : in.rows()) {
    std::span<const std::int32_t> own = std::span(tokens).subspan(row.begin, row.length);
    places.push_back(row.begin + scored_token(own, pad_token));
    Numbers& side = places.size() % 2 == 1 ? batch.chosen : batch.rejected;
    side.push_back(in.logps[places.back()]);
  }
  batch.margins = in.number(kMargin);
  RewardValue value = reward_objective(rule.reward, batch);
  out.loss = value.loss * value.weight;
  out.metrics = std::move(value.metrics);
  for (std::size_t i = 0; i < value.chosen.size(); ++i) {
    out.gradient[places[2 * i]] = value.chosen[i] * value.weight;
    out.gradient[places[2 * i + 1]] = value.rejected[i] * value.weight;
  }
}

// Slopes of rows times `factor`, at their tokens.
void spread(std::span<const CompletionRow> rows, const NumberRows& slopes, double factor,
            std::vector<double>& out) {
  for (std::size_t i = 0; i < slopes.size(); ++i) {
    for (std::size_t t = 0; t < slopes[i].size(); ++t) {
      out[rows[i].begin + t] = slopes[i][t] * factor;
    }
  }
}

void evaluate_policy(const ObjectiveRule& rule, const Tokens& in, Evaluated& out) {
  PolicyBatch batch;
  batch.logps = cut(in.rows(), in.logps);
  batch.mask = cut(in.rows(), in.weights);
  batch.old_logps = cut(in.rows(), in.values(kOldLogps));
  batch.ref_logps = cut(in.rows(), in.values(kRefLogps));
  batch.sampling_logps = cut(in.rows(), in.values(kSamplingLogps));
  batch.advantages = cut(in.rows(), in.values(kTokenAdvantages));
  if (batch.advantages.empty()) {
    for (double advantage : in.number(kAdvantage)) batch.advantages.push_back({advantage});
  }
  batch.values = cut(in.rows(), in.critic);
  if (!batch.values.empty()) {
    batch.old_values = cut(in.rows(), in.values(kOldValues));
    batch.returns = cut(in.rows(), in.values(kReturns));
  }
  PolicyValue value = policy_objective(rule.policy, batch);
  out.loss = value.loss * value.weight;
  out.metrics = std::move(value.metrics);
  spread(in.rows(), value.logps, value.weight, out.gradient);
  out.value_gradient.resize(in.critic.size());
  spread(in.rows(), value.values, value.weight, out.value_gradient);
}

// Adds values to sums on the device.
void add_to(Context& ctx, double* sums, const std::vector<double>& values) {
  View at{sums, Dtype::kF64, {std::ssize(values)}};
  auto all = ctx.download<double>(at);
  for (std::size_t i = 0; i < values.size(); ++i) all[i] += values[i];
  ctx.kernels.device.upload(ctx.stream, all.data(), at);
}

// What an objective is a function of: a number for every token, [T] or [T, 1].
Var token_values(Context& ctx, const ObjectiveRule& rule, const ModelStage& stage,
                 const MicroBatch& batch, std::span<const Var> outputs) {
  if (rule.kind != ObjectiveKind::kReward) return target_log_probs(ctx, stage, batch, outputs);
  const Param* head = stage.label_head();
  BEV_CHECK(head != nullptr && head->shape[0] == 1, ErrorKind::kConfig, "--objective ", rule.name,
            ": needs a model with a head of one label; give --num-labels 1");
  return label_scores(ctx, outputs[0], *head, batch.layout.tokens);
}

// The values [T, 1] of a critic's head.
Var critic_values(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                  std::span<const Var> outputs) {
  const Param* head = stage.value_head();
  BEV_CHECK(head != nullptr, ErrorKind::kConfig,
            "--objective ppo: needs a model with a head of values; give --value-head");
  return label_scores(ctx, outputs[0], *head, batch.layout.tokens);
}

Tensor upload_wide(Context& ctx, const std::vector<double>& values, const char* tag) {
  if (ctx.wide() == Dtype::kF64) return ctx.upload<double>(values, tag);
  return ctx.upload<float>(std::vector<float>(values.begin(), values.end()), tag);
}

}  // namespace

CompletionObjective::CompletionObjective(const ObjectiveRule& rule, const CompletionInputs& inputs)
    : rule_(rule), terms_{concat(rule.name, " loss")} {
  for (const ObjectiveMetric& metric : metrics_of(rule, inputs)) {
    if (metric.adds) terms_.push_back(metric.name);
  }
}

void CompletionObjective::add_weights(const Context& ctx, const MicroBatch& batch,
                                      std::span<double> weights) const {
  weights[0] += static_cast<double>(batch.layout.tokens);
  double units = rule_.kind == ObjectiveKind::kPolicy ? batch.targets.weight_sum
                                                      : unit_count(ctx, rule_, batch);
  for (double& weight : weights.subspan(1)) weight += units;
  for (std::size_t i = 1; i < terms_.size(); ++i) {
    if (terms_[i] == "mean_reward") weights[i] += units;  // of both completions
  }
  if (rule_.kind != ObjectiveKind::kKto || ctx.mesh.cp().rank() != 0) return;
  Numbers labels = sample_field(ctx, batch, kLabel);
  double desirable = std::accumulate(labels.begin(), labels.end(), 0.0);
  for (std::size_t i = 1; i < terms_.size(); ++i) {
    if (terms_[i].ends_with("/chosen")) weights[i] += desirable - units;
    if (terms_[i].ends_with("/rejected")) weights[i] -= desirable;
  }
}

CompletionObjective::Evaluated CompletionObjective::evaluate(Context& ctx, const ModelStage& stage,
                                                             const MicroBatch& batch,
                                                             const Tensor& values,
                                                             const Tensor& critic) const {
  CompletionRows map(ctx, batch.layout);
  Tokens in{ctx, batch, map, map.gather(values), map.gather(batch.targets.weights)};
  if (!critic.empty()) in.critic = map.gather(critic);
  Evaluated out;
  out.gradient.resize(map.tokens());
  out.value_gradient.resize(in.critic.size());
  if (map.rows().empty()) return out;
  double scale =
      batch.field(kLossScale).tensor.numel() > 0 ? one_of(sample_field(ctx, batch, kLossScale)) : 0;
  switch (rule_.kind) {
    case ObjectiveKind::kPair:
      evaluate_pairs(rule_, in, scale, out);
      break;
    case ObjectiveKind::kKto:
      evaluate_kto(rule_, in, out);
      break;
    case ObjectiveKind::kReward:
      evaluate_rewards(rule_, in, stage.config().pad_token, out);
      break;
    default:
      evaluate_policy(rule_, in, out);
  }
  out.loss *= scale;
  for (double& slope : out.gradient) slope *= scale;
  for (double& slope : out.value_gradient) slope *= scale;
  return out;
}

Var CompletionObjective::loss(Context& ctx, const ModelStage& stage, const MicroBatch& batch,
                              std::span<const Var> outputs, double* sums) const {
  Var values = token_values(ctx, rule_, stage, batch, outputs);
  Var critic;
  const bool has_critic = rule_.kind == ObjectiveKind::kPolicy && rule_.policy.critic;
  if (has_critic) critic = critic_values(ctx, stage, batch, outputs);
  Evaluated value = evaluate(ctx, stage, batch, values.tensor, critic.tensor);
  // All tp and cp ranks of the stage know the whole sums; one of them counts.
  bool counts = ctx.mesh.tp().rank() == 0 && ctx.mesh.cp().rank() == 0;
  if (counts) {
    std::vector<double> added = {value.loss};
    for (const ObjectiveMetric& metric : value.metrics) {
      if (metric.adds) added.push_back(metric.sum);
    }
    add_to(ctx, sums, added);
  }
  View step{const_cast<double*>(&ctx.step->loss_factor), Dtype::kF64, {1}};
  double factor = ctx.download<double>(step).front();
  double share = ctx.mesh.cp().rank() == 0 ? factor * value.loss : 0;
  CompletionRows map(ctx, batch.layout);
  auto given = [&](const Var& by, std::vector<double>& slopes, double loss) {
    for (double& slope : slopes) slope *= factor;
    Tensor gradient = upload_wide(ctx, map.own(slopes), "gradients");
    return given_gradient(ctx, "completion objective", by, upload_wide(ctx, {loss}, "loss"),
                          gradient.reshape(by.shape()));
  };
  Var loss = given(values, value.gradient, share);
  return has_critic ? add(ctx, loss, given(critic, value.value_gradient, 0)) : loss;
}

CompletionPreparation::CompletionPreparation(const ObjectiveRule& rule, RankModel& policy,
                                             RankModel* reference)
    : rule_(rule), policy_(policy), reference_(reference) {}

void CompletionPreparation::prepare(std::span<MicroBatch> batches) {
  set_scales(batches);
  if (reference_ != nullptr && rule_.uses_reference()) add_reference(batches);
  if (rule_.kind == ObjectiveKind::kKto) add_kl(batches);
}

namespace {

void set_everywhere(Context& ctx, std::span<MicroBatch> batches, FieldId id, double value) {
  for (MicroBatch& batch : batches) {
    std::vector<double> values(static_cast<std::size_t>(batch.layout.sample_count), value);
    set_sample_field(ctx, batch, id, values);
  }
}

// Targets of the chosen rows on this rank.
double chosen_targets(const Context& ctx, const MicroBatch& batch) {
  std::vector<std::int32_t> targets = ctx.download<std::int32_t>(batch.targets.targets);
  double count = 0;
  for (const DocumentPiece& piece : batch.layout.own.pieces()) {
    if (piece.document % 2 != 0) continue;
    auto begin = targets.begin() + piece.row;
    count += static_cast<double>(
        std::count_if(begin, begin + piece.count, [](std::int32_t id) { return id >= 0; }));
  }
  return count;
}

using UseLogProbs = FunctionRef<void(std::size_t batch, const Tensor& logps)>;

class LogProbSink final : public OutputSink {
 public:
  LogProbSink(RankModel& model, std::span<const MicroBatch> batches, UseLogProbs use)
      : model_(model), batches_(batches), use_(use) {}
  void on_outputs(std::int64_t micro_batch, std::span<const Var> outputs) override {
    auto at = static_cast<std::size_t>(micro_batch);
    use_(at, target_log_probs(model_.ctx(), model_.head_stage(), batches_[at], outputs).tensor);
  }

 private:
  RankModel& model_;
  std::span<const MicroBatch> batches_;
  UseLogProbs use_;
};

// Passes the log-probabilities of each micro-batch to `use`, on the ranks of the last stage.
void for_log_probs(RankModel& model, std::span<const MicroBatch> batches, UseLogProbs use) {
  LogProbSink sink(model, batches, use);
  model.forward_outputs(batches, sink);
}

// Sums of the completions of every micro-batch, on the ranks of the last stage.
std::vector<std::vector<double>> completion_sums(RankModel& model,
                                                 std::span<const MicroBatch> batches) {
  std::vector<std::vector<double>> out(batches.size());
  auto use = [&](std::size_t i, const Tensor& logps) {
    CompletionRows map(model.ctx(), batches[i].layout);
    out[i] = row_sums(map.rows(), map.gather(logps), map.gather(batches[i].targets.weights));
  };
  for_log_probs(model, batches, use);
  return out;
}

// The mismatched completions of a micro-batch as one of their own.
MicroBatch mismatched(Context& ctx, const MicroBatch& batch) {
  const BatchField &tokens = batch.field(kKlTokens), &targets = batch.field(kKlTargets);
  MicroBatch out;
  out.layout = tokens.layout;
  out.tokens = tokens.tensor;
  std::vector<float> weights;
  for (std::int32_t id : ctx.download<std::int32_t>(targets.tensor)) {
    weights.push_back(id >= 0 ? 1 : 0);
  }
  out.targets = {targets.tensor, ctx.upload<float>(weights, "batch"), 0};
  return out;
}

}  // namespace

void CompletionPreparation::set_scales(std::span<MicroBatch> batches) {
  Context& ctx = policy_.ctx();
  bool likes = rule_.kind == ObjectiveKind::kPair && rule_.pair.nll_factor() != 0;
  std::array<double, 3> counts{};  // tokens, units of the loss, tokens of the likelihood
  for (const MicroBatch& batch : batches) {
    counts[0] += static_cast<double>(batch.layout.tokens);
    counts[1] += unit_count(ctx, rule_, batch);
    if (likes) counts[2] += chosen_targets(ctx, batch);
  }
  ctx.mesh.grads()
      .host()
      .all_reduce({counts.data(), Dtype::kF64, {3}}, Reduction::kSum, "counts of the objective")
      .wait();
  set_everywhere(ctx, batches, kLossScale, counts[1] > 0 ? counts[0] / counts[1] : 0);
  if (likes) set_everywhere(ctx, batches, kNllScale, counts[2] > 0 ? counts[0] / counts[2] : 0);
}

void CompletionPreparation::add_reference(std::span<MicroBatch> batches) {
  Context& ctx = reference_->ctx();
  if (batches.empty()) return;
  const ScopedValue<bool> adapters(ctx.adapters, reference_ != &policy_);
  if (rule_.kind == ObjectiveKind::kPolicy) {
    if (batches.front().find(kRefLogps) != nullptr) return;
    auto use = [&](std::size_t i, const Tensor& logps) {
      CompletionRows map(ctx, batches[i].layout);
      std::vector<double> own = map.own(map.gather(logps));
      batches[i].fields.push_back(
          {kRefLogps, FieldRows::kTokens, ctx.upload<double>(own, "batch"), {}});
    };
    return for_log_probs(*reference_, batches, use);
  }
  bool pairs = rule_.kind == ObjectiveKind::kPair;
  if (batches.front().find(pairs ? kRefChosenLogp : kRefLogp) != nullptr) return;
  std::vector<std::vector<double>> sums = completion_sums(*reference_, batches);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (pairs) {
      set_sample_field(ctx, batches[i], kRefChosenLogp, every_second(sums[i], 0));
      set_sample_field(ctx, batches[i], kRefRejectedLogp, every_second(sums[i], 1));
    } else {
      set_sample_field(ctx, batches[i], kRefLogp, sums[i]);
    }
  }
}

void CompletionPreparation::add_kl(std::span<MicroBatch> batches) {
  Context& ctx = policy_.ctx();
  std::vector<MicroBatch> others;
  for (const MicroBatch& batch : batches) others.push_back(mismatched(ctx, batch));
  std::array<double, 2> sums{};
  auto add = [&](RankModel& model, double sign) {
    for (const std::vector<double>& part : completion_sums(model, others)) {
      for (double logp : part) sums[0] += sign * logp;
    }
  };
  add(policy_, 1);
  if (reference_ != nullptr) {
    const ScopedValue<bool> adapters(reference_->ctx().adapters, reference_ != &policy_);
    add(*reference_, -1);
  }
  for (const MicroBatch& batch : others) sums[1] += static_cast<double>(batch.layout.sample_count);
  // Context-parallel ranks have the same sums. Only those of the last stage are used.
  ctx.mesh.dp()
      .host()
      .all_reduce({sums.data(), Dtype::kF64, {2}}, Reduction::kSum, "kl of the objective")
      .wait();
  set_everywhere(ctx, batches, kKl, sums[1] > 0 ? std::max(0.0, sums[0] / sums[1]) : 0);
}

}  // namespace bev
