#include "chat/chat_template.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "base/text.h"
#include "chat/assistant_spans.h"
#include "chat/jinja/value_text.h"
#include "chat/token_spans.h"

namespace bev {

namespace {

using jinja::Dict;
using jinja::Value;

struct Source {
  std::string text;
  std::string name;  // the file, for messages
};
using Sources = std::map<std::string, Source>;  // by template name

// JSON object in a file of the tokenizer's folder; nullopt if there is none.
std::optional<Value> read_optional(const std::string& folder, const char* name) {
  std::string path = join_path(folder, name);
  if (!path_exists(path)) return std::nullopt;
  Value value = jinja::parse_json(mark_python_numbers(read_file(path)), path);
  BEV_CHECK(value.is_dict(), ErrorKind::kInput, path, ": not a JSON object");
  return value;
}

// The text of one template, or a list of {"name": .., "template": ..}.
Sources sources_in(const Value& value, const std::string& path) {
  if (value.is_string()) return {{"default", {*value.string(), path}}};
  Sources out;
  const jinja::Sequence* list = value.sequence();
  BEV_CHECK(list != nullptr, ErrorKind::kInput, path, ": chat_template is no text and no list");
  for (const Value& entry : list->items) {
    const Dict* dict = entry.dict();
    const Value* name = dict ? dict->find_name("name") : nullptr;
    const Value* text = dict ? dict->find_name("template") : nullptr;
    BEV_CHECK(name && text && name->is_string() && text->is_string(), ErrorKind::kInput, path,
              ": an entry of chat_template has no name or no template");
    out[*name->string()] = {*text->string(), concat(path, " (", *name->string(), ")")};
  }
  return out;
}

Sources find_sources(const std::string& folder) {
  Sources out;
  std::string file = join_path(folder, "chat_template.jinja");
  std::string more = join_path(folder, "additional_chat_templates");
  if (path_exists(file)) out["default"] = {read_file(file), file};
  if (is_directory(more)) {
    for (const std::string& name : list_directory(more)) {
      constexpr std::string_view kEnd = ".jinja";
      if (!name.ends_with(kEnd)) continue;
      std::string path = join_path(more, name);
      out[name.substr(0, name.size() - kEnd.size())] = {read_file(path), path};
    }
  }
  for (const char* name : {"tokenizer_config.json", "chat_template.json"}) {
    if (!out.empty()) break;
    std::optional<Value> config = read_optional(folder, name);
    const Value* found = config ? config->dict()->find_name("chat_template") : nullptr;
    if (found && !found->is_none()) out = sources_in(*found, join_path(folder, name));
  }
  return out;
}

// The templates of a tokenizer, and where they were looked for. Tokenizers by name, such as byte,
// have no folder and therefore no template.
struct Found {
  std::string folder;
  Sources sources;
  Dict special_tokens;
};

Source choose(const Sources& sources, const std::string& folder, const std::string& chosen,
              bool with_tools) {
  std::vector<std::string> names;
  for (const auto& [name, source] : sources) names.push_back(name);
  std::string known =
      names.empty() ? "" : concat(", nor a template of the tokenizer (", join(names, ", "), ")");
  if (!chosen.empty()) {
    if (auto found = sources.find(chosen); found != sources.end()) return found->second;
    BEV_CHECK(path_exists(chosen), ErrorKind::kInput, "--chat-template: ", chosen, " is no file",
              known);
    return {read_file(chosen), chosen};
  }
  BEV_CHECK(!sources.empty(), ErrorKind::kInput, folder, ": has no chat template ",
            "(chat_template.jinja, or chat_template in tokenizer_config.json); give one with ",
            "--chat-template FILE");
  for (const char* name : {"tool_use", "default"}) {
    auto found = sources.find(name);
    if (found != sources.end() && (with_tools || found->first == "default")) return found->second;
  }
  BEV_FAIL(ErrorKind::kInput, folder, ": none of its chat templates is the default; choose one of ",
           join(names, ", "), " with --chat-template");
}

// bos_token and so on: a string, or an object with "content".
Dict read_special_tokens(const std::string& folder) {
  Dict out;
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    std::optional<Value> config = read_optional(folder, file);
    if (!config) continue;
    for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                             "cls_token", "mask_token"}) {
      const Value* found = config->dict()->find_name(name);
      if (found && found->is_dict()) found = found->dict()->find_name("content");
      if (found && found->is_string() && !out.find_name(name)) out.set(name, *found);
    }
  }
  return out;
}

// Like transformers, passes a message's reasoning to the template under both names in use.
Value with_reasoning(const Value& message) {
  const Dict& dict = *message.dict();
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* reasoning = dict.find_name(name);
    if (!reasoning || reasoning->is_none()) continue;
    Dict out;
    out.set("thinking", *reasoning);
    for (const auto& [key, value] : dict.items) out.set(key, value);
    out.set("reasoning_content", *reasoning);
    return out;
  }
  return message;
}

Found find_templates(const std::string& path) {
  if (!path_exists(path)) return {path, {}, {}};
  std::string folder = is_directory(path) ? path : parent_path(path);
  return {folder, find_sources(folder), read_special_tokens(folder)};
}

Value checked_messages(const Value& messages) {
  const jinja::Sequence* list = messages.sequence();
  BEV_CHECK(list && !list->items.empty(), ErrorKind::kInput,
            "a conversation is a list of messages that is not empty");
  jinja::List out;
  for (const Value& message : list->items) {
    BEV_CHECK(message.is_dict(), ErrorKind::kInput, "message ", out.size(), " is a ",
              message.type_name(), ", not an object with role and content");
    out.push_back(traced_message(with_reasoning(message), static_cast<std::int32_t>(out.size())));
  }
  return Value::list(std::move(out));
}

