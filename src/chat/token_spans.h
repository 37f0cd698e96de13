// Alignment of tokens with the bytes of a text, found from the tokens' own texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "chat/jinja/template.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct TokenSpan {
  std::size_t begin = 0, end = 0;  // byte offsets
};
// Spans of tokenizer.encode(text). A character shared by several tokens belongs to all of them.
// Throws Error(kInput) if the tokenizer changes the text so that its tokens cannot be aligned.
std::vector<TokenSpan> token_spans(const Tokenizer& tokenizer, std::string_view text,
                                   std::span<const std::int32_t> ids);

// 1 for every assistant token, by transformers' rule: from the first token that contains a span's
// first character to the first that contains its last.
std::vector<std::uint8_t> assistant_mask(std::string_view text, std::span<const TokenSpan> tokens,
                                         std::span<const jinja::GenerationSpan> generated);

}  // namespace bev
