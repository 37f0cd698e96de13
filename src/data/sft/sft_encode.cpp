#include "data/sft/sft_encode.h"

#include <algorithm>

#include "base/error.h"
#include "chat/assistant_spans.h"

namespace bev {

namespace {

// True for messages of the assistant that have something to say.
bool speaks(const jinja::Value& message) {
  if (!is_assistant(message)) return false;
  return std::ranges::any_of(message.dict()->items, [](const auto& item) {
    return item.first.string() && *item.first.string() != "role" && item.second.truth();
  });
}

}  // namespace

SftTokens encode_sft_row(const SftRow& row, const ChatTemplate& chat_template,
                         const Tokenizer& tokenizer) {
  ChatOptions options;
  options.tools = row.tools;
  options.documents = row.documents;
  EncodedChat chat = encode_chat(chat_template, tokenizer, row.messages, options);
  bool mute = std::ranges::count(chat.assistant, 1) == 0;
  bool should_learn = std::ranges::any_of(row.messages.sequence()->items, speaks);
  BEV_CHECK(!mute || !should_learn, ErrorKind::kInput, chat_template.name(),
            ": the loss mask is all zeros, because the chat template ",
            chat_template.marks_assistant()
                ? "has nothing of the assistant in its {% generation %} "
                  "blocks; correct them, or remove the tags so that "
                  "the answers are found by where they come from"
                : "does not write the assistant's messages; give one "
                  "that does with --chat-template");
  return {std::move(chat.ids), std::move(chat.assistant)};
}

}  // namespace bev
