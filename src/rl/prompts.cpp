#include "rl/prompts.h"

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "chat/jinja/value_text.h"
#include "data/random/shuffle.h"

namespace bev {

namespace {

Prompt encode(PromptRow row, const Tokenizer& tokenizer, const ChatTemplate* chat_template) {
  Prompt prompt{.row = std::move(row), .text = {}, .ids = {}};
  const std::string& where = prompt.row.where;
  prompt.text = prompt.row.prompt;
  if (prompt.row.messages) {
    BEV_CHECK(
        chat_template != nullptr, ErrorKind::kInput, where,
        ": the prompt is a list of messages, and the model has no chat template; give a text, "
        "or --chat-template");
    ChatOptions options;
    options.add_generation_prompt = true;
    prompt.text = chat_template->render(jinja::parse_json(prompt.row.prompt, where), options).text;
  }
  prompt.ids = tokenizer.encode(prompt.text);
  BEV_CHECK(!prompt.ids.empty(), ErrorKind::kInput, where, ": the prompt is empty");
  return prompt;
}

}  // namespace

PromptSet::PromptSet(std::vector<PromptRow> rows, const Tokenizer& tokenizer,
                     const ChatTemplate* chat_template, std::int64_t longest, std::uint64_t seed)
    : seed_(mix_bits(seed, hash_name("prompts"))) {
  std::string first_long;
  std::int64_t left_out = 0;
  for (PromptRow& row : rows) {
    Prompt prompt = encode(std::move(row), tokenizer, chat_template);
    if (std::ssize(prompt.ids) <= longest) {
      prompts_.push_back(std::move(prompt));
    } else if (left_out++ == 0) {
      first_long = prompt.row.where;
    }
  }
  const std::string why = concat("--data: ", left_out, " prompts have more than ", longest,
                                 " tokens, the first of them ", first_long);
  BEV_CHECK(!prompts_.empty(), ErrorKind::kInput, why, "; none is left");
  if (left_out > 0) log_warning(concat(why, "; they are left out"));
}

const Prompt& PromptSet::at(std::int64_t place) const {
  auto epoch = static_cast<std::uint64_t>(place / size());
  std::int64_t index = permute_index(place % size(), size(), mix_bits(seed_, epoch));
  return prompts_[static_cast<std::size_t>(index)];
}

}  // namespace bev
