// Conversations from the rows of JSON lines files, in the usual layouts.
#pragma once

#include <string>
#include <string_view>

#include "chat/value.h"

namespace bev {

struct SftRow {
  jinja::Value messages;          // a list of {"role": .., "content": ..}
  jinja::Value tools, documents;  // None: the row has none
};

// One line: {"messages": [...]}, {"conversations": [{"from": .., "value": ..}]}, prompt with
// response or completion, or instruction, input and output; perhaps with system, tools and
// documents. Error(kInput) naming `source`, which says file and line.
SftRow read_sft_row(std::string_view line, const std::string& source);

}  // namespace bev
