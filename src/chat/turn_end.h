// The token that ends an answer of a chat model.
#pragma once

#include <cstdint>
#include <optional>

#include "chat/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace bev {

// Renders a question with its answer and returns the special token that follows the answer, blanks
// skipped; nullopt if the template writes none there or refuses the conversation.
std::optional<std::int32_t> turn_end(const ChatTemplate& chat_template, const Tokenizer& tokenizer);

}  // namespace bev
