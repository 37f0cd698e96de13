#include "train/batch_schedule.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "base/divide.h"
#include "base/error.h"
#include "base/text.h"

namespace bev {

namespace {
using Step = BatchSchedule::Step;
using Problems = std::vector<std::string>;

// "250B" -> 250000000000, truncated to an integer; nullopt if not a number >= 0.
std::optional<std::int64_t> parse_count(std::string_view text) {
  constexpr std::string_view kSuffixes = "KMBT";
  double factor = 1.0;
  if (!text.empty()) {
    char last = text.back() >= 'a' ? static_cast<char>(text.back() - 'a' + 'A') : text.back();
    if (std::size_t at = kSuffixes.find(last); at != std::string_view::npos) {
      factor = std::pow(1000.0, static_cast<double>(at + 1));
      text.remove_suffix(1);
    }
  }
  double value = 0.0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  value *= factor;
  if (!(value >= 0.0 && value < 9e18)) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

std::vector<Step> parse_steps(const BatchSpec& spec, Problems& problems) {
  std::string text = spec.step_schedule;
  std::replace(text.begin(), text.end(), ',', ' ');
  std::vector<Step> steps;
  for (const std::string& entry : split(text, ' ')) {
    if (trim(entry).empty()) continue;
    std::string_view all = trim(entry);
    std::size_t colon = all.find(':');
    auto tokens = parse_count(all.substr(0, colon));
    auto size = colon == all.npos ? std::nullopt : parse_count(all.substr(colon + 1));
    if (!tokens || !size || *size < 1) {
      problems.push_back(
          concat("--step-batch-size-schedule: \"", all,
                 "\" is not TOKENS:BATCH with a batch of 1 or more, as in 250B:1536"));
      continue;
    }
    steps.push_back({*tokens / std::max<std::int64_t>(spec.seq_length, 1), *size});
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.from_samples < b.from_samples; });
  if (!problems.empty()) return steps;
  if (steps.empty() || steps[0].from_samples != 0) {
    problems.push_back(
        concat("--step-batch-size-schedule: the first entry must start at 0 tokens, as in 0:",
               steps.empty() ? 256 : steps[0].global_batch_size));
  }
  for (std::size_t i = 1; i < steps.size(); ++i) {
    if (steps[i].from_samples > steps[i - 1].from_samples) continue;
    problems.push_back(
        concat("--step-batch-size-schedule: batches ", steps[i - 1].global_batch_size, " and ",
               steps[i].global_batch_size, " both start at sample ", steps[i].from_samples,
               " (tokens / sequence length ", spec.seq_length, "); move one of them"));
  }
  return steps;
}

// Megatron's ramp-up: start + increment * int(consumed / (samples / increments)), divided in
// double.
std::vector<Step> rampup_steps(const BatchSpec& spec, std::int64_t target, Problems& problems) {
  if (spec.rampup.size() != 3) {
    problems.push_back(
        concat("--rampup-batch-size: takes 3 numbers (start, increment, samples), got ",
               spec.rampup.size()));
    return {};
  }
  std::int64_t start = spec.rampup[0], increment = spec.rampup[1], samples = spec.rampup[2];
  if (start < 1 || increment < 1 || samples < 0) {
    problems.push_back(concat("--rampup-batch-size: ", start, " ", increment, " ", samples,
                              "; start and increment must be 1 or more, samples 0 or more"));
    return {};
  }
  if (start > target || (target - start) % increment != 0) {
    std::int64_t below = start + std::max<std::int64_t>(target - start, 0) / increment * increment;
    problems.push_back(concat("--rampup-batch-size: from ", start, " in steps of ", increment,
                              " one does not reach --global-batch-size ", target, "; ", below,
                              " or ", below + increment, " would be reached"));
    return {};
  }
  std::int64_t increments = (target - start) / increment;
  if (increments == 0 || samples == 0) return {{0, target}};
  double per_increment = static_cast<double>(samples) / static_cast<double>(increments);
  auto done = [&](std::int64_t at) {
    return static_cast<std::int64_t>(static_cast<double>(at) / per_increment);
  };
  std::vector<Step> steps = {{0, start}};
  for (std::int64_t k = 1; k <= increments; ++k) {
    auto from = static_cast<std::int64_t>(std::ceil(static_cast<double>(k) * per_increment));
    while (from > 0 && done(from - 1) >= k) --from;
    while (done(from) < k) ++from;
    if (steps.back().from_samples == from) steps.pop_back();
    steps.push_back({from, start + k * increment});
  }
  return steps;
}

std::vector<Step> replay_steps(const std::vector<std::int64_t>& sizes) {
  std::vector<Step> steps;
  std::int64_t from = 0;
  for (std::int64_t size : sizes) {
    if (steps.empty() || steps.back().global_batch_size != size) steps.push_back({from, size});
    from += size;
  }
  return steps;
}

std::vector<Step> make_steps(const BatchSpec& spec, Problems& problems) {
  auto positive = [&](std::string_view flag, std::int64_t value) {
    if (value < 1) problems.push_back(concat(flag, ": ", value, "; must be 1 or more"));
  };
  positive("--micro-batch-size", spec.micro_batch_size);
  positive("data-parallel size", spec.data_parallel_size);
  positive("--seq-length", spec.seq_length);
  if (spec.global_batch_size < 0) positive("--global-batch-size", spec.global_batch_size);
  bool stepped = !spec.step_schedule.empty();
  auto refuse = [&](bool given, std::string_view flag) {
    if (stepped && given) {
      problems.push_back(concat("--step-batch-size-schedule: cannot be combined with ", flag,
                                "; leave one of them out"));
    }
  };
  refuse(!spec.rampup.empty(), "--rampup-batch-size");
  refuse(spec.decrease_if_needed, "--decrease-batch-size-if-needed");
  if (!problems.empty()) return {};

  if (!spec.replay.empty()) return replay_steps(spec.replay);
  if (stepped) {
    std::vector<Step> steps = parse_steps(spec, problems);
    bool same = spec.global_batch_size == 0 || steps.empty() ||
                spec.global_batch_size == steps.back().global_batch_size;
    if (!same) {
      problems.push_back(concat("--global-batch-size: ", spec.global_batch_size, " is not ",
                                steps.back().global_batch_size,
                                ", the last batch of --step-batch-size-schedule; leave one of them "
                                "out"));
    }
    return steps;
  }
  std::int64_t target = spec.global_batch_size > 0
                            ? spec.global_batch_size
                            : spec.micro_batch_size * spec.data_parallel_size;
  if (!spec.rampup.empty()) return rampup_steps(spec, target, problems);
  return {{0, target}};
}

std::int64_t running_size(const BatchSpec& spec, std::int64_t size) {
  std::int64_t unit = spec.micro_batch_size * spec.data_parallel_size;
  return spec.decrease_if_needed ? size / unit * unit : size;
}

// Returns "" if the size is divisible among the ranks.
std::string division_problem(const BatchSpec& spec, std::int64_t size) {
  std::int64_t unit = spec.micro_batch_size * spec.data_parallel_size;
  std::int64_t running = running_size(spec, size);
  if (running > 0 && running % unit == 0) return "";
  if (running > 0 && !spec.replay.empty()) return "";
  std::string_view flag = !spec.step_schedule.empty() ? "--step-batch-size-schedule"
                          : !spec.rampup.empty()      ? "--rampup-batch-size"
                                                      : "--global-batch-size";
  std::string text =
      concat(flag, ": ", size, " is not divisible by micro batch size ", spec.micro_batch_size,
             " x data-parallel size ", spec.data_parallel_size, " = ", unit, "; use ");
  std::int64_t below = size / unit * unit;
  append_text(text, below > 0 ? concat(below, " or ", below + unit) : concat(unit));
  if (size % spec.data_parallel_size == 0) {
    std::int64_t per_rank = size / spec.data_parallel_size;
    std::vector<std::string> choices;
    for (std::int64_t micro = std::min(per_rank, spec.micro_batch_size); micro >= 1; --micro) {
      if (per_rank % micro == 0 && choices.size() < 4) choices.push_back(concat(micro));
    }
    text += concat(", or --micro-batch-size ", join(choices, ", "));
  }
  if (below > 0 && spec.step_schedule.empty()) text += ", or --decrease-batch-size-if-needed";
  return text;
}
}  // namespace

std::vector<std::string> batch_problems(const BatchSpec& spec, std::int64_t from_samples) {
  Problems problems;
  std::vector<Step> steps = make_steps(spec, problems);
  if (!problems.empty()) return problems;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (i + 1 < steps.size() && steps[i + 1].from_samples <= from_samples) continue;
    std::string problem = division_problem(spec, steps[i].global_batch_size);
    if (!problem.empty()) problems.push_back(std::move(problem));
  }
  return problems;
}

