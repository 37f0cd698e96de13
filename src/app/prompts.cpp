#include "app/prompts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "chat/jinja/value_text.h"

namespace bev {

namespace {

using jinja::List;
using jinja::Value;

constexpr const char* kInput = "standard input";

std::string read_input() {
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (true) {
    ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    BEV_CHECK(got >= 0, ErrorKind::kInput, kInput, ": cannot be read: ", std::strerror(errno));
    if (got == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

// Without the newline that editors and echo add.
std::string without_last_newline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

// A prompt: text, or the messages of a conversation.
struct Prompt {
  std::string where;
  Value content;
};

Prompt read_row(const std::string& line, std::string where) {
  Value row = jinja::parse_json(line, where);
  if (row.is_string()) return {std::move(where), std::move(row)};
  for (const char* key : {"messages", "prompt", "text"}) {
    const Value* found = row.is_dict() ? row.dict()->find_name(key) : nullptr;
    bool fits =
        found && (std::strcmp(key, "messages") == 0 ? found->is_sequence() : found->is_string());
    if (fits) return {std::move(where), *found};
  }
  BEV_FAIL(ErrorKind::kInput, where,
           ": is no prompt; give a text, or an object with \"prompt\" or \"messages\"");
}

std::vector<Prompt> read_prompts(const PromptSource& source) {
  if (source.reads_input()) return {{kInput, without_last_newline(read_input())}};
  if (!source.prompt.empty()) return {{"--prompt", source.prompt}};
  const std::string& file = source.prompt_file;
  BEV_CHECK(path_exists(file) && !is_directory(file), ErrorKind::kInput, "--prompt-file: ", file,
            " is no file");
  std::string text = read_file(file);
  if (!file.ends_with(".jsonl")) return {{file, without_last_newline(std::move(text))}};
  std::vector<Prompt> rows;
  std::vector<std::string> lines = split(text, '\n');
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!trim(lines[i]).empty()) rows.push_back(read_row(lines[i], concat(file, ":", i + 1)));
  }
  BEV_CHECK(!rows.empty(), ErrorKind::kInput, file, ": has no prompt");
  return rows;
}

std::vector<std::int32_t> encode(const Prompt& prompt, const PromptSource& source,
                                 const Tokenizer& tokenizer, const ChatTemplate* chat_template) {
  BEV_CHECK(chat_template || prompt.content.is_string(), ErrorKind::kInput, prompt.where,
            ": has messages; give --chat");
  if (!chat_template) return tokenizer.encode(*prompt.content.string());
  Value messages = prompt.content;
  if (messages.is_string()) {
    List list = first_messages(source.system_prompt);
    list.push_back(chat_message("user", *prompt.content.string()));
    messages = Value::list(std::move(list));
  }
  ChatOptions options;
  options.add_generation_prompt = true;
  return tokenizer.encode(chat_template->render(messages, options).text);
}

}  // namespace

bool input_is_piped() {
  struct stat status;
  if (::fstat(STDIN_FILENO, &status) != 0) return false;
  return S_ISFIFO(status.st_mode) || S_ISREG(status.st_mode) || S_ISSOCK(status.st_mode);
}

List first_messages(const std::string& system_prompt) {
  if (system_prompt.empty()) return {};
  return {chat_message("system", system_prompt)};
}

Value chat_message(const char* role, std::string content) {
  jinja::Dict dict;
  dict.set("role", role);
  dict.set("content", std::move(content));
  return dict;
}

std::vector<std::vector<std::int32_t>> encode_prompts(const PromptSource& source,
                                                      const Tokenizer& tokenizer,
                                                      const ChatTemplate* chat_template) {
  std::vector<std::vector<std::int32_t>> out;
  for (const Prompt& prompt : read_prompts(source)) {
    out.push_back(encode(prompt, source, tokenizer, chat_template));
    BEV_CHECK(!out.back().empty(), ErrorKind::kInput, prompt.where, ": the text gives no token");
  }
  return out;
}

}  // namespace bev
