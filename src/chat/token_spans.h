// Which bytes of a text each of its tokens stands for, found from the tokens' own texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "chat/template.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct TokenSpan {
  std::size_t begin = 0, end = 0;  // bytes
};
// Of tokenizer.encode(text). A character that several tokens share belongs to all of them. Error
// (kInput) when the tokenizer changes texts so that their tokens cannot be found in them.
std::vector<TokenSpan> token_spans(const Tokenizer& tokenizer, std::string_view text,
                                   std::span<const std::int32_t> ids);

// 1 for every token of what the assistant says, by transformers' rule: from the first token that
// has a span's first character to the first that has its last.
std::vector<std::uint8_t> assistant_mask(std::string_view text, std::span<const TokenSpan> tokens,
                                         std::span<const jinja::GenerationSpan> generated);

}  // namespace bev
