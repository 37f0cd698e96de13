#include "reward/reward.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json_check.h"
#include "reward/answers.h"
#include "reward/code_reward.h"
#include "reward/json_schema.h"
#include "reward/worker_pool.h"
#include "tokenizer/text/regex.h"

namespace bev {

namespace {

// A reward that is a function of a row.
template <class Score>
class TextReward final : public Reward {
 public:
  TextReward(std::string name, bool needs_label, Score score)
      : name_(std::move(name)), needs_label_(needs_label), score_(std::move(score)) {}

  std::string name() const override { return name_; }
  bool needs_label() const override { return needs_label_; }
  std::vector<RowReward> score(std::span<const RewardRow> rows) override {
    std::vector<RowReward> values;
    for (const RewardRow& row : rows) {
      RowReward& value = values.emplace_back();
      try {
        value.reward = static_cast<double>(score_(row));
      } catch (const Error& error) {  // a regular expression that gives up
        value.problem = error.what();
      }
    }
    return values;
  }

 private:
  std::string name_;
  bool needs_label_;
  Score score_;
};

template <class Score>
std::unique_ptr<Reward> by_text(const std::string& name, bool needs_label, Score score) {
  return std::make_unique<TextReward<Score>>(name, needs_label, std::move(score));
}

using Answer = std::optional<std::string>;

bool is_label(const Answer& answer, const RewardRow& row) {
  return answer && same_answer(*answer, row.label);
}

std::unique_ptr<Reward> make_numeric(const std::string& argument) {
  std::optional<double> tolerance = argument.empty() ? 1e-6 : read_number(argument);
  BEV_CHECK(tolerance && *tolerance >= 0, ErrorKind::kConfig, "--reward numeric:", argument,
            ": the tolerance is no number of at least 0");
  return by_text("numeric", true, [tolerance = *tolerance](const RewardRow& row) {
    std::optional<double> wanted = last_number(row.label);
    BEV_CHECK(wanted.has_value(), ErrorKind::kInput, "the label ", quote(row.label),
              " has no number");
    std::optional<double> found = last_number(row.completion);
    return found && same_number(*found, *wanted, tolerance);
  });
}

// With a group its last text must be the label.
std::unique_ptr<Reward> make_regex(const std::string& pattern) {
  bool captures = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\') {
      ++i;
    } else if (pattern[i] == '(' && pattern.substr(i + 1, 1) != "?") {
      captures = true;
    }
  }
  return by_text(
      "regex", captures,
      [regex = Regex(pattern, RegexDialect::kFancy), captures](const RewardRow& row) {
        Regex::Matches matches(regex, row.completion);
        bool right = false;
        while (matches.next()) {
          if (!captures) return true;
          auto group = matches.group(1);
          if (!group) continue;
          std::string_view text =
              std::string_view(row.completion).substr(group->begin, group->end - group->begin);
          right = trim(text) == trim(row.label);
        }
        return right;
      });
}

// The whole completion matches.
std::unique_ptr<Reward> make_format(const std::string& argument) {
  std::string pattern =
      argument == "think" ? "(?s)^<think>(?!.*<think>)(.*?)</think>.*\\z" : argument;
  return by_text("format", false,
                 [regex = Regex(pattern, RegexDialect::kFancy)](const RewardRow& row) {
                   Regex::Matches matches(regex, row.completion);
                   std::optional<Match> found = matches.next();
                   return found && found->begin == 0 && found->end == row.completion.size();
                 });
}

std::unique_ptr<Reward> make_length(const std::string& argument) {
  std::vector<std::string> ends = split(argument, '-');
  std::optional<double> least, most;
  if (ends.size() == 2) least = read_number(ends[0]), most = read_number(ends[1]);
  BEV_CHECK(least && most && *least <= *most, ErrorKind::kConfig, "--reward length:", argument,
            ": give the least and the largest number of characters, as in length:1-200");
  return by_text("length", false, [least = *least, most = *most](const RewardRow& row) {
    auto points = static_cast<double>(
        std::ranges::count_if(row.completion, [](char c) { return (c & 0xc0) != 0x80; }));
    return points >= least && points <= most;
  });
}

