// Text of tokens for people, with marks on the tokens that have no loss.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/dataset.h"
#include "tokenizer/tokenizer.h"

namespace bev {

// Brackets around tokens without loss, or ANSI's faint text for a terminal.
enum class MaskMarks : std::uint8_t { kBrackets, kFaint };

// Text of the ids; `learned` has a 1 for every token that has a loss.
std::string marked_text(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                        std::span<const std::uint8_t> learned, MaskMarks marks);

// Documents of a sample, one after the other, each on lines of its own; padding is only counted. A
// token has a loss if the token before it is weighted.
std::string marked_text(const Tokenizer& tokenizer, const TokenSample& sample, MaskMarks marks);

}  // namespace bev
