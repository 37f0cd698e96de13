// Conversations from objects of JSON, in the common SFT layouts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/value.h"

namespace bev {

struct SftRow {
  jinja::Value messages;          // list of {"role": .., "content": ..}; may be empty
  jinja::Value tools, documents;  // None if absent
};

// Parses one object: {"messages": [...]} (OpenAI), {"conversations": [{"from": .., "value": ..}]}
// (ShareGPT), prompt with response or completion, or instruction, input and output (Alpaca; also
// context and response); optionally with system, tools and documents. Throws Error(kInput) naming
// `source` (file and line).
SftRow read_sft_row(std::string_view line, const std::string& source);

// The keys of an object that read_sft_row() looks at.
std::vector<std::string> sft_row_keys();

}  // namespace bev