std::unique_ptr<Reward> make_text_reward(const std::string& kind, const std::string& argument) {
  if (kind == "exact") {
    return by_text(kind, true,
                   [](const RewardRow& row) { return trim(row.completion) == trim(row.label); });
  }
  if (kind == "gsm8k") {
    return by_text(kind, true, [](const RewardRow& row) {
      Answer found = marked_answer(row.completion), wanted = marked_answer(row.label);
      return found && *found == wanted.value_or(std::string(trim(row.label)));
    });
  }
  if (kind == "boxed") {
    return by_text(kind, true,
                   [](const RewardRow& row) { return is_label(last_boxed(row.completion), row); });
  }
  if (kind == "math") {
    return by_text(kind, true, [](const RewardRow& row) {
      return is_label(last_boxed(row.completion), row) ||
             is_label(answer_line(row.completion), row);
    });
  }
  if (kind == "choice") {
    return by_text(kind, true, [](const RewardRow& row) {
      Answer found = last_choice(row.completion);
      return found && *found == trim(row.label);
    });
  }
  if (kind == "numeric") return make_numeric(argument);
  if (kind == "regex") return make_regex(argument);
  if (kind == "format") return make_format(argument);
  if (kind == "length") return make_length(argument);
  if (kind != "json") return nullptr;
  auto schema = std::make_shared<const JsonSchema>(argument);
  return by_text(kind, false,
                 [schema](const RewardRow& row) { return schema->accepts(row.completion); });
}

}  // namespace

std::unique_ptr<Reward> make_reward(const std::string& spec, const RewardOptions& options) {
  const std::size_t colon = std::min(spec.find(':'), spec.size());
  const std::string kind = spec.substr(0, colon);
  const std::string argument = spec.substr(std::min(colon + 1, spec.size()));
  bool wants =
      kind == "regex" || kind == "format" || kind == "length" || kind == "json" || kind == "exec";
  BEV_CHECK(!wants || !argument.empty(), ErrorKind::kConfig, "--reward ", spec,
            ": something must follow, as in regex:PATTERN, json:SCHEMA.json or exec:COMMAND");
  if (kind == "exec") return make_program_reward(argument, options);
  if (kind == "code") return make_code_reward(argument.empty() ? "python3" : argument, options);
  if (std::unique_ptr<Reward> reward = make_text_reward(kind, argument)) return reward;
  BEV_FAIL(ErrorKind::kConfig, "--reward ", spec,
           ": is none of exact, numeric, gsm8k, boxed, math, choice, regex:PATTERN, "
           "format:think, format:PATTERN, length:LEAST-MOST, json:SCHEMA.json, code, "
           "exec:COMMAND and http://HOST/PATH");
}

std::unique_ptr<Reward> make_environment(const std::string& spec, const RewardOptions& options) {
  constexpr std::string_view kProgram = "exec:";
  const bool program = spec.starts_with(kProgram) && spec.size() > kProgram.size();
  BEV_CHECK(program, ErrorKind::kConfig, "--env ", spec,
            ": is no exec:COMMAND; an environment is a program that speaks JSON lines");
  RewardOptions own = options;
  own.converses = true;
  return make_program_reward(spec.substr(kProgram.size()), own);
}

std::vector<RowReward> weighted_rewards(std::span<const std::unique_ptr<Reward>> rewards,
                                        std::span<const double> weights,
                                        std::span<const RewardRow> rows) {
  std::vector<RowReward> out(rows.size());
  for (std::size_t r = 0; r < rewards.size(); ++r) {
    std::vector<RowReward> values = rewards[r]->score(rows);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      RowReward& value = values[i];
      if (value.problem.empty() && !std::isfinite(value.reward)) {
        value.problem = concat("the reward is ", value.reward);
      }
      if (!value.problem.empty()) {
        if (!out[i].problem.empty()) out[i].problem += "; ";
        out[i].problem += concat(rewards[r]->name(), ": ", value.problem);
        continue;
      }
      double share = weights[r] * value.reward;
      out[i].reward = std::isnan(out[i].reward) ? share : out[i].reward + share;
      out[i].metrics.emplace_back(rewards[r]->name(), value.reward);
      std::ranges::move(value.metrics, std::back_inserter(out[i].metrics));
    }
  }
  return out;
}

void check_labels(std::span<const std::unique_ptr<Reward>> rewards,
                  std::span<const RewardRow> rows) {
  for (const std::unique_ptr<Reward>& reward : rewards) {
    if (!reward->needs_label()) continue;
    for (const RewardRow& row : rows) {
      BEV_CHECK(row.has_label, ErrorKind::kInput, row.where, ": has no label, which --reward ",
                reward->name(), " compares with; give a member \"label\" or \"answer\"");
    }
  }
}

}  // namespace bev
