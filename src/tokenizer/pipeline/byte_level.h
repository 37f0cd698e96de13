// GPT-2's byte-to-unicode map: visible Latin-1 bytes map to themselves, the others to the code
// points from 256 on, in order.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "tokenizer/text/utf8.h"

namespace bev {

// Character of each byte; all are below U+0800.
const std::array<CodePoint, 256>& byte_points();

// Replaces bytes by their characters.
std::string to_byte_level(std::string_view bytes);
// Inverse map; nullopt if another character occurs.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace bev
