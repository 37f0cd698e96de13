#include "posttrain/objectives.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "base/error.h"

namespace bev {

namespace {

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double log_sigmoid(double x) { return -softplus(-x); }
double sum_of(const Numbers& values) { return std::accumulate(values.begin(), values.end(), 0.0); }
double at(const Numbers& values, std::size_t i) { return values.empty() ? 0 : values[i]; }

// A loss and its derivatives with respect to a and b.
struct Pull {
  double loss = 0, a = 0, b = 0;
};

// log(1 - exp(x)) of x < 0.
double log1mexp(double x) {
  return x > -0.6931471805599453 ? std::log(-std::expm1(x)) : std::log1p(-std::exp(x));
}

// A completion of probability 1 is taken to be a little less likely: its odds are infinite.
Pull odds_ratio(double beta, double a, double b) {
  constexpr double kSurest = -std::numeric_limits<double>::epsilon();
  double chosen = std::min(a, kSurest), rejected = std::min(b, kSurest);
  double odds = (chosen - rejected) - (log1mexp(chosen) - log1mexp(rejected));
  double slope = -beta * sigmoid(-odds);
  return {-beta * log_sigmoid(odds), a < kSurest ? slope / -std::expm1(chosen) : 0,
          b < kSurest ? -slope / -std::expm1(rejected) : 0};
}

Pull discovered(double u) {
  constexpr double kTemperature = 0.05;
  double scaled = u / kTemperature, steep = sigmoid(scaled) * sigmoid(-scaled) / kTemperature;
  double exponential = std::exp(log_sigmoid(scaled) - u);
  double rising = std::exp(log_sigmoid(scaled) + log_sigmoid(-scaled) - u) / kTemperature;
  double slope = -steep * softplus(-u) - sigmoid(-scaled) * sigmoid(-u) + rising - exponential;
  return {sigmoid(-scaled) * softplus(-u) + exponential, slope, -slope};
}

// The derivatives are those by a and b divided by beta where the formula is one of beta a, beta b.
Pull pull_of_scaled(const PairSettings& settings, double a, double b) {
  double u = a - b - settings.gamma, e = settings.label_smoothing;
  auto even = [&](double loss, double slope) { return Pull{loss, slope, -slope}; };
  switch (settings.formula) {
    case PairFormula::kHinge:
      return even(std::max(0.0, 1 - u), u < 1 ? -1 : 0);
    case PairFormula::kExo:
      return even(sigmoid(u) * (log_sigmoid(u) - std::log1p(-e)) +
                      sigmoid(-u) * (log_sigmoid(-u) - std::log(e)),
                  sigmoid(u) * sigmoid(-u) * (u - std::log1p(-e) + std::log(e)));
    case PairFormula::kNca:
      return {softplus(-a) + 0.5 * (softplus(a) + softplus(b)), -sigmoid(-a) + 0.5 * sigmoid(a),
              0.5 * sigmoid(b)};
    case PairFormula::kBco:
      return {softplus(-a) + softplus(b), -sigmoid(-a), sigmoid(b)};
    case PairFormula::kApoZero:
      return {sigmoid(-a) + sigmoid(b), -sigmoid(a) * sigmoid(-a), sigmoid(b) * sigmoid(-b)};
    case PairFormula::kApoDown: {
      double apart = sigmoid(u) * sigmoid(-u);
      return {sigmoid(a) + sigmoid(-u), sigmoid(a) * sigmoid(-a) - apart, apart};
    }
    case PairFormula::kDiscovered:
      return discovered(u);
    default: {
      double right = 1, wrong = 0;
      if (settings.smoothing != Smoothing::kNone) right = 1 - e, wrong = e;
      if (settings.smoothing == Smoothing::kRobust) right /= 1 - 2 * e, wrong /= 2 * e - 1;
      return even(right * softplus(-u) + wrong * softplus(u),
                  -right * sigmoid(-u) + wrong * sigmoid(u));
    }
  }
}

Pull pull_of(const PairSettings& settings, double a, double b) {
  double beta = settings.beta, half = 0.5 / beta;
  switch (settings.formula) {
    case PairFormula::kSquared: {
      double off = a - b - half;
      return {off * off, 2 * off, -2 * off};
    }
    case PairFormula::kSppo:
      return {(a - half) * (a - half) + (b + half) * (b + half), 2 * (a - half), 2 * (b + half)};
    case PairFormula::kOddsRatio:
      return odds_ratio(beta, a, b);
    default: {
      Pull scaled = pull_of_scaled(settings, beta * a, beta * b);
      return {scaled.loss, beta * scaled.a, beta * scaled.b};
    }
  }
}

void add(std::vector<ObjectiveMetric>& metrics, const char* name, double sum, double weight) {
  metrics.push_back({name, sum, weight});
}

// Metrics of pairs under TRL's names.
void add_rewards(std::vector<ObjectiveMetric>& metrics, const Numbers& chosen,
                 const Numbers& rejected, double scale) {
  double right = 0, margins = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    right += chosen[i] > rejected[i] ? 1 : 0;
    margins += scale * (chosen[i] - rejected[i]);
  }
  auto count = static_cast<double>(chosen.size());
  add(metrics, "rewards/chosen", scale * sum_of(chosen), count);
  add(metrics, "rewards/rejected", scale * sum_of(rejected), count);
  add(metrics, "rewards/accuracies", right, count);
  add(metrics, "rewards/margins", margins, count);
}

}  // namespace

