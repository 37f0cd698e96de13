// Advantages from rewards: over groups, whitened over a batch, and GAE.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "posttrain/objectives.h"

namespace bev {

namespace {

double sum_of(const Numbers& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// Mean and standard deviation of rewards, one or all but one of them.
struct Spreading {
  double mean = 0, deviation = 0;
};
Spreading spreading(const Numbers& values, Spread spread) {
  auto count = static_cast<double>(values.size());
  auto [least, most] = std::ranges::minmax(values);
  if (least == most) return {least, 0};
  Spreading out{sum_of(values) / count, 0};
  if (spread == Spread::kNone) return out;
  double squares = 0;
  for (double value : values) squares += (value - out.mean) * (value - out.mean);
  return {out.mean, std::sqrt(squares / (spread == Spread::kSample ? count - 1 : count))};
}

// Fills in the advantages of the rows of one group that have a reward.
void advantages_in_group(const PolicySettings& settings, const Numbers& rewards,
                         const std::vector<std::size_t>& rows, NumberRows& out) {
  if (rows.size() < 2) return;
  for (std::size_t row : rows) {
    Numbers compared;
    for (std::size_t other : rows) {
      if (other != row || !settings.leave_one_out) compared.push_back(rewards[other]);
    }
    Spreading all = spreading(compared, settings.advantage_std);
    double advantage = rewards[row] - all.mean;
    if (all.deviation > 0) advantage /= all.deviation + settings.advantage_eps;
    out[row][0] = advantage;
  }
}

// Gives the values of weight w mean 0 and, with a spread, variance 1; those of weight 0 become 0.
void whiten(NumberRows& values, const NumberRows& weights, Spread spread, double eps) {
  double count = 0, sum = 0, squares = 0;
  auto each = [&](auto visit) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      for (std::size_t t = 0; t < values[i].size(); ++t) {
        visit(values[i][t], weights[i][t]);
      }
    }
  };
  each([&](double value, double weight) { count += weight, sum += weight * value; });
  double mean = count > 0 ? sum / count : 0;
  each([&](double v, double weight) { squares += weight * (v - mean) * (v - mean); });
  double degrees = std::max(spread == Spread::kSample ? count - 1 : count, 1.0);
  double scale = spread == Spread::kNone ? 1 : 1 / std::sqrt(squares / degrees + eps);
  each([&](double& v, double weight) { v = weight != 0 ? (v - mean) * scale : 0; });
}

}  // namespace

NumberRows advantages_of(const PolicySettings& settings, const PolicyBatch& batch) {
  std::map<std::int64_t, std::vector<std::size_t>> groups;
  NumberRows out(batch.rewards.size(), Numbers{0}), weights = out;
  for (std::size_t row = 0; row < batch.rewards.size(); ++row) {
    if (std::isnan(batch.rewards[row])) continue;
    groups[batch.groups.empty() ? 0 : batch.groups[row]].push_back(row);
    if (!settings.whitens) continue;
    out[row][0] = batch.rewards[row];
    weights[row][0] = sum_of(batch.mask[row]);
  }
  if (settings.whitens) {
    whiten(out, weights, settings.advantage_std, settings.advantage_eps);
  } else {
    for (const auto& [group, rows] : groups)
      advantages_in_group(settings, batch.rewards, rows, out);
  }
  return out;
}

GaeValue gae(const GaeSettings& settings, const NumberRows& rewards, const NumberRows& values,
             const NumberRows& mask) {
  GaeValue out{rewards, rewards};
  for (std::size_t i = 0; i < rewards.size(); ++i) {
    double next = 0, advantage = 0;
    for (std::size_t t = rewards[i].size(); t-- > 0;) {
      out.advantages[i][t] = out.returns[i][t] = 0;
      if (mask[i][t] == 0) continue;
      double value = values[i][t];
      advantage = rewards[i][t] + settings.gamma * next - value +
                  settings.gamma * settings.lambda * advantage;
      next = value;
      out.advantages[i][t] = advantage;
      out.returns[i][t] = advantage + value;
    }
  }
  if (settings.whiten) whiten(out.advantages, mask, Spread::kSample, 1e-8);
  return out;
}

}  // namespace bev
