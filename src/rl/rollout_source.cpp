#include "rl/rollout_source.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/append_file.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/scoped_value.h"
#include "data/random/shuffle.h"
#include "infer/shared_numbers.h"
#include "infer/token_scores.h"

namespace bev {

namespace {

void pass_row(SharedNumbers& numbers, SampledRow& row) {
  numbers.pass(row.group);
  numbers.pass_list(row.prompt);
  numbers.pass_list(row.completion);
  numbers.pass_list(row.mask);
  numbers.pass_list(row.sampling_logps);
  numbers.pass_list(row.old_logps);
  numbers.pass_list(row.ref_logps);
  numbers.pass_list(row.teacher_logps);
  numbers.pass_list(row.values);
  numbers.pass_list(row.returns);
  numbers.pass_list(row.token_advantages);
  numbers.pass(row.reward);
  numbers.pass(row.advantage);
  bool truncated = row.truncated();
  numbers.pass(truncated);
  row.finish_reason = truncated ? name_of(FinishReason::kLength) : name_of(FinishReason::kStop);
}

}  // namespace

RolloutSource::RolloutSource(Engine& engine, RolloutParts& parts, RankModel* reference,
                             RankModel* teacher)
    : engine_(engine),
      parts_(parts),
      reference_(reference),
      teacher_(teacher),
      preparation_(parts.rule, engine.model(), nullptr),
      sampler_(engine, parts) {
  phase_.number = -1;
  engine.set_preparation(&preparation_);
}

StepBatch RolloutSource::next(std::int64_t iteration) {
  const std::int64_t size = parts_.global_batch_size, all = parts_.config.rollouts();
  const std::int64_t steps = parts_.config.steps_per_phase(size);
  const std::int64_t number = (iteration - 1) / steps, within = (iteration - 1) % steps;
  if (phase_.number != number) begin_phase(number, number * steps + 1, within > 0);
  // Several updates of a pass divide the rows at random.
  const std::int64_t pass = within / (all / size), begin = within % (all / size) * size;
  auto key = mix_bits(mix_bits(parts_.request.sampling.seed, hash_name("rollouts")),
                      static_cast<std::uint64_t>(number * parts_.config.num_iterations + pass));
  StepBatch batch{.micro_batches = {}, .samples = size};
  std::vector<TokenSample> samples;
  for (std::int64_t i = begin; i < begin + size; ++i) {
    std::int64_t at = size == all ? i : permute_index(i, all, key);
    const SampledRow& row = phase_.rows[static_cast<std::size_t>(at)];
    samples.push_back(
        sample_of(row, parts_.config.mask_truncated_completions, parts_.teacher_weight));
    auto tokens = std::ssize(samples.back().tokens);
    batch.tokens += tokens;
    batch.squared_lengths += static_cast<double>(tokens) * static_cast<double>(tokens);
  }
  batch.micro_batches = rank_micro_batches(model().ctx(), samples, parts_.micro_batch_size);
  return batch;
}

// What world rank 0 passes is read by the others.
void RolloutSource::share_with_all(FunctionRef<void(SharedNumbers& numbers)> pass) {
  SharedNumbers numbers(first());
  if (first()) pass(numbers);
  numbers.broadcast(world(), 0);
  if (!first()) pass(numbers);
}

bool RolloutSource::agreed(bool on_first) {
  share_with_all([&](SharedNumbers& numbers) { numbers.pass(on_first); });
  return on_first;
}

void RolloutSource::begin_phase(std::int64_t number, std::int64_t step, bool begun) {
  std::optional<RolloutPhase> stored;
  if (first()) stored = parts_.bank.find(number, begun);
  if (agreed(stored.has_value())) {
    phase_ = first() ? std::move(*stored) : RolloutPhase{.number = number, .step = step};
  } else {
    BEV_CHECK(!begun, ErrorKind::kInput, "rollouts of step ", step,
              ": the run goes on in the middle of their updates, and they are not in --save; go on "
              "from a checkpoint whose iteration is a multiple of ",
              parts_.config.steps_per_phase(parts_.global_batch_size));
    phase_ = sample(number, step);
    score(phase_);
    if (first()) parts_.bank.save(phase_);
  }
  share(phase_);
  if (!first()) return;
  metrics_ = phase_metrics(phase_);
  record(phase_);
  // A run that goes on has samples of its beginning in the bank.
  const std::int64_t earlier = parts_.samples.empty() ? number : 0;
  for (std::int64_t before = 0; before < earlier; ++before) {
    if (std::optional<RolloutPhase> old = parts_.bank.find(before, true)) keep_sample(*old);
  }
  keep_sample(phase_);
}

void RolloutSource::keep_sample(const RolloutPhase& phase) {
  const SampledRow& row = phase.rows.front();
  parts_.samples.push_back({phase.step, parts_.prompts.at(row.group).text, row.text, row.reward});
}

// The phases before have taken a number of prompts that is known, unless groups were left out or
// carried.
std::int64_t RolloutSource::first_prompt(std::int64_t number) {
  if (phase_.number == number - 1) return phase_.number < 0 ? 0 : phase_.next_prompt;
  const bool any = parts_.config.dynamic_sampling || parts_.config.partial_rollouts > 0;
  if (!any) return number * parts_.config.prompts_per_step;
  return phase_before(number)->next_prompt;
}

std::optional<RolloutPhase> RolloutSource::phase_before(std::int64_t number) {
  if (number == 0) return std::nullopt;
  if (phase_.number == number - 1) return phase_;
  std::optional<RolloutPhase> before = parts_.bank.find(number - 1, true);
  BEV_CHECK(before.has_value(), ErrorKind::kInput,
            parts_.config.dynamic_sampling ? "--dynamic-sampling" : "--partial-rollouts",
            ": the rollouts of the step before are not in --save, so that it is not known which "
            "prompts have been used; begin a new run");
  return before;
}

RolloutPhase RolloutSource::sample(std::int64_t number, std::int64_t step) {
  const std::int64_t prompts = parts_.config.prompts_per_step;
  const bool partly = parts_.config.partial_rollouts > 0;
  RolloutPhase phase{.number = number, .step = step};
  if (partly) phase.weights_version = engine_.updates();
  if (first()) {
    phase.next_prompt = first_prompt(number);
    std::optional<RolloutPhase> before = partly ? phase_before(number) : std::nullopt;
    if (before) phase.carried = std::move(before->carried);
  }
  share_with_all([&](SharedNumbers& numbers) { numbers.pass(phase.next_prompt); });
  for (std::int64_t batch = 1;; ++batch) {
    std::vector<std::vector<SampledRow>> groups =
        partly ? sample_partly(phase) : sample_groups(phase.next_prompt, step);
    if (!partly) phase.next_prompt += prompts;
    phase.groups_tried += prompts;
    bool enough = true;
    if (first()) {
      reward(groups, step);
      enough = take(std::move(groups), phase);
    }
    if (agreed(enough)) break;
    BEV_CHECK(
        batch < parts_.config.max_gen_batches, ErrorKind::kInput, "--dynamic-sampling: of ",
        phase.groups_tried, " groups all but ",
        std::ssize(phase.rows) / parts_.config.num_generations, " have completions of one reward (",
        100 - 100 * std::ssize(phase.rows) / parts_.config.num_generations / phase.groups_tried,
        "%), and ", prompts,
        " are needed; give other prompts, more --max-gen-batches, or a reward that tells "
        "completions apart");
  }
  share(phase);
  return phase;
}

std::vector<std::vector<SampledRow>> RolloutSource::sample_groups(std::int64_t place,
                                                                  std::int64_t step) {
  std::vector<std::vector<SampledRow>> groups;
  for (std::int64_t i = 0; i < parts_.config.prompts_per_step; ++i) {
    groups.push_back(sampler_.fresh_group(place + i));
  }
  sampler_.extend(groups, parts_.request.max_new_tokens);
  if (parts_.config.env.empty()) return groups;
  while (agreed(first() && reply(groups, step))) {
    sampler_.extend(groups, parts_.request.max_new_tokens);
  }
  return groups;
}

bool RolloutSource::reply(std::span<std::vector<SampledRow>> groups, std::int64_t step) const {
  return Conversations({.prompts = parts_.prompts,
                        .tokenizer = parts_.tokenizer,
                        .chat_template = parts_.chat_template,
                        .environment = *parts_.environment,
                        .max_turns = parts_.config.max_turns,
                        .max_tokens = parts_.request.max_new_tokens,
                        .end_tokens = parts_.request.end_tokens})
      .reply(groups, step);
}

namespace {

bool complete(const std::vector<SampledRow>& group) {
  return std::ranges::all_of(group, &SampledRow::finished);
}

}  // namespace

// What an older version of the weights has begun is sampled anew.
void RolloutSource::restart_old_groups(RolloutPhase& phase) const {
  const std::int64_t updates = parts_.config.steps_per_phase(parts_.global_batch_size);
  const std::int64_t oldest = engine_.updates() - updates * parts_.config.rollout_max_lag;
  for (std::vector<SampledRow>& group : phase.carried) {
    const bool old = std::ranges::any_of(group, [&](const SampledRow& row) {
      return !row.completion.empty() && row.weights_version < oldest;
    });
    if (!old) continue;
    group = sampler_.fresh_group(group.front().group);
    ++phase.groups_restarted;
  }
}

std::vector<std::vector<SampledRow>> RolloutSource::sample_partly(RolloutPhase& phase) {
  const std::int64_t wanted = parts_.config.prompts_per_step;
  if (first()) restart_old_groups(phase);
  auto enough = [&] { return std::ranges::count_if(phase.carried, complete) >= wanted; };
  while (!agreed(first() && enough())) {
    while (first() && std::ssize(phase.carried) < parts_.config.inflight_groups()) {
      phase.carried.push_back(sampler_.fresh_group(phase.next_prompt++));
    }
    sampler_.extend(phase.carried, parts_.config.partial_rollouts);
  }
  // The earliest prompts among those that have ended.
  std::vector<std::vector<SampledRow>> taken, left;
  for (std::vector<SampledRow>& group : phase.carried) {
    const bool takes = complete(group) && std::ssize(taken) < wanted;
    (takes ? taken : left).push_back(std::move(group));
  }
  phase.carried = std::move(left);
  return taken;
}

void RolloutSource::reward(std::span<std::vector<SampledRow>> groups, std::int64_t step) {
  if (parts_.rewards.empty()) return reward_without_functions(groups, step);
  std::vector<RewardRow> asked;
  for (const std::vector<SampledRow>& group : groups) {
    for (const SampledRow& row : group) {
      const Prompt& prompt = parts_.prompts.at(row.group);
      asked.push_back({.where = prompt.row.where,
                       .prompt = prompt.text,
                       .completion = row.text,
                       .label = prompt.row.label,
                       .has_label = prompt.row.has_label,
                       .columns = prompt.row.columns,
                       .completion_ids = row.completion,
                       .step = step});
    }
  }
  std::vector<RowReward> values = weighted_rewards(parts_.rewards, parts_.weights, asked);
  auto value = values.begin();
  for (std::vector<SampledRow>& group : groups) {
    for (SampledRow& row : group) {
      row.score = value->reward;
      row.rewards = std::move(value->metrics);
      if (row.problem.empty()) row.problem = std::move(value->problem);
      ++value;
      add_environment(row);
    }
  }
  warn_of_missing(groups, step);
}

// The teacher alone, or what an environment gives.
void RolloutSource::reward_without_functions(std::span<std::vector<SampledRow>> groups,
                                             std::int64_t step) {
  for (std::vector<SampledRow>& group : groups) {
    for (SampledRow& row : group) {
      row.score = 0;
      const bool none = parts_.environment != nullptr && std::isnan(row.environment_reward);
      if (none && row.problem.empty()) row.problem = "the environment gave no reward";
      add_environment(row);
    }
  }
  warn_of_missing(groups, step);
}

// A conversation that went wrong has no reward, whatever it is worth as a text.
void RolloutSource::add_environment(SampledRow& row) const {
  if (parts_.environment == nullptr) return;
  if (!row.problem.empty()) row.score = std::numeric_limits<double>::quiet_NaN();
  if (std::isnan(row.environment_reward)) return;
  row.score += row.environment_reward;
  row.rewards.emplace_back("env", row.environment_reward);
}

void RolloutSource::warn_of_missing(std::span<const std::vector<SampledRow>> groups,
                                    std::int64_t step) const {
  std::int64_t missing = 0, all = 0;
  std::string first;
  for (const std::vector<SampledRow>& group : groups) {
    for (const SampledRow& row : group) {
      ++all;
      if (!std::isnan(row.score)) continue;
      if (missing++ == 0) {
        first = concat(parts_.prompts.at(row.group).row.where, ": ", row.problem);
      }
    }
  }
  if (missing == 0) return;
  const std::string what = concat("step ", step, ": ", missing, " of ", all,
                                  " completions have no reward, the first of ", first);
  BEV_CHECK(missing < all, ErrorKind::kInput, what);
  log_warning(what);
}

bool RolloutSource::take(std::vector<std::vector<SampledRow>> groups, RolloutPhase& phase) const {
  const std::int64_t wanted = parts_.config.rollouts();
  for (std::vector<SampledRow>& group : groups) {
    if (parts_.config.dynamic_sampling && all_equal(group)) continue;
    if (std::ssize(phase.rows) < wanted) std::ranges::move(group, std::back_inserter(phase.rows));
  }
  return std::ssize(phase.rows) == wanted;
}

// Log-probabilities of the completions by a whole forward, as in training, and in the same forward
// the values of a critic if they are asked for; on world rank 0.
std::vector<Numbers> RolloutSource::completion_logps(RankModel& by,
                                                     const std::vector<SampledRow>& rows,
                                                     std::vector<Numbers>* values) {
  std::vector<TokenSample> samples;
  for (const SampledRow& row : rows) samples.push_back(sample_of(row, false));
  auto completions = [&](const std::vector<Numbers>& all) {
    std::vector<Numbers> out;
    for (const Numbers& tokens : all) {
      const SampledRow& row = rows[out.size()];
      out.emplace_back(tokens.begin() + std::ssize(row.prompt), tokens.end());
    }
    return out;
  };
  std::vector<Numbers> all_values;
  std::vector<Numbers> logps =
      token_scores(by, samples, parts_.micro_batch_size, values != nullptr ? &all_values : nullptr);
  if (values != nullptr) *values = completions(all_values);
  return completions(logps);
}

void RolloutSource::score(RolloutPhase& phase) {
  std::vector<Numbers> values, reference, teacher;
  std::vector<Numbers> old =
      completion_logps(model(), phase.rows, parts_.rule.policy.critic ? &values : nullptr);
  if (parts_.rule.uses_reference()) {
    RankModel& by = reference_ != nullptr ? *reference_ : model();
    const ScopedValue<bool> adapters(by.ctx().adapters, reference_ != nullptr);
    reference = completion_logps(by, phase.rows);
  }
  if (teacher_ != nullptr) teacher = completion_logps(*teacher_, phase.rows);
  if (!first()) return;
  for (std::size_t i = 0; i < phase.rows.size(); ++i) {
    if (!teacher.empty()) phase.rows[i].teacher_logps = std::move(teacher[i]);
    phase.rows[i].old_logps = std::move(old[i]);
    if (!values.empty()) phase.rows[i].values = std::move(values[i]);
    if (!reference.empty()) phase.rows[i].ref_logps = std::move(reference[i]);
  }
  set_advantages(parts_.config, parts_.rule, parts_.request.max_new_tokens, phase.rows);
}

void RolloutSource::share(RolloutPhase& phase) {
  share_with_all([&](SharedNumbers& numbers) {
    numbers.pass(phase.next_prompt);
    numbers.pass(phase.groups_tried);
    numbers.pass_list(phase.rows, [&](SampledRow& row) { pass_row(numbers, row); });
  });
}

// A run that goes on writes the steps again that it does again.
void RolloutSource::record(const RolloutPhase& phase) {
  const std::string& path = parts_.config.rollouts_out;
  if (path.empty()) return;
  if (!std::exchange(recorded_, true)) {
    std::string kept;
    if (phase.number > 0 && path_exists(path)) {
      for (const std::string& line : split(read_file(path), '\n')) {
        const std::string begin = "{\"step\":";
        if (!line.starts_with(begin) || !line.ends_with('}')) continue;
        if (std::stoll(line.substr(begin.size())) < phase.step) kept += line + "\n";
      }
    }
    write_file(path, kept);
  }
  std::string text;
  for (const SampledRow& row : phase.rows) text += row_json(phase, row) + "\n";
  AppendFile(path, OpenMode::kAppend).write(text);
}

}  // namespace bev