PairValue pair_objective(const PairSettings& settings, const PairBatch& batch) {
  const std::size_t pairs = batch.policy_chosen.size();
  const auto count = static_cast<double>(pairs);
  PairValue out;
  Numbers chosen(pairs), rejected(pairs), chosen_logps(pairs), rejected_logps(pairs), odds(pairs);
  for (std::size_t i = 0; i < pairs; ++i) {
    double pc = batch.policy_chosen[i], pr = batch.policy_rejected[i];
    double nc = settings.means ? batch.chosen_lengths[i] : 1;
    double nr = settings.means ? batch.rejected_lengths[i] : 1;
    double a = settings.reference ? pc - at(batch.ref_chosen, i) : pc;
    double b = settings.reference ? pr - at(batch.ref_rejected, i) : pr;
    Pull pull = pull_of(settings, a / nc, b / nr);
    out.losses.push_back(pull.loss);
    out.chosen.push_back(pull.a / nc / count);
    out.rejected.push_back(pull.b / nr / count);
    // Without a reference TRL shows what the loss takes; with one, always the sums.
    chosen[i] = settings.reference ? a : a / nc;
    rejected[i] = settings.reference ? b : b / nr;
    chosen_logps[i] = settings.reference ? pc : pc / nc;
    rejected_logps[i] = settings.reference ? pr : pr / nr;
    odds[i] = (chosen[i] - rejected[i]) - (log1mexp(chosen[i]) - log1mexp(rejected[i]));
  }
  out.chosen_nll = settings.nll_factor();
  out.weight = count;
  out.loss = sum_of(out.losses) / count + out.chosen_nll * batch.chosen_nll;
  add_rewards(out.metrics, chosen, rejected, settings.beta);
  add(out.metrics, "logps/chosen", sum_of(chosen_logps), count);
  add(out.metrics, "logps/rejected", sum_of(rejected_logps), count);
  if (out.chosen_nll != 0) add(out.metrics, "nll_loss", batch.chosen_nll * count, count);
  if (settings.formula != PairFormula::kOddsRatio) return out;
  add(out.metrics, "log_odds_ratio", -sum_of(out.losses) / settings.beta, count);
  add(out.metrics, "log_odds_chosen", sum_of(odds), count);
  return out;
}