// A conversation of `count` turns, user and assistant.
Value probe(std::size_t count) {
  constexpr std::array<const char*, 4> kTexts = {"Why?", "Because.", "Really?", "Yes."};
  jinja::List out;
  for (std::size_t i = 0; i < count; ++i) {
    Dict message;
    message.set("role", i % 2 == 0 ? "user" : "assistant");
    message.set("content", kTexts[i]);
    out.push_back(std::move(message));
  }
  return Value::list(std::move(out));
}

std::string common_beginning(std::string_view a, std::string_view b) {
  auto bytes = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  while (bytes > 0 && bytes < a.size() && (a[bytes] & 0xc0) == 0x80) --bytes;  // whole characters
  return std::string(a.substr(0, bytes));
}

// What the template adds for add_generation_prompt.
std::string generation_prompt(const ChatTemplate& chat_template, ChatOptions options) {
  std::string without = chat_template.render(probe(1), options).text;
  options.add_generation_prompt = true;
  std::string with = chat_template.render(probe(1), options).text;
  return with.substr(common_beginning(with, without).size());
}

// What all turns of the assistant begin with, the one that a generation prompt opens among them.
// Reasoning, which some prompts begin, is the assistant's.
std::string find_header(const ChatTemplate& chat_template) {
  ChatOptions options;
  for (const char* name : {"bos_token", "eos_token"}) {
    if (!chat_template.special_tokens().find_name(name)) options.variables.set(name, "");
  }
  std::string prompt = generation_prompt(chat_template, options);
  Value messages = probe(4);
  jinja::Rendered rendered = chat_template.render(messages, options);
  std::optional<std::string> begin;
  for (const TurnSpan& turn : assistant_turns(rendered, messages.sequence()->items)) {
    std::string own = rendered.text.substr(turn.begin, turn.content - turn.begin);
    begin = begin ? common_beginning(*begin, own) : own;
  }
  if (!begin) return "";
  std::string common = common_beginning(*begin, prompt);
  if (common.empty()) common = *begin;
  for (std::string_view reasoning : {"<think>", "[THINK]", "<seed:think>"}) {
    common = common.substr(0, common.find(reasoning));
  }
  return trim(common).empty() ? "" : common;
}

}  // namespace

ChatTemplate::ChatTemplate(jinja::Template chat_template, Dict special_tokens)
    : template_(std::move(chat_template)), special_tokens_(std::move(special_tokens)) {
  if (marks_assistant()) return;
  try {
    header_ = find_header(*this);
  } catch (const Error&) {
    // The template refuses plain conversations: its turns begin with what it writes about them.
  }
}

const char* mask_source(const ChatTemplate& chat_template) {
  return chat_template.marks_assistant() ? "generation tags" : "provenance";
}

ChatTemplate ChatTemplate::load(const std::string& path, const std::string& chosen,
                                bool with_tools) {
  Found found = find_templates(path);
  Source source = choose(found.sources, found.folder, chosen, with_tools);
  return {jinja::Template(source.text, source.name), std::move(found.special_tokens)};
}

std::vector<NamedTemplate> chat_templates(const std::string& path, const std::string& chosen) {
  Found found = find_templates(path);
  if (!chosen.empty()) {
    found.sources["default"] = choose(found.sources, found.folder, chosen, false);
  }
  std::vector<NamedTemplate> out;
  for (auto& [name, source] : found.sources) out.push_back({name, std::move(source.text)});
  return out;
}

jinja::Rendered ChatTemplate::render(const Value& messages, const ChatOptions& options) const {
  Dict context = special_tokens_;
  for (const auto& [name, value] : options.variables.items) context.set(name, value);
  context.set("messages", checked_messages(messages));
  context.set("tools", options.tools);
  context.set("documents", options.documents);
  context.set("add_generation_prompt", options.add_generation_prompt);
  return template_.render(context);
}

namespace {

// Lets the special token behind a span end it, if none does.
void include_turn_ends(std::vector<std::uint8_t>& mask, std::span<const std::int32_t> ids,
                       const Tokenizer& tokenizer) {
  bool ended = true;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    bool special = tokenizer.is_special(ids[i]);
    if (mask[i] == 1) {
      ended = special || (ended && i > 0 && mask[i - 1] == 1 &&
                          trim(tokenizer.decode(std::array{ids[i]})).empty());
    } else {
      if (!ended && special) mask[i] = 1;
      ended = true;
    }
  }
}

}  // namespace

EncodedChat encode_chat(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                        const Value& messages, const ChatOptions& options) {
  jinja::Rendered rendered = chat_template.render(messages, options);
  EncodedChat out;
  out.ids = tokenizer.encode(rendered.text);
  bool marked = chat_template.marks_assistant();
  std::vector<jinja::GenerationSpan> spans =
      marked ? rendered.spans
             : assistant_spans(rendered, messages.sequence()->items, chat_template.header());
  out.assistant.resize(out.ids.size());
  if (!spans.empty()) {
    out.assistant =
        assistant_mask(rendered.text, token_spans(tokenizer, rendered.text, out.ids), spans);
    if (!marked) include_turn_ends(out.assistant, out.ids, tokenizer);
  }
  out.text = std::move(rendered.text);
  return out;
}

}  // namespace bev
