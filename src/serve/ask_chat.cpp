// Conversations: messages to prompts by the model's chat template.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/text.h"
#include "chat/jinja/value_text.h"
#include "serve/api_error.h"
#include "serve/ask.h"

namespace bev {

namespace {

using jinja::Dict;
using jinja::Value;

[[noreturn]] void fail(const std::string& field, const std::string& message) {
  throw ApiError(400, concat(field, ": ", message), field, "invalid_value");
}

// The texts of a list of content parts; anything but text is refused.
std::string joined_parts(const jinja::Sequence& parts, const std::string& field) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < parts.items.size(); ++i) {
    const std::string at = concat(field, "[", i, "]");
    const Value& part = parts.items[i];
    if (part.is_string()) {
      texts.push_back(*part.string());
      continue;
    }
    if (!part.is_dict()) fail(at, "is no content part");
    Body body(part, at);
    std::string type = body.text("type").value_or("text");
    const char* name = type == "refusal" ? "refusal" : "text";
    bool known = type == "text" || type == "input_text" || type == "refusal";
    if (!known) fail(at + ".type", concat("'", type, "' is not supported; only text is"));
    std::optional<std::string> text = body.text(name);
    if (!text) fail(concat(at, ".", name), "is missing");
    texts.push_back(*text);
  }
  return join(texts, "\n");
}

// Arguments of tool calls are JSON in a text; templates want the object.
Value with_parsed_arguments(const Value& calls) {
  if (!calls.is_sequence()) return calls;
  jinja::List out;
  for (const Value& call : calls.sequence()->items) {
    const Value* function = call.is_dict() ? call.dict()->find_name("function") : nullptr;
    const Value* arguments = function != nullptr && function->is_dict()
                                 ? function->dict()->find_name("arguments")
                                 : nullptr;
    out.push_back(call);
    if (arguments == nullptr || !arguments->is_string()) continue;
    try {
      Dict parsed_function = *function->dict(), parsed_call = *call.dict();
      parsed_function.set("arguments", jinja::parse_json(*arguments->string(), "arguments"));
      parsed_call.set("function", parsed_function);
      out.back() = parsed_call;
    } catch (const Error&) {  // the template gets the text
    }
  }
  return Value::list(std::move(out));
}

Value checked_message(const Value& message, const std::string& field) {
  static const std::vector<std::string> kRoles = {"developer", "system", "user",
                                                  "assistant", "tool",   "function"};
  if (!message.is_dict()) fail(field, "is no object with role and content");
  Body body(message, field);
  std::string role = body.text("role").value_or("");
  if (std::ranges::find(kRoles, role) == kRoles.end()) {
    fail(field + ".role", concat("'", role, "' is none of ", join(kRoles, ", ")));
  }
  Dict out;
  for (const auto& [key, value] : message.dict()->items) {
    if (!value.is_none()) out.set(key, value);
  }
  const Value* content = body.find("content");
  if (content == nullptr) {
    bool may_lack = role == "assistant";
    if (!may_lack) fail(field + ".content", "is missing");
    out.set("content", body.has("tool_calls") ? Value() : Value(""));
  } else if (content->is_sequence()) {
    out.set("content", joined_parts(*content->sequence(), field + ".content"));
  } else if (!content->is_string()) {
    fail(field + ".content", "is neither a text nor a list of content parts");
  }
  if (const Value* calls = body.find("tool_calls")) {
    out.set("tool_calls", with_parsed_arguments(*calls));
  }
  return out;
}

Value with_role(const Value& message, const char* role) {
  Dict out = *message.dict();
  out.set("role", role);
  return out;
}

std::string role_of(const Value& message) { return *message.dict()->find_name("role")->string(); }

jinja::List checked_messages(const Body& body) {
  const Value* messages = body.find("messages");
  if (messages == nullptr) fail("messages", "is missing");
  if (!messages->is_sequence() || messages->sequence()->items.empty()) {
    fail("messages", "is no list of messages, or empty");
  }
  jinja::List out;
  for (const Value& message : messages->sequence()->items) {
    out.push_back(checked_message(message, concat("messages[", out.size(), "]")));
  }
  return out;
}

// Few templates know the role developer, which is the newer name of system.
std::string render(const ChatTemplate& chat_template, const jinja::List& messages,
                   const ChatOptions& options) {
  auto as_system = [](const Value& message) {
    return role_of(message) == "developer" ? with_role(message, "system") : message;
  };
  bool renamed = std::ranges::any_of(
      messages, [](const Value& message) { return role_of(message) == "developer"; });
  if (renamed && chat_template.text().find("developer") == std::string::npos) {
    jinja::List out;
    std::ranges::transform(messages, std::back_inserter(out), as_system);
    return chat_template.render(Value::list(std::move(out)), options).text;
  }
  return chat_template.render(Value::list(messages), options).text;
}

