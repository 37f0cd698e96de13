#include "serve/completion_event.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace bev {

namespace {

using nlohmann::json;

json parsed(std::string_view text) { return json::parse(text, nullptr, false); }

// What follows `"name"`, a key or a whole text; nullopt if it is not there. In texts quotes are
// escaped, so that nothing within one is found.
std::optional<std::string_view> after_quoted(std::string_view text, std::string_view name) {
  for (std::size_t at = text.find(name, 1); at != text.npos; at = text.find(name, at + 1)) {
    std::size_t end = at + name.size();
    if (text[at - 1] == '"' && end < text.size() && text[end] == '"') return text.substr(end + 1);
  }
  return std::nullopt;
}

void skip_spaces(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

// Numbers of the list that is the value of this key; nullopt if it is no list.
std::optional<std::int64_t> list_length(std::string_view text, std::string_view key) {
  std::optional<std::string_view> rest = after_quoted(text, key);
  if (!rest) return std::nullopt;
  for (char expected : {':', '['}) {
    skip_spaces(*rest);
    if (!rest->starts_with(expected)) return std::nullopt;
    rest->remove_prefix(1);
  }
  std::string_view items = trim(rest->substr(0, rest->find(']')));
  return items.empty() ? 0 : std::ranges::count(items, ',') + 1;
}

// The number under these keys; 0 if there is none.
std::int64_t integer_at(const json& from, std::initializer_list<const char*> keys) {
  const json* at = &from;
  for (const char* key : keys) {
    if (!at->is_object() || !at->contains(key)) return 0;
    at = &(*at)[key];
  }
  return at->is_number_integer() ? at->get<std::int64_t>() : 0;
}

// OpenAI's {"error": {"message"}}, and vLLM's {"object": "error", "message"} of earlier; "" if it
// is neither.
std::string message_of(const json& body) {
  if (!body.is_object()) return {};
  bool flat = body.value("object", json()) == "error";
  const json error = flat ? body : body.value("error", json());
  if (error.is_null()) return {};
  const json message = error.is_object() ? error.value("message", json()) : error;
  return message.is_string() ? message.get<std::string>() : error.dump(-1, ' ', true);
}

}  // namespace

CompletionEvent read_completion_event(std::string_view text) {
  CompletionEvent event;
  std::optional<std::int64_t> tokens = list_length(text, "token_ids");
  event.tokens = tokens.value_or(after_quoted(text, "finish_reason") ? 1 : 0);
  bool plain = !text.empty() && text.front() == '{' && !after_quoted(text, "completion_tokens") &&
               !after_quoted(text, "error");
  if (plain) return event;
  const json body = parsed(text);
  if (!body.is_object()) event.error = "an event is no JSON object";
  if (std::string message = message_of(body); !message.empty()) event.error = std::move(message);
  const json usage = body.is_object() ? body.value("usage", json()) : json();
  if (usage.is_object()) {
    event.usage = CompletionUsage{
        .completion_tokens = integer_at(usage, {"completion_tokens"}),
        .cached_tokens = integer_at(usage, {"prompt_tokens_details", "cached_tokens"})};
  }
  return event;
}

std::string http_failure(int status, std::string_view body) {
  std::string message = message_of(parsed(body));
  return concat("HTTP ", status, message.empty() ? "" : ": ", message);
}

}  // namespace bev
