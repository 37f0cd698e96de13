#include "rl/rollout.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"

namespace bev {

namespace {

using Json = nlohmann::ordered_json;

struct Moments {
  double sum = 0, squares = 0, count = 0;
  double least = std::numeric_limits<double>::infinity(), most = -least;

  void add(double value) {
    sum += value, squares += value * value, count += 1;
    least = std::min(least, value), most = std::max(most, value);
  }
  double mean() const { return count > 0 ? sum / count : 0; }
  double variance() const { return count > 0 ? squares / count - mean() * mean() : 0; }
};

double deviation(const Numbers& values) {
  if (values.size() < 2) return 0;
  double mean = 0, squares = 0;
  for (double value : values) mean += value / static_cast<double>(values.size());
  for (double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

std::map<std::int64_t, std::vector<const SampledRow*>> groups_of(
    const std::vector<SampledRow>& rows) {
  std::map<std::int64_t, std::vector<const SampledRow*>> groups;
  for (const SampledRow& row : rows) groups[row.group].push_back(&row);
  return groups;
}

}  // namespace

bool all_equal(const std::vector<SampledRow>& group) {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  for (const SampledRow& row : group) {
    if (std::isnan(row.score)) continue;
    least = std::min(least, row.score);
    most = std::max(most, row.score);
  }
  return least >= most;
}

double overlong_reward(std::int64_t tokens, std::int64_t longest, std::int64_t buffer,
                       double penalty) {
  if (buffer == 0) return 0;
  auto over = static_cast<double>(tokens - (longest - buffer));
  return -penalty * std::clamp(over / static_cast<double>(buffer), 0.0, 1.0);
}

namespace {

Numbers mask_of(const SampledRow& row) {
  return row.mask.empty() ? Numbers(row.completion.size(), 1.0) : row.mask;
}

// What teaches nothing: rows without a reward, and perhaps those without an end.
bool left_out(const SampledRow& row, bool mask_truncated) {
  return std::isnan(row.reward) || (mask_truncated && row.truncated());
}

// -beta x the KL estimate of each token, and the reward at the end.
Numbers token_rewards(const ObjectiveRule& rule, const SampledRow& row) {
  Numbers out(row.completion.size());
  for (std::size_t t = 0; rule.gae.kl_in_reward && t < row.ref_logps.size(); ++t) {
    if (row.sampled(t))
      out[t] = -rule.policy.beta * kl_estimate(rule.policy.kl, row.ref_logps[t] - row.old_logps[t]);
  }
  if (!out.empty()) out.back() += row.reward;
  return out;
}

void set_critic_advantages(const RlConfig& config, const ObjectiveRule& rule,
                           std::vector<SampledRow>& rows) {
  NumberRows rewards, values, mask;
  for (const SampledRow& row : rows) {
    const bool counts = !left_out(row, config.mask_truncated_completions);
    rewards.push_back(token_rewards(rule, row));
    values.push_back(row.values);
    mask.push_back(counts ? mask_of(row) : Numbers(row.completion.size()));
  }
  GaeValue found = gae(rule.gae, rewards, values, mask);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].returns = std::move(found.returns[i]);
    rows[i].token_advantages = std::move(found.advantages[i]);
    rows[i].advantage = 0;
    for (double advantage : rows[i].token_advantages) rows[i].advantage += advantage;
    rows[i].advantage /= std::max(static_cast<double>(rows[i].completion.size()), 1.0);
  }
}

}  // namespace

void set_advantages(const RlConfig& config, const ObjectiveRule& rule, std::int64_t longest,
                    std::vector<SampledRow>& rows) {
  PolicyBatch batch;
  for (SampledRow& row : rows) {
    row.reward = row.score + overlong_reward(std::ssize(row.completion), longest,
                                             config.overlong_buffer, config.overlong_penalty);
    batch.rewards.push_back(row.reward);
    batch.groups.push_back(row.group);
    batch.mask.push_back(mask_of(row));
  }
  if (rule.policy.critic) return set_critic_advantages(config, rule, rows);
  NumberRows advantages = advantages_of(rule.policy, batch);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].advantage = advantages[i][0];
}

TokenSample sample_of(const SampledRow& row, bool mask_truncated, double teacher_weight) {
  Rollout rollout{.prompt = row.prompt,
                  .completion = row.completion,
                  .advantage = row.advantage,
                  .mask = row.mask,
                  .old_logps = row.old_logps,
                  .sampling_logps = row.sampling_logps,
                  .ref_logps = row.ref_logps,
                  .token_advantages = row.token_advantages,
                  .values = row.values,
                  .returns = row.returns};
  for (std::size_t t = 0; t < row.teacher_logps.size(); ++t) {
    rollout.token_advantages.resize(row.completion.size(), row.advantage);
    rollout.token_advantages[t] += teacher_weight * (row.teacher_logps[t] - row.old_logps[t]);
  }
  if (left_out(row, mask_truncated)) rollout.mask.assign(row.completion.size(), 0);
  return rollout_sample(rollout);
}