KtoValue kto_objective(const KtoSettings& settings, const KtoBatch& batch) {
  KtoValue out;
  const std::size_t rows = batch.policy.size();
  const auto count = static_cast<double>(rows);
  double kl = 0;
  for (std::size_t i = 0; i < batch.policy_kl.size(); ++i) {
    kl += batch.policy_kl[i] - at(batch.ref_kl, i);
  }
  kl =
      batch.policy_kl.empty() ? 0 : std::max(0.0, kl / static_cast<double>(batch.policy_kl.size()));
  double rewards[2] = {0, 0}, logps[2] = {0, 0}, counts[2] = {0, 0};
  for (std::size_t i = 0; i < rows; ++i) {
    bool desirable = batch.labels[i] != 0;
    double ratio = batch.policy[i] - at(batch.ref, i);
    double sign = desirable ? 1 : -1;
    double weight = desirable ? settings.desirable_weight : settings.undesirable_weight;
    double u = sign * settings.beta * (ratio - kl);
    out.losses.push_back(weight * sigmoid(-u));
    out.policy.push_back(-sign * weight * settings.beta * sigmoid(u) * sigmoid(-u) / count);
    rewards[desirable] += settings.beta * ratio;
    logps[desirable] += batch.policy[i];
    counts[desirable] += 1;
  }
  out.loss = sum_of(out.losses) / count;
  out.weight = count;
  add(out.metrics, "rewards/chosen", rewards[1], counts[1]);
  add(out.metrics, "rewards/rejected", rewards[0], counts[0]);
  double margin = rewards[1] / counts[1] - rewards[0] / counts[0];
  if (std::isfinite(margin)) out.metrics.push_back({"rewards/margins", margin, 1, false});
  add(out.metrics, "logps/chosen", logps[1], counts[1]);
  add(out.metrics, "logps/rejected", logps[0], counts[0]);
  add(out.metrics, "kl", kl * count, count);
  return out;
}

RewardValue reward_objective(const RewardSettings& settings, const RewardBatch& batch) {
  RewardValue out;
  const auto count = static_cast<double>(batch.chosen.size());
  double right = 0, least = std::numeric_limits<double>::infinity(), most = -least;
  for (std::size_t i = 0; i < batch.chosen.size(); ++i) {
    double chosen = batch.chosen[i], rejected = batch.rejected[i], sum = chosen + rejected;
    double u = chosen - rejected - at(batch.margins, i);
    double centre = settings.center_rewards_coefficient;
    out.losses.push_back(softplus(-u) + centre * sum * sum);
    out.chosen.push_back((-sigmoid(-u) + 2 * centre * sum) / count);
    out.rejected.push_back((sigmoid(-u) + 2 * centre * sum) / count);
    right += chosen > rejected ? 1 : 0;
    least = std::min({least, chosen, rejected});
    most = std::max({most, chosen, rejected});
  }
  double chosen = sum_of(batch.chosen), rejected = sum_of(batch.rejected);
  out.loss = sum_of(out.losses) / count;
  out.weight = count;
  add(out.metrics, "accuracy", right, count);
  add(out.metrics, "margin", chosen - rejected, count);
  add(out.metrics, "mean_reward", chosen + rejected, 2 * count);
  out.metrics.push_back({"min_reward", least, 1, false});
  out.metrics.push_back({"max_reward", most, 1, false});
  return out;
}

double kl_estimate(KlEstimate kind, double log_ratio) {
  if (kind == KlEstimate::kK1) return -log_ratio;
  if (kind == KlEstimate::kK2) return log_ratio * log_ratio / 2;
  return std::expm1(log_ratio) - log_ratio;
}

namespace {

// The tokens of one row, and what its loss is made of.
struct PolicyRow {
  const PolicySettings& settings;
  std::span<const double> logps, old_logps, mask;
  double tokens = 0;  // sum of the mask