BatchSchedule::BatchSchedule(const BatchSpec& spec) : spec_(spec) {
  Problems problems;
  steps_ = make_steps(spec, problems);
  BEV_CHECK(problems.empty(), ErrorKind::kConfig, join(problems, "\n"));
}

BatchSize BatchSchedule::at(std::int64_t consumed_samples) const {
  auto after = std::upper_bound(
      steps_.begin() + 1, steps_.end(), consumed_samples,
      [](std::int64_t samples, const Step& step) { return samples < step.from_samples; });
  std::int64_t size = std::prev(after)->global_batch_size;
  std::string problem = division_problem(spec_, size);
  BEV_CHECK(problem.empty(), ErrorKind::kConfig, problem);
  std::int64_t running = running_size(spec_, size);
  std::int64_t unit = spec_.micro_batch_size * spec_.data_parallel_size;
  return {size, running, ceil_div(running, unit)};
}

std::int64_t BatchSchedule::samples_after(std::int64_t iterations) const {
  std::int64_t consumed = 0;
  for (std::size_t i = 0; i < steps_.size() && iterations > 0; ++i) {
    std::int64_t take = iterations;
    if (i + 1 < steps_.size()) {
      std::int64_t left = steps_[i + 1].from_samples - consumed;
      if (left <= 0) continue;
      std::int64_t running = at(consumed).running;
      take = std::min(take, ceil_div(left, running));
    }
    consumed += take * at(consumed).running;
    iterations -= take;
  }
  return consumed;
}

std::int64_t BatchSchedule::iterations_within(std::int64_t samples) const {
  std::int64_t consumed = 0, iterations = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    bool last = i + 1 == steps_.size();
    if (!last && steps_[i + 1].from_samples <= consumed) continue;
    std::int64_t running = at(consumed).running;
    std::int64_t fits = std::max<std::int64_t>(samples - consumed, 0) / running;
    if (!last) {
      std::int64_t left = steps_[i + 1].from_samples - consumed;
      fits = std::min(fits, ceil_div(left, running));
    }
    consumed += fits * running;
    iterations += fits;
    if (!last && consumed < steps_[i + 1].from_samples) break;
  }
  return iterations;
}

}  // namespace bev
