// Conversations from JSON lines, in the common SFT layouts.
#pragma once

#include <string>
#include <string_view>

#include "chat/jinja/value.h"

namespace bev {

struct SftRow {
  jinja::Value messages;          // list of {"role": .., "content": ..}
  jinja::Value tools, documents;  // None if absent
};

// Parses one line: {"messages": [...]}, {"conversations": [{"from": .., "value": ..}]}, prompt with
// response or completion, or instruction, input and output; optionally with system, tools and
// documents. Throws Error(kInput) naming `source` (file and line).
SftRow read_sft_row(std::string_view line, const std::string& source);

}  // namespace bev