ChatOptions chat_options(const Body& body) {
  ChatOptions options;
  options.add_generation_prompt = body.flag("add_generation_prompt", true);
  if (const Value* documents = body.find("documents")) {
    if (!documents->is_sequence()) fail("documents", "is no list");
    options.documents = *documents;
  }
  if (const Value* effort = body.find("reasoning_effort")) {
    static const std::vector<std::string> kEfforts = {"none",   "minimal", "low",
                                                      "medium", "high",    "xhigh"};
    std::string text = *body.text("reasoning_effort");
    if (std::ranges::find(kEfforts, text) == kEfforts.end()) {
      fail("reasoning_effort", concat("'", text, "' is none of ", join(kEfforts, ", ")));
    }
    options.variables.set("reasoning_effort", *effort);
  }
  if (body.object("chat_template_kwargs")) {
    for (const auto& [name, value] : body.find("chat_template_kwargs")->dict()->items) {
      options.variables.set(name, value);
    }
  }
  return options;
}

// The text up to the end of the last message's content, which the answer goes on with.
void cut_after(std::string& text, const std::string& content) {
  std::string_view end = trim(content);
  std::size_t at = end.empty() ? std::string::npos : text.rfind(end);
  if (at == std::string::npos) {
    fail("continue_final_message", "the chat template does not write the last message's content");
  }
  bool whole = text.compare(at, content.size(), content) == 0;
  text.resize(at + (whole ? content.size() : end.size()));
}

}  // namespace

ChatPrompt chat_prompt(const ServedModel& model, const Body& body) {
  const Tokenizer& tokenizer = need_tokenizer(model, "messages");
  std::optional<std::string> own = body.text("chat_template");
  if (own && !model.trust_request_chat_template) {
    throw ApiError(400,
                   "chat_template: this server takes none from requests "
                   "(--trust-request-chat-template)",
                   "chat_template", "unsupported_parameter");
  }
  if (!model.chat_template && !own) {
    throw ApiError(400,
                   "messages: the model has no chat template; use /v1/completions, or start "
                   "the server with --chat-template FILE",
                   "messages", "no_chat_template");
  }
  jinja::List messages = checked_messages(body);
  ChatOptions options = chat_options(body);
  bool continues = body.flag("continue_final_message", false);
  if (continues && body.flag("add_generation_prompt", false)) {
    fail("continue_final_message", "excludes add_generation_prompt: true");
  }
  if (continues) options.add_generation_prompt = false;
  ChatPrompt out;
  try {
    const Dict special = model.chat_template ? model.chat_template->special_tokens() : Dict();
    out.prompt.text = own ? render(ChatTemplate(jinja::Template(*own, "chat_template"), special),
                                   messages, options)
                          : render(*model.chat_template, messages, options);
  } catch (const Error& error) {
    throw ApiError(400, concat("the chat template refuses the conversation: ", error.what()),
                   own ? "chat_template" : "messages", "chat_template_error");
  }
  if (continues) {
    const jinja::Value* content = messages.back().dict()->find_name("content");
    if (content == nullptr || !content->is_string()) {
      fail("continue_final_message", "the last message has no content");
    }
    cut_after(out.prompt.text, *content->string());
    out.continued = *content->string();
  }
  out.prompt.ids = encode_text(tokenizer, out.prompt.text, body.flag("add_special_tokens", false));
  if (out.prompt.ids.empty()) fail("messages", "the prompt is empty");
  return out;
}

Ask parse_chat(const ServedModel& model, const Body& body) {
  check_model(model, body);
  Ask ask;
  ask.chat = true;
  parse_shared(model, body, ask);
  ask.logprobs = body.flag("logprobs", false);
  auto top = body.integer("top_logprobs", 0, kMostTopLogprobs);
  if (top.value_or(0) > 0 && !ask.logprobs) fail("top_logprobs", "needs logprobs: true");
  ask.request.top_logprobs = top.value_or(0);
  ask.include_reasoning = body.flag("include_reasoning", true);
  ChatPrompt prompt = chat_prompt(model, body);
  ask.prompts = {std::move(prompt.prompt)};
  ask.echo = body.flag("echo", false);
  if (ask.echo) ask.echoed = prompt.continued;
  ask.continues = !prompt.continued.empty();
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  std::optional<std::int64_t> wanted = body.integer("max_completion_tokens", 1, kMost);
  std::optional<std::int64_t> older = body.integer("max_tokens", 1, kMost);
  if (!wanted) wanted = older;
  limit_lengths(model, body, wanted.value_or(-1), ask);
  ask.request.prompt_logprobs = ask.prompt_logprobs >= 0;
  ask.request.prompt_top_logprobs = std::max<std::int64_t>(ask.prompt_logprobs, 0);
  return ask;
}

}  // namespace bev
