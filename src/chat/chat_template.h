// Chat template of a tokenizer: conversations to text, like transformers' apply_chat_template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja/template.h"
#include "chat/jinja/value.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct ChatOptions {
  jinja::Value tools, documents;  // lists of objects; None: not given
  bool add_generation_prompt = false;
  jinja::Dict variables;  // template variables; they override special tokens
};

class ChatTemplate {
 public:
  // Loads the template of the tokenizer at `path`, a folder or a file in one. `chosen` is a
  // template file or the name of one of several templates; "": the default, or tool_use with tools,
  // if it exists. Throws Error(kInput) if there is none.
  static ChatTemplate load(const std::string& path, const std::string& chosen, bool with_tools);
  ChatTemplate(jinja::Template chat_template, jinja::Dict special_tokens);

  // `messages` must be a non-empty list of dicts. Throws Error(kInput) otherwise, or if the
  // template fails.
  jinja::Rendered render(const jinja::Value& messages, const ChatOptions& options) const;

  // True if the template marks the assistant's text with {% generation %}.
  bool marks_assistant() const { return template_.has_generation(); }
  // What begins the assistant's turns and is the generation prompt's, not the assistant's; "" if
  // the template marks the assistant's text or if no such text is found.
  const std::string& header() const { return header_; }
  const std::string& text() const { return template_.source(); }
  const std::string& name() const { return template_.name(); }  // the file, for messages
  const jinja::Dict& special_tokens() const { return special_tokens_; }

 private:
  jinja::Template template_;
  jinja::Dict special_tokens_;
  std::string header_;
};

struct NamedTemplate {
  std::string name, text;
};
// The templates of the tokenizer at `path`, sorted by name; `chosen`, as in ChatTemplate::load, is
// the one called "default". Throws Error(kInput) if `chosen` is neither a name nor a file.
std::vector<NamedTemplate> chat_templates(const std::string& path, const std::string& chosen);

// An encoded conversation.
struct EncodedChat {
  std::string text;
  std::vector<std::int32_t> ids;
  // Loss mask: 1 for assistant tokens.
  std::vector<std::uint8_t> assistant;
};
// How loss masks come about: "generation tags" if the template has such blocks, else "provenance".
const char* mask_source(const ChatTemplate& chat_template);
// With provenance, an assistant's turn that ends without a special token is ended by the special
// token that follows it.
EncodedChat encode_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                        const jinja::Value& messages, const ChatOptions& options);

}  // namespace bev