  double log_ratio(std::size_t t) const { return old_logps.empty() ? 0 : logps[t] - old_logps[t]; }
  double mean_log_ratio() const {
    double sum = 0;
    for (std::size_t t = 0; t < mask.size(); ++t) {
      if (mask[t] != 0) sum += mask[t] * log_ratio(t);
    }
    return sum / std::max(tokens, 1.0);
  }
  // Importance weight of a token, given log(old / sampling) of it and of the row.
  double weight(double token, double row) const {
    bool by_token = settings.correction == Correction::kTokenTruncate ||
                    settings.correction == Correction::kTokenMask;
    bool masks = settings.correction == Correction::kTokenMask ||
                 settings.correction == Correction::kSequenceMask;
    if (settings.correction == Correction::kNone) return 1;
    double value = std::exp(by_token ? token : row);
    bool inside = value >= settings.correction_min && value <= settings.correction_max;
    if (masks) return inside ? value : 0;
    return std::min(std::max(value, settings.correction_min), settings.correction_max);
  }
  // Loss of a token, and its derivative with respect to the logarithm of its ratio; for CISPO with
  // respect to its log-probability.
  Pull loss(double ratio, double advantage, double logp) const {
    double low = settings.epsilon_low, high = settings.epsilon_high;
    if (settings.clips_weight) {
      double weight = std::clamp(ratio, std::min(low, high), high);
      return {-weight * advantage * logp, -weight * advantage, 0};
    }
    double capped = settings.delta > 0 ? std::min(ratio, settings.delta) : ratio;
    double free = -capped * advantage;
    const double inside = std::clamp(ratio, 1 - low, 1 + high), clipped = -inside * advantage;
    // Where a bound applies the ratio has no slope.
    const bool moves = free >= clipped ? capped == ratio : inside == ratio;
    Pull out{std::max(free, clipped), 0, 0};
    if (moves) out.a = out.loss;
    double bound = -settings.dual_clip * advantage;
    if (settings.dual_clip > 0 && advantage < 0 && out.loss > bound) return {bound, 0, 0};
    return out;
  }
  // With its derivative by the log-probability of the policy.
  Pull divergence(double d) const {
    const double loss = kl_estimate(settings.kl, d);
    if (settings.kl == KlEstimate::kK1) return {loss, 1, 0};
    if (settings.kl == KlEstimate::kK2) return {loss, -d, 0};
    return {loss, -std::expm1(d), 0};
  }
};

struct PolicySums {
  double kl = 0, low = 0, high = 0, ratio = 0, apart = 0, farthest = 0, weight = 0;
  double values = 0, values_clipped = 0;
};

// 0.5 max((v - R)^2, (v' - R)^2), where v' is v within `clip` of its old value; and its slope.
struct ValueLoss {
  double loss = 0, slope = 0;
  bool clipped = false;
};
ValueLoss value_loss(double value, double old, double wanted, double clip) {
  const double near = clip > 0 ? std::clamp(value, old - clip, old + clip) : value;
  const double free = value - wanted, held = near - wanted;
  if (free * free >= held * held) return {free * free / 2, free, false};
  return {held * held / 2, 0, true};
}

// What the loss of a token of each row counts for, without the denominator of the batch.
double row_factor(const PolicySettings& settings, double tokens) {
  switch (settings.aggregation) {
    case Aggregation::kSeqMeanTokenMean:
      return 1 / std::max(tokens, 1.0);
    case Aggregation::kSeqMeanTokenSumNorm:
      return 1 / static_cast<double>(settings.max_completion_length);
    default:
      return 1;
  }
}

std::span<const double> row_of(const NumberRows& rows, std::size_t i) {
  return rows.empty() ? std::span<const double>() : rows[i];
}

// Adds a row's token losses and their gradients; both are of the sum of the losses times `factor`.
void add_row(const PolicyBatch& batch, std::size_t i, const PolicyRow& row, double factor,
             PolicyValue& out, PolicySums& sums) {
  const PolicySettings& settings = row.settings;
  const auto ref = row_of(batch.ref_logps, i), sampling = row_of(batch.sampling_logps, i);
  const Numbers& advantages = out.advantages[i];
  const double shared = row.mean_log_ratio();
  auto apart = [&](std::size_t t) {
    return (row.old_logps.empty() ? row.logps[t] : row.old_logps[t]) - sampling[t];
  };
  double row_apart = 0, slopes = 0, total = 0;
  for (std::size_t t = 0; t < row.mask.size() && !sampling.empty(); ++t) {
    if (row.mask[t] != 0) row_apart += row.mask[t] * apart(t);
  }
  for (std::size_t t = 0; t < row.mask.size(); ++t) {
    const double mask = row.mask[t];
    if (mask == 0) continue;
    double advantage = advantages.size() == 1 ? advantages[0] : advantages[t];
    double ratio = std::exp(settings.sequence_ratio ? shared : row.log_ratio(t));
    Pull pull = row.loss(ratio, advantage, row.logps[t]);
    double weight = sampling.empty() ? 1 : row.weight(apart(t), row_apart);
    Pull kl = ref.empty() ? Pull{} : row.divergence(ref[t] - row.logps[t]);
    double loss = weight * pull.loss + settings.beta * kl.loss;
    double slope = factor * mask * weight * pull.a;
    if (settings.sequence_ratio && !settings.clips_weight) {
      slopes += slope, slope = 0;
    }
    out.token_loss[i][t] = loss;
    out.logps[i][t] = slope + factor * mask * settings.beta * kl.a;
    total += mask * loss;
    sums.kl += mask * kl.loss;
    sums.ratio += mask * ratio;
    sums.weight += mask * weight;
    sums.low += ratio < 1 - settings.epsilon_low && advantage < 0 ? mask : 0;
    sums.high += ratio > 1 + settings.epsilon_high && advantage > 0 ? mask : 0;
    double difference = sampling.empty() ? 0 : std::abs(apart(t));
    sums.apart += mask * difference;
    sums.farthest = std::max(sums.farthest, difference);
  }
  // The shared ratio depends on all tokens alike.
  for (std::size_t t = 0; t < row.mask.size(); ++t) {
    if (row.mask[t] != 0) out.logps[i][t] += slopes * row.mask[t] / std::max(row.tokens, 1.0);
  }
  out.loss += factor * total;
  out.losses.push_back(total / std::max(row.tokens, 1.0));
}

// Adds a row's value losses and their gradients, of the sum of the losses times `factor`.
void add_values(const PolicyBatch& batch, std::size_t i, const PolicySettings& settings,
                double factor, PolicyValue& out, PolicySums& sums) {
  const Numbers &values = batch.values[i], &mask = batch.mask[i];
  Numbers& slopes = out.values.emplace_back(values.size());
  for (std::size_t t = 0; t < values.size(); ++t) {
    if (mask[t] == 0) continue;
    const double old = batch.old_values.empty() ? values[t] : batch.old_values[i][t];
    ValueLoss value = value_loss(values[t], old, batch.returns[i][t], settings.value_clip);
    out.loss += factor * mask[t] * settings.vf_coef * value.loss;
    slopes[t] = factor * mask[t] * settings.vf_coef * value.slope;
    sums.values += mask[t] * value.loss;
    sums.values_clipped += value.clipped ? mask[t] : 0;
  }
}

}  // namespace

