// The assistant's part of a rendered conversation, found by where the text comes from (provenance),
// for chat templates that do not mark it with {% generation %}.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/template.h"

namespace bev {

// `message` with its index as the origin of all its texts but the role.
jinja::Value traced_message(const jinja::Value& message, std::int32_t index);

// True for the messages that a model says.
bool is_assistant(const jinja::Value& message);

// What the template writes about a message, in bytes.
struct TurnSpan {
  std::size_t begin = 0, content = 0, end = 0;  // content: the first value of the message, or end
};
// The turns of the assistant's messages, in the order of the text. Text after the last one that
// belongs to no message is part of it.
std::vector<TurnSpan> assistant_turns(const jinja::Rendered& rendered, const jinja::List& messages);

// The same in code points, from behind `header` if a turn begins with it.
std::vector<jinja::GenerationSpan> assistant_spans(const jinja::Rendered& rendered,
                                                   const jinja::List& messages,
                                                   std::string_view header);

}  // namespace bev
