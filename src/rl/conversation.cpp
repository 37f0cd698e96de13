#include "rl/conversation.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "chat/jinja/value_text.h"

namespace bev {

namespace {

// Stands for the model's turn, of which the template need not know what it was.
constexpr const char* kTurn = "The turn of the model";

jinja::Value spoken_turn() {
  jinja::Dict dict;
  dict.set("role", "assistant");
  dict.set("content", kTurn);
  return dict;
}

jinja::Value prompt_messages(const PromptRow& row) {
  if (row.messages) return jinja::parse_json(row.prompt, row.where);
  jinja::Dict dict;
  dict.set("role", "user");
  dict.set("content", row.prompt);
  return jinja::Value::list({dict});
}

}  // namespace

bool Conversations::ended_turn(const SampledRow& row) const {
  return row.finished() && !row.closed;
}

RewardRow Conversations::question(const SampledRow& row, std::int64_t step) const {
  const Prompt& prompt = rules_.prompts.at(row.group);
  return {.where = prompt.row.where,
          .prompt = prompt.text,
          .completion = row.text,
          .label = prompt.row.label,
          .has_label = prompt.row.has_label,
          .columns = prompt.row.columns,
          .completion_ids = row.completion,
          .step = step,
          .turn = row.turns,
          .last_turn = row.truncated() || row.turns == rules_.max_turns};
}

bool Conversations::reply(std::span<std::vector<SampledRow>> groups, std::int64_t step) {
  // A row without room for the reply is asked about once more, for its reward.
  while (ask(groups, step)) {
  }
  return std::ranges::any_of(groups, [](const std::vector<SampledRow>& group) {
    return !std::ranges::all_of(group, &SampledRow::finished);
  });
}

// About all rows whose turn has ended; false if there are none.
bool Conversations::ask(std::span<std::vector<SampledRow>> groups, std::int64_t step) {
  std::vector<SampledRow*> rows;
  std::vector<RewardRow> questions;
  for (std::vector<SampledRow>& group : groups) {
    for (SampledRow& row : group) {
      if (!ended_turn(row)) continue;
      rows.push_back(&row);
      questions.push_back(question(row, step));
    }
  }
  if (rows.empty()) return false;
  std::vector<RowReward> answers = rules_.environment.score(questions);
  for (std::size_t i = 0; i < rows.size(); ++i) take(answers[i], *rows[i]);
  return true;
}

void Conversations::take(RowReward& answer, SampledRow& row) const {
  row.closed = true;
  if (!answer.problem.empty()) {
    row.problem = std::move(answer.problem);
    return;
  }
  if (!answer.reply) {
    row.environment_reward = answer.reward;
    return;
  }
  if (row.truncated() || row.turns == rules_.max_turns) {
    row.problem = concat("the environment has replied to turn ", row.turns, ", the last ",
                         row.truncated() ? "that has room" : "of --max-turns");
    return;
  }
  const TokenRow ids = reply_ids(*answer.reply, row);
  const auto before = row.completion.size();
  row.completion.insert(row.completion.end(), ids.begin(), ids.end());
  row.sampling_logps.resize(row.completion.size());
  row.mask.resize(before, 1);
  row.mask.resize(row.completion.size(), 0);
  // Where no room is left nothing would be sampled behind the reply.
  if (std::ssize(row.completion) >= rules_.max_tokens) {
    row.completion.resize(before);
    row.sampling_logps.resize(before);
    row.mask.resize(before);
    row.finish_reason = "length";
    row.closed = false;
    return;
  }
  row.finish_reason.clear();
  row.closed = false;
  ++row.turns;
}

TokenRow Conversations::reply_ids(const TurnReply& reply, const SampledRow& row) const {
  return rules_.tokenizer.encode(reply.messages ? rendered(reply.text, row) : reply.text);
}

// What the template writes behind the model's turn, without the end of the turn that the model has
// written itself.
std::string Conversations::rendered(const std::string& messages, const SampledRow& row) const {
  const Prompt& prompt = rules_.prompts.at(row.group);
  BEV_CHECK(rules_.chat_template != nullptr, ErrorKind::kInput, prompt.row.where,
            ": --env has replied with messages, and the model has no chat template; reply with a "
            "text, or give --chat-template");
  std::vector<jinja::Value> conversation;
  auto add = [&](const jinja::Value& list) {
    BEV_CHECK(list.sequence() != nullptr, ErrorKind::kInput, prompt.row.where,
              ": --env: expected a list of messages");
    std::ranges::copy(list.sequence()->items, std::back_inserter(conversation));
  };
  add(prompt_messages(prompt.row));
  conversation.push_back(spoken_turn());
  add(jinja::parse_json(messages, "--env"));
  ChatOptions options;
  options.add_generation_prompt = true;
  std::string text =
      rules_.chat_template->render(jinja::Value::list(std::move(conversation)), options).text;
  const std::size_t at = text.rfind(kTurn);
  BEV_CHECK(at != std::string::npos, ErrorKind::kInput, prompt.row.where,
            ": the chat template leaves the model's turn out before messages of --env; reply with "
            "a text");
  text.erase(0, at + std::string_view(kTurn).size());
  if (row.completion.empty()) return text;
  const std::int32_t last = row.completion.back();
  const bool ends = std::ranges::find(rules_.end_tokens, last) != rules_.end_tokens.end();
  const std::string written = ends ? rules_.tokenizer.token_text(last).value_or("") : "";
  if (!written.empty() && text.starts_with(written)) text.erase(0, written.size());
  return text;
}

}  // namespace bev