namespace {

// How well the critic's values predict the returns: 1 is perfect, 0 no better than their mean.
void add_critic(const RolloutPhase& phase, std::vector<Metric>& out) {
  Moments values, returns, errors;
  for (const SampledRow& row : phase.rows) {
    for (std::size_t t = 0; t < row.returns.size() && !std::isnan(row.reward); ++t) {
      if (!row.sampled(t)) continue;
      values.add(row.values[t]);
      returns.add(row.returns[t]);
      errors.add(row.returns[t] - row.values[t]);
    }
  }
  if (returns.count == 0) return;
  const double spread = returns.variance();
  const double explained = spread > 0 ? 1 - errors.variance() / spread : 0;
  out.push_back({"val/mean", values.mean(), MetricStyle::kHidden, "val/mean"});
  out.push_back(
      {"val/explained_variance", explained, MetricStyle::kNumber, "val/explained_variance"});
}

}  // namespace

std::vector<Metric> phase_metrics(const RolloutPhase& phase) {
  Moments reward, length, ended, apart, error, surprise, teacher, lag;
  std::map<std::string, Numbers> functions;
  double clipped = 0, none = 0, spread = 0, still = 0;
  for (const SampledRow& row : phase.rows) {
    if (std::isnan(row.reward)) {
      none += 1;
    } else {
      reward.add(row.reward);
    }
    auto tokens = static_cast<double>(row.completion.size());
    length.add(tokens);
    if (!row.truncated()) ended.add(tokens);
    clipped += row.truncated() ? 1 : 0;
    if (phase.weights_version > 0) {
      lag.add(static_cast<double>(phase.weights_version - row.weights_version));
    }
    for (const auto& [name, value] : row.rewards) functions[name].push_back(value);
    for (std::size_t t = 0; t < row.old_logps.size(); ++t) {
      if (!row.sampled(t)) continue;
      double difference = std::abs(row.sampling_logps[t] - row.old_logps[t]);
      apart.add(difference);
      error.add(std::exp(difference));
      surprise.add(-row.sampling_logps[t]);
      if (!row.teacher_logps.empty()) teacher.add(row.old_logps[t] - row.teacher_logps[t]);
    }
  }
  auto groups = groups_of(phase.rows);
  for (const auto& [group, rows] : groups) {
    Numbers rewards;
    for (const SampledRow* row : rows) {
      if (!std::isnan(row->reward)) rewards.push_back(row->reward);
    }
    spread += deviation(rewards);
    still += rewards.empty() || std::ranges::min(rewards) == std::ranges::max(rewards) ? 1 : 0;
  }
  auto count = static_cast<double>(std::max<std::size_t>(phase.rows.size(), 1));
  auto of_groups = static_cast<double>(std::max<std::size_t>(groups.size(), 1));
  std::vector<Metric> out;
  auto add = [&](const std::string& name, double value, MetricStyle style) {
    out.push_back({name, value, style, name});
  };
  add("reward", reward.mean(), MetricStyle::kNumber);
  add("reward_std", spread / of_groups, MetricStyle::kNumber);
  add("frac_reward_zero_std", still / of_groups, MetricStyle::kNumber);
  add("completions/mean_length", length.mean(), MetricStyle::kNumber);
  add("completions/min_length", length.least, MetricStyle::kHidden);
  add("completions/max_length", length.most, MetricStyle::kHidden);
  add("completions/mean_terminated_length", ended.mean(), MetricStyle::kHidden);
  add("completions/clipped_ratio", clipped / count, MetricStyle::kNumber);
  add("entropy", surprise.mean(), MetricStyle::kNumber);
  add("rollout/logprob_diff_max", std::max(apart.most, 0.0), MetricStyle::kLoss);
  add("rollout/logprob_diff_mean", apart.mean(), MetricStyle::kLoss);
  add("rollout/token_mult_prob_error", error.mean(), MetricStyle::kHidden);
  add_critic(phase, out);
  if (teacher.count > 0) add("teacher_kl", teacher.mean(), MetricStyle::kNumber);
  add("rollout/rewards_missing", none, MetricStyle::kCount);
  auto tried = static_cast<double>(phase.groups_tried);
  if (lag.count > 0) add("rollout/lag_max", lag.most, MetricStyle::kNumber);
  if (phase.groups_restarted > 0) {
    add("rollout/groups_restarted", static_cast<double>(phase.groups_restarted),
        MetricStyle::kHidden);
  }
  add("rollout/groups_used", of_groups / std::max(tried, 1.0), MetricStyle::kHidden);
  for (const auto& [name, values] : functions) {
    double sum = 0;
    for (double value : values) sum += value;
    add(concat("rewards/", name, "/mean"), sum / static_cast<double>(values.size()),
        MetricStyle::kHidden);
    add(concat("rewards/", name, "/std"), deviation(values), MetricStyle::kHidden);
  }
  return out;
}

