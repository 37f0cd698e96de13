#include "chat/turn_end.h"

#include <array>

#include "base/error.h"
#include "base/text.h"

namespace bev {

namespace {

constexpr const char* kAnswer = "The answer";

jinja::Value message(const char* role, const char* content) {
  jinja::Dict dict;
  dict.set("role", role);
  dict.set("content", content);
  return dict;
}

// What the template writes after an answer; nullopt if it refuses the conversation.
std::optional<std::string> text_after_answer(const ChatTemplate& chat_template) {
  try {
    std::string text = chat_template
                           .render(jinja::Value::list({message("user", "The question"),
                                                       message("assistant", kAnswer)}),
                                   {})
                           .text;
    std::size_t at = text.rfind(kAnswer);
    if (at == std::string::npos) return std::nullopt;
    return text.substr(at + std::string_view(kAnswer).size());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::optional<std::int32_t> turn_end(const ChatTemplate& chat_template,
                                     const Tokenizer& tokenizer) {
  std::optional<std::string> rest = text_after_answer(chat_template);
  if (!rest) return std::nullopt;
  for (std::int32_t id : tokenizer.encode(*rest)) {
    if (tokenizer.is_special(id)) return id;
    if (!trim(tokenizer.decode(std::array{id})).empty()) break;
  }
  return std::nullopt;
}

}  // namespace bev
