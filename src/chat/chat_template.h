// The chat template of a tokenizer: conversations to text, as transformers' apply_chat_template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chat/template.h"
#include "chat/value.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct ChatOptions {
  jinja::Value tools, documents;  // lists of objects; None: not given
  bool add_generation_prompt = false;
  jinja::Dict variables;  // for the template; they win over special tokens
};

class ChatTemplate {
 public:
  // The template of the tokenizer at `path`, a folder or a file in one. `chosen` is a file with
  // another template, or the name of one of several; "": the default, with tools tool_use where
  // there is one. Error(kInput) when there is none.
  static ChatTemplate load(const std::string& path, const std::string& chosen, bool with_tools);
  ChatTemplate(jinja::Template chat_template, jinja::Dict special_tokens)
      : template_(std::move(chat_template)), special_tokens_(std::move(special_tokens)) {}

  // `messages` is a list of dicts that is not empty; Error(kInput) else, and when the template
  // fails.
  jinja::Rendered render(const jinja::Value& messages, const ChatOptions& options) const;

  // Whether the template marks what the assistant says, with {% generation %}.
  bool marks_assistant() const { return template_.has_generation(); }

 private:
  jinja::Template template_;
  jinja::Dict special_tokens_;
};

// A conversation as a model reads it.
struct EncodedChat {
  std::string text;
  std::vector<std::int32_t> ids;
  // 1: a token that the assistant says. Absent where the template does not mark it.
  std::optional<std::vector<std::uint8_t>> assistant;
};
EncodedChat encode_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                        const jinja::Value& messages, const ChatOptions& options);

}  // namespace bev
