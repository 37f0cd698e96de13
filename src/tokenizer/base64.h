// Base64, as tiktoken's files and precompiled character maps have it.
#pragma once

#include <string>
#include <string_view>

namespace bev {

// Error(kInput), naming `source`, when the text is not base64.
std::string decode_base64(std::string_view text, std::string_view source);

}  // namespace bev
