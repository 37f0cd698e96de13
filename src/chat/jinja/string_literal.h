// Escape sequences in string literals of templates, as in Python.
#pragma once

#include <string>
#include <string_view>

namespace bev::jinja {

// Unescapes the characters between the quotes. Sets `problem` if they are invalid.
std::string unescape_literal(std::string_view content, std::string& problem);

}  // namespace bev::jinja
