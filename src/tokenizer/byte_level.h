// GPT-2's printable stand-in for each byte: visible Latin-1 bytes stand for themselves, the others
// take the code points from 256 on, in order.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/utf8.h"

namespace bev {

// The stand-in of each byte; all are below U+0800.
const std::array<CodePoint, 256>& byte_points();

// The text with its bytes replaced by their stand-ins.
std::string to_byte_level(std::string_view bytes);
// The bytes that a text of stand-ins means; nothing when another character is in it.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace bev
