// reward: rewards of completions in a file.
#include <cmath>
#include <nlohmann/json.hpp>

#include "app/command.h"
#include "app/commands/commands.h"
#include "app/options.h"
#include "app/reward_flags.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/output.h"
#include "reward/row_file.h"

namespace bev {

namespace {

struct RewardCommandFlags {
  std::string input, label_key;
  RewardFlags rewards;
  bool json = true;  // always

  void fields(FieldList& list) {
    rewards.fields(list);
    list.add("input", input,
             "JSON lines {\"id\", \"prompt\", \"completion\", \"label\" or \"answer\"}");
    list.add("label-key", label_key, "member with the right answer").defaults_to("label or answer");
    list.add("json", json, "results are JSON lines in any case");
  }
};

std::vector<RewardRow> reward_rows(const std::vector<PromptRow>& rows) {
  std::vector<RewardRow> out;
  for (const PromptRow& row : rows) {
    BEV_CHECK(row.has_completion, ErrorKind::kInput, row.where,
              ": has no \"completion\" to reward");
    out.push_back({.where = row.where,
                   .prompt = row.prompt,
                   .completion = row.completion,
                   .label = row.label,
                   .has_label = row.has_label,
                   .columns = row.columns});
  }
  return out;
}

int run_reward(RewardCommandFlags& wanted, const CommandInput& input) {
  std::vector<std::string> problems = wanted.rewards.problems();
  need(wanted.input, "--input", "a file of JSON lines", problems);
  input.options.add_problems(problems);
  input.options.throw_problems();
  WeightedRewards rewards = make_rewards(wanted.rewards);
  std::vector<PromptRow> rows = read_prompt_rows({wanted.input}, wanted.label_key);
  std::vector<RewardRow> scored = reward_rows(rows);
  check_labels(rewards.rewards, scored);
  std::vector<RowReward> values = weighted_rewards(rewards.rewards, rewards.weights, scored);
  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    nlohmann::ordered_json line;
    line["id"] = rows[i].id.empty() ? nullptr : nlohmann::ordered_json::parse(rows[i].id);
    line["reward"] = values[i].reward;  // what is not finite is dumped as null
    line["metrics"] = nlohmann::ordered_json::object();
    for (const auto& [name, value] : values[i].metrics) line["metrics"][name] = value;
    if (!values[i].problem.empty()) line["problem"] = values[i].problem;
    text += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  write_stdout(text);
  return kExitOk;
}

}  // namespace

const Command kRewardCommand = {
    .name = "reward",
    .summary = "reward completions of a file, as `rl` would",
    .examples =
        "bevatron reward --reward numeric --input answers.jsonl\n"
        "bevatron reward --reward format:think exec:./judge.py --reward-weights 0.2 1 "
        "--input answers.jsonl\n"
        "bevatron reward --reward code:python3 --input solutions.jsonl",
    .call = call_of<RewardCommandFlags, run_reward>};

}  // namespace bev
