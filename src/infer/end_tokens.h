// End-of-sequence and other tokens that a Hugging Face folder names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bev {

// eos_token_id (a number or a list) of generation_config.json, else of config.json, else of its
// text_config; empty if none has it. Throws Error(kInput) for anything else.
std::vector<std::int32_t> read_end_tokens(const std::string& folder);

// A single token id of generation_config.json, else of config.json; -1 if it is absent or null.
// Throws Error(kInput) for anything else.
std::int32_t read_token_id(const std::string& folder, const char* key);

// The same as read_end_tokens for the text of one of these files; `source` names it in messages.
std::vector<std::int32_t> end_tokens_in(const std::string& text, const std::string& source);

}  // namespace bev
