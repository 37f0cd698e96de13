// Prompts of `generate`: from flags, files and standard input, as text or conversations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace bev {

// Whether standard input is a pipe or a file, so that a prompt can be read from it.
bool input_is_piped();

// Where prompts come from. At most one of the first two is given; "-" is standard input, which is
// also read if neither is.
struct PromptSource {
  std::string prompt;         // a text
  std::string prompt_file;    // a text, or with the ending .jsonl one prompt a line
  std::string system_prompt;  // "": none; for conversations

  bool empty() const { return prompt.empty() && prompt_file.empty(); }
  bool reads_input() const { return empty() || prompt == "-" || prompt_file == "-"; }
};

// The messages that begin a conversation: the system prompt, if there is one.
jinja::List first_messages(const std::string& system_prompt);
jinja::Value chat_message(const char* role, std::string content);

// Token ids of each prompt. With a template, a text is what the user says, and a line of a .jsonl
// file may have "messages"; the ids end where the answer begins. Throws Error(kInput).
std::vector<std::vector<std::int32_t>> encode_prompts(const PromptSource& source,
                                                      const Tokenizer& tokenizer,
                                                      const ChatTemplate* chat_template);

}  // namespace bev
