#include "data/sft/sft_encode.h"

#include <algorithm>

#include "base/error.h"
#include "chat/token_spans.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

using jinja::List;
using jinja::Value;

bool is_assistant(const Value& message) {
  const std::string* role = message.dict()->find_name("role")->string();
  return *role == "assistant";
}

std::size_t common_bytes(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

class PrefixRendering {
 public:
  PrefixRendering(const SftRow& row, const ChatTemplate& chat_template)
      : messages_(row.messages.sequence()->items), template_(chat_template) {
    options_.tools = row.tools;
    options_.documents = row.documents;
    text_ = render(messages_.size(), false);
  }

  const std::string& text() const { return text_; }

  // Code point spans of the assistant's messages, without the generation prompt.
  std::vector<jinja::GenerationSpan> spans() const {
    std::vector<jinja::GenerationSpan> out;
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (!is_assistant(messages_[i])) continue;
      std::string before = i > 0 ? render(i, false) : "";
      std::string prompted = i > 0 ? render(i, true) : "";
      std::string after = i + 1 < messages_.size() ? render(i + 1, false) : text_;
      check_grows(before, after, i);
      check_grows(after, text_, i + 1);
      std::size_t begin = std::max(before.size(), common_bytes(prompted, after));
      while (begin > 0 && (after[begin] & 0xc0) == 0x80) --begin;  // start of a UTF-8 character
      out.push_back({count_points(after.substr(0, begin)), count_points(after)});
    }
    return out;
  }

 private:
  std::string render(std::size_t count, bool prompt) const {
    ChatOptions options = options_;
    options.add_generation_prompt = prompt;
    List part(messages_.begin(), messages_.begin() + static_cast<std::ptrdiff_t>(count));
    return template_.render(Value::list(std::move(part)), options).text;
  }

  static void check_grows(const std::string& shorter, const std::string& longer,
                          std::size_t messages) {
    BEV_CHECK(longer.starts_with(shorter), ErrorKind::kInput, "the chat template writes the first ",
              messages,
              " messages otherwise when more follow, so what the assistant says cannot be found; ",
              "give a template with {% generation %} blocks (--chat-template), or rows with one ",
              "answer each");
  }

  const List& messages_;
  const ChatTemplate& template_;
  ChatOptions options_;
  std::string text_;
};

}  // namespace

SftTokens encode_sft_row(const SftRow& row, const ChatTemplate& chat_template,
                         const Tokenizer& tokenizer) {
  if (chat_template.marks_assistant()) {
    ChatOptions options;
    options.tools = row.tools;
    options.documents = row.documents;
    EncodedChat chat = encode_chat(chat_template, tokenizer, row.messages, options);
    return {std::move(chat.ids), *std::move(chat.assistant)};
  }
  PrefixRendering rendering(row, chat_template);
  std::vector<jinja::GenerationSpan> spans = rendering.spans();
  SftTokens out;
  out.ids = tokenizer.encode(rendering.text());
  if (spans.empty()) {
    out.learned.resize(out.ids.size());
    return out;
  }
  out.learned =
      assistant_mask(rendering.text(), token_spans(tokenizer, rendering.text(), out.ids), spans);
  return out;
}

}  // namespace bev
