// Divergences of a student's tokens from a teacher's.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "posttrain/objectives.h"

namespace bev {

namespace {

double log_sum_exp(const Numbers& values) {
  double most = *std::ranges::max_element(values), sum = 0;
  if (std::isinf(most)) return most;
  for (double value : values) sum += std::exp(value - most);
  return most + std::log(sum);
}

Numbers log_softmax(const Numbers& logits, double temperature) {
  Numbers out = logits;
  for (double& value : out) value /= temperature;
  double all = log_sum_exp(out);
  for (double& value : out) value -= all;
  return out;
}

// The classes that are compared: all tokens, or the teacher's likeliest and perhaps one for the
// rest.
struct Compared {
  std::vector<std::size_t> tokens;
  std::vector<std::size_t> rest;  // of the last class; empty: none
};

constexpr double kLeastRest = 1e-8;  // probability of the rest, at least

// What is compared, and the teacher's logarithms of it.
struct TeacherClasses {
  Compared compared;
  Numbers logps;
};

bool renormalises(const DistillSettings& settings) {
  return settings.tail == Tail::kRenormalise && settings.top_k > 0;
}

// `vocabulary` tokens less those of the ids, in order.
std::vector<std::size_t> tokens_besides(std::span<const std::int32_t> ids, std::size_t vocabulary) {
  std::vector<bool> taken(vocabulary);
  for (std::int32_t id : ids) taken[static_cast<std::size_t>(id)] = true;
  std::vector<std::size_t> out;
  for (std::size_t token = 0; token < vocabulary; ++token) {
    if (!taken[token]) out.push_back(token);
  }
  return out;
}

TeacherClasses all_classes(const Numbers& logits, double temperature) {
  TeacherClasses out{{}, log_softmax(logits, temperature)};
  out.compared.tokens.resize(logits.size());
  std::iota(out.compared.tokens.begin(), out.compared.tokens.end(), 0);
  return out;
}

// The first of the likeliest tokens as the settings have it.
TeacherClasses top_classes(const DistillSettings& settings, const TopLogps& top,
                           std::size_t vocabulary) {
  const auto kept = std::min(static_cast<std::size_t>(settings.top_k), top.ids.size());
  const std::span<const std::int32_t> ids = std::span(top.ids).first(kept);
  TeacherClasses out;
  out.compared.tokens.assign(ids.begin(), ids.end());
  out.logps.assign(top.logps.begin(), top.logps.begin() + static_cast<std::ptrdiff_t>(kept));
  if (renormalises(settings)) out.logps = log_softmax(out.logps, 1);
  if (settings.tail != Tail::kGhost || kept == vocabulary) return out;
  out.compared.rest = tokens_besides(ids, vocabulary);
  double rest = 0;
  for (std::size_t i = kept; i < top.logps.size(); ++i) rest += std::exp(top.logps[i]);
  out.logps.push_back(std::log(std::max(rest, kLeastRest)));
  return out;
}

TeacherClasses classes_of(const DistillSettings& settings, const Numbers& teacher) {
  const auto kept = static_cast<std::size_t>(settings.top_k);
  if (kept == 0 || kept >= teacher.size()) return all_classes(teacher, settings.temperature);
  return top_classes(settings, top_logps(teacher, settings.temperature, settings.top_k),
                     teacher.size());
}

Numbers class_logps(const DistillSettings& settings, const Compared& compared,
                    const Numbers& logps) {
  Numbers out;
  for (std::size_t token : compared.tokens) out.push_back(logps[token]);
  if (renormalises(settings)) out = log_softmax(out, 1);
  double rest = 0;
  for (std::size_t token : compared.rest) rest += std::exp(logps[token]);
  if (!compared.rest.empty()) out.push_back(std::log(std::max(rest, kLeastRest)));
  return out;
}

// The divergence of teacher q and student p, both logarithms; adds its gradient by p.
double divergence(const DistillSettings& settings, const Numbers& q, const Numbers& p,
                  Numbers& gradient) {
  double mix = settings.jsd_beta, sum = 0;
  auto kl_term = [](double from, double to) {
    return std::isinf(from) ? 0 : std::exp(from) * (from - to);
  };
  Divergence kind = settings.divergence;
  bool forward = kind == Divergence::kForwardKl || (kind == Divergence::kJsd && mix == 0);
  bool reverse = kind == Divergence::kReverseKl || (kind == Divergence::kJsd && mix == 1);
  for (std::size_t i = 0; i < q.size(); ++i) {
    if (forward) {
      sum += kl_term(q[i], p[i]);
      gradient[i] = -std::exp(q[i]);
    } else if (reverse) {
      sum += kl_term(p[i], q[i]);
      gradient[i] = std::isinf(p[i]) ? 0 : std::exp(p[i]) * (p[i] - q[i] + 1);
    } else {
      double middle = log_sum_exp({std::log1p(-mix) + p[i], std::log(mix) + q[i]});
      if (std::isinf(middle)) continue;
      sum += mix * kl_term(q[i], middle) + (1 - mix) * kl_term(p[i], middle);
      double share = (1 - mix) * std::exp(p[i] - middle);  // of the student in the middle
      gradient[i] =
          (1 - mix) * (std::isinf(p[i]) ? 0 : std::exp(p[i]) * (p[i] - middle + 1 - share)) -
          mix * std::exp(q[i]) * share;
    }
  }
  return sum;
}

// Gradient by the logits (times the temperature) from that by the classes.
Numbers logit_gradient(const DistillSettings& settings, const Compared& compared,
                       const Numbers& classes, const Numbers& logps, const Numbers& gradient) {
  Numbers out(logps.size());
  double total = 0;
  for (std::size_t i = 0; i < compared.tokens.size(); ++i) {
    out[compared.tokens[i]] += gradient[i];
    total += gradient[i];
  }
  if (renormalises(settings)) {
    for (std::size_t i = 0; i < compared.tokens.size(); ++i) {
      out[compared.tokens[i]] -= std::exp(classes[i]) * total;
    }
    return out;
  }
  double rest = 0;
  for (std::size_t token : compared.rest) rest += std::exp(logps[token]);
  if (rest > kLeastRest) {
    for (std::size_t token : compared.rest) {
      out[token] += gradient.back() * std::exp(logps[token]) / rest;
    }
    total += gradient.back();
  }
  for (std::size_t i = 0; i < out.size(); ++i) out[i] -= std::exp(logps[i]) * total;
  return out;
}

struct TokenDivergence {
  double divergence = 0, cross_entropy = 0;
  Numbers gradient;
};

// `label` below 0: no cross entropy; `divergence_weight` and `label_weight` are those of the two.
TokenDivergence token_divergence(const DistillSettings& settings, const Numbers& student,
                                 const TeacherClasses& teacher, double label,
                                 double divergence_weight, double label_weight) {
  TokenDivergence out;
  double t = settings.temperature, scale = settings.temperature_squared ? t * t : 1;
  const Numbers p = log_softmax(student, t);
  const Compared& compared = teacher.compared;
  Numbers classes = class_logps(settings, compared, p), by_class(classes.size());
  out.divergence = scale * divergence(settings, teacher.logps, classes, by_class);
  out.gradient = logit_gradient(settings, compared, classes, p, by_class);
  for (double& value : out.gradient) value *= divergence_weight * scale / t;
  if (label < 0) return out;
  Numbers plain = log_softmax(student, 1);
  auto target = static_cast<std::size_t>(label);
  out.cross_entropy = -plain[target];
  for (std::size_t i = 0; i < plain.size(); ++i) {
    out.gradient[i] += label_weight * (std::exp(plain[i]) - (i == target ? 1 : 0));
  }
  return out;
}

}  // namespace

TopLogps top_logps(const Numbers& logits, double temperature, std::int64_t k) {
  const Numbers logps = log_softmax(logits, temperature);
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  auto logit = [&](std::int32_t token) { return logits[static_cast<std::size_t>(token)]; };
  auto likelier = [&](std::int32_t a, std::int32_t b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  };
  auto kept = order.begin() + std::min<std::int64_t>(k, std::ssize(order));
  std::partial_sort(order.begin(), kept, order.end(), likelier);
  TopLogps out{{order.begin(), kept}, {}};
  for (std::int32_t token : out.ids) out.logps.push_back(logps[static_cast<std::size_t>(token)]);
  double rest = 0;
  for (auto token = kept; token != order.end(); ++token) {
    rest += std::exp(logps[static_cast<std::size_t>(*token)]);
  }
  out.logps.push_back(std::log(rest));
  return out;
}

DistillValue distill_objective(const DistillSettings& settings, const DistillBatch& batch) {
  DistillValue out;
  double tokens = 0, labelled = 0, divergences = 0, entropies = 0;
  auto label_of = [&](std::size_t b, std::size_t s) {
    return batch.labels.empty() ? -1 : batch.labels[b][s];
  };
  for (std::size_t b = 0; b < batch.mask.size(); ++b) {
    for (std::size_t s = 0; s < batch.mask[b].size(); ++s) {
      tokens += batch.mask[b][s];
      labelled += label_of(b, s) >= 0 ? batch.mask[b][s] : 0;
    }
  }
  double each = 1 / std::max(tokens, 1.0), each_label = 1 / std::max(labelled, 1.0);
  for (std::size_t b = 0; b < batch.student.size(); ++b) {
    double row = 0, weights = 0;
    NumberRows& gradients = out.student.emplace_back();
    for (std::size_t s = 0; s < batch.student[b].size(); ++s) {
      double mask = batch.mask[b][s];
      gradients.emplace_back(batch.student[b][s].size());
      if (mask == 0) continue;
      const Numbers& student = batch.student[b][s];
      TeacherClasses teacher = batch.top.empty()
                                   ? classes_of(settings, batch.teacher[b][s])
                                   : top_classes(settings, batch.top[b][s], student.size());
      TokenDivergence token =
          token_divergence(settings, student, teacher, label_of(b, s), settings.alpha * mask * each,
                           (1 - settings.alpha) * mask * each_label);
      gradients.back() = std::move(token.gradient);
      row += mask * token.divergence;
      weights += mask;
      entropies += mask * token.cross_entropy;
    }
    divergences += row;
    out.losses.push_back(row / std::max(weights, 1.0));
  }
  out.weight = tokens;
  out.loss = settings.alpha * divergences * each + (1 - settings.alpha) * entropies * each_label;
  out.metrics.push_back({"divergence", divergences, tokens});
  if (!batch.labels.empty()) out.metrics.push_back({"cross_entropy", entropies, labelled});
  return out;
}

}  // namespace bev
