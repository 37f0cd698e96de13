// Jinja parser: template text to syntax tree.
#pragma once

#include <string_view>

#include "chat/jinja/syntax.h"

namespace bev::jinja {

// Throws Error(kInput) "line N: what" if the template is invalid.
Body parse_template(std::string_view source);
// True if there is a {% generation %} block anywhere.
bool has_generation(const Body& body);

}  // namespace bev::jinja
