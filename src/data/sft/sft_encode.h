// Encoding of a conversation, and the loss mask on the assistant's tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "chat/chat_template.h"
#include "data/sft/sft_rows.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct SftTokens {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learned;  // 1: assistant token, has a loss
};

// The mask comes from the chat template's {% generation %} blocks. Without them, each assistant
// message is located by rendering the conversation before and after it, which requires that
// rendering only appends. Throws Error(kInput) if it does not, or if the template fails.
SftTokens encode_sft_row(const SftRow& row, const ChatTemplate& chat_template,
                         const Tokenizer& tokenizer);

}  // namespace bev
