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

// The mask is that of encode_chat(). Throws Error(kInput) if the template fails, or if the
// assistant says something and the mask is all zeros.
SftTokens encode_sft_row(const SftRow& row, const ChatTemplate& chat_template,
                         const Tokenizer& tokenizer);

}  // namespace bev