namespace {

Json row_object(const RolloutPhase& phase, const SampledRow& row) {
  Json line;
  line["step"] = phase.step;
  line["group"] = row.group;
  line["index"] = row.index;
  line["prompt_ids"] = row.prompt;
  line["completion_ids"] = row.completion;
  if (!row.mask.empty()) {
    line["mask"] = row.mask;
    line["turns"] = row.turns;
  }
  line["sampling_logps"] = row.sampling_logps;
  line["old_logps"] = row.old_logps;
  line["ref_logps"] = row.ref_logps;
  if (!row.teacher_logps.empty()) line["teacher_logps"] = row.teacher_logps;
  if (!row.values.empty()) {
    line["values"] = row.values;
    line["returns"] = row.returns;
    line["token_advantages"] = row.token_advantages;
  }
  line["reward"] = row.reward;  // what is not finite is dumped as null
  line["advantage"] = row.advantage;
  line["weights_version"] = row.weights_version;
  line["finish_reason"] = row.finish_reason;
  line["completion"] = row.text;
  line["score"] = row.score;
  line["rewards"] = Json::array();
  for (const auto& [name, value] : row.rewards) line["rewards"].push_back({name, value});
  if (!row.problem.empty()) line["problem"] = row.problem;
  return line;
}

double number_of(const Json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

SampledRow row_of(const Json& line) {
  SampledRow row;
  row.group = line.at("group").get<std::int64_t>();
  row.index = line.at("index").get<std::int64_t>();
  row.prompt = line.at("prompt_ids").get<TokenRow>();
  row.completion = line.at("completion_ids").get<TokenRow>();
  row.mask = line.value("mask", Numbers());
  row.turns = line.value("turns", std::int64_t{1});
  row.sampling_logps = line.at("sampling_logps").get<Numbers>();
  row.old_logps = line.at("old_logps").get<Numbers>();
  row.ref_logps = line.at("ref_logps").get<Numbers>();
  row.teacher_logps = line.value("teacher_logps", Numbers());
  row.values = line.value("values", Numbers());
  row.returns = line.value("returns", Numbers());
  row.token_advantages = line.value("token_advantages", Numbers());
  row.reward = number_of(line.at("reward"));
  row.score = number_of(line.at("score"));
  row.advantage = line.at("advantage").get<double>();
  row.weights_version = line.at("weights_version").get<std::int64_t>();
  row.finish_reason = line.at("finish_reason").get<std::string>();
  row.text = line.at("completion").get<std::string>();
  for (const Json& pair : line.at("rewards")) {
    row.rewards.emplace_back(pair.at(0).get<std::string>(), number_of(pair.at(1)));
  }
  row.problem = line.value("problem", "");
  return row;
}

std::string text_of(const Json& line) {
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string row_json(const RolloutPhase& phase, const SampledRow& row) {
  return text_of(row_object(phase, row));
}

std::string phase_text(const RolloutPhase& phase, std::string_view settings) {
  Json head{{"phase", phase.number},
            {"step", phase.step},
            {"next_prompt", phase.next_prompt},
            {"groups_tried", phase.groups_tried},
            {"rows", phase.rows.size()},
            {"carried", Json::array()},
            {"settings", settings}};
  for (const std::vector<SampledRow>& group : phase.carried)
    head["carried"].push_back(group.size());
  std::string text = text_of(head) + "\n";
  for (const SampledRow& row : phase.rows) text += text_of(row_object(phase, row)) + "\n";
  for (const std::vector<SampledRow>& group : phase.carried) {
    for (const SampledRow& row : group) text += text_of(row_object(phase, row)) + "\n";
  }
  return text;
}

StoredPhase read_phase(const std::string& path) {
  std::vector<std::string> lines = split(read_file(path), '\n');
  StoredPhase out;
  try {
    Json head = Json::parse(lines.at(0));
    out.phase.number = head.at("phase").get<std::int64_t>();
    out.phase.step = head.at("step").get<std::int64_t>();
    out.phase.next_prompt = head.at("next_prompt").get<std::int64_t>();
    out.phase.groups_tried = head.at("groups_tried").get<std::int64_t>();
    out.settings = head.at("settings").get<std::string>();
    std::size_t line = 1;
    auto read = [&](std::size_t count) {
      std::vector<SampledRow> rows;
      for (std::size_t i = 0; i < count; ++i) rows.push_back(row_of(Json::parse(lines.at(line++))));
      return rows;
    };
    out.phase.rows = read(head.at("rows").get<std::size_t>());
    for (const Json& size : head.value("carried", Json::array())) {
      out.phase.carried.push_back(read(size.get<std::size_t>()));
    }
  } catch (const std::exception& error) {
    BEV_FAIL(ErrorKind::kInput, path, ": is no file of rollouts: ", quote(error.what(), 160));
  }
  return out;
}

}  // namespace bev