PolicyValue policy_objective(const PolicySettings& settings, const PolicyBatch& batch) {
  PolicyValue out;
  PolicySums sums;
  double tokens = 0;
  out.advantages = batch.advantages.empty() ? advantages_of(settings, batch) : batch.advantages;
  for (std::size_t i = 0; i < batch.logps.size(); ++i) {
    PolicyRow row{settings, batch.logps[i], row_of(batch.old_logps, i), batch.mask[i],
                  sum_of(batch.mask[i])};
    out.token_loss.emplace_back(row.mask.size());
    out.logps.emplace_back(row.mask.size());
    const double factor = row_factor(settings, row.tokens);
    add_row(batch, i, row, factor, out, sums);
    if (!batch.values.empty()) add_values(batch, i, settings, factor, out, sums);
    tokens += row.tokens;
  }
  bool by_token = settings.aggregation == Aggregation::kTokenMean;
  out.weight = by_token ? tokens : static_cast<double>(batch.logps.size());
  double denominator = out.weight > 0 ? out.weight : 1;
  out.loss /= denominator;
  for (NumberRows* rows : {&out.logps, &out.values}) {
    for (Numbers& row : *rows) {
      for (double& gradient : row) gradient /= denominator;
    }
  }
  if (!batch.ref_logps.empty()) add(out.metrics, "kl", sums.kl, tokens);
  add(out.metrics, "clip_ratio/low_mean", sums.low, tokens);
  add(out.metrics, "clip_ratio/high_mean", sums.high, tokens);
  add(out.metrics, "clip_ratio/region_mean", sums.low + sums.high, tokens);
  add(out.metrics, "importance_ratio", sums.ratio, tokens);
  if (!batch.values.empty()) {
    add(out.metrics, "loss/value_avg", sums.values, tokens);
    add(out.metrics, "val/clipfrac_avg", sums.values_clipped, tokens);
  }
  if (batch.sampling_logps.empty()) return out;
  add(out.metrics, "sampling/sampling_logp_difference/mean", sums.apart, tokens);
  out.metrics.push_back({"sampling/sampling_logp_difference/max", sums.farthest, 1, false});
  add(out.metrics, "sampling/importance_sampling_ratio/mean", sums.weight, tokens);
  return out;
}

}  // namespace bev
