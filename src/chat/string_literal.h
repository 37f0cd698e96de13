// Escapes in the string literals of templates, which are Python's.
#pragma once

#include <string>
#include <string_view>

namespace bev::jinja {

// The text that the characters between the quotes mean. What is wrong with them goes into
// `problem`.
std::string unescape_literal(std::string_view content, std::string& problem);

}  // namespace bev::jinja
