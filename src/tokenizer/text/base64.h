// Base64 decoder for tiktoken files and precompiled_charsmap.
#pragma once

#include <string>
#include <string_view>

namespace bev {

// Throws Error(kInput) naming `source` if the text is not base64.
std::string decode_base64(std::string_view text, std::string_view source);

}  // namespace bev
