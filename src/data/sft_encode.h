// From a conversation to tokens, and which of them a model learns to say.
#pragma once

#include <cstdint>
#include <vector>

#include "chat/chat_template.h"
#include "data/sft_rows.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct SftTokens {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> learned;  // 1: the assistant says it
};

// By the template's {% generation %} blocks. Without them what the assistant says is found by
// rendering the messages before it and those up to it: the text must only grow. Error(kInput) when
// it does not, or when the template fails.
SftTokens encode_sft_row(const SftRow& row, const ChatTemplate& chat_template,
                         const Tokenizer& tokenizer);

}  // namespace bev
