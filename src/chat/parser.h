// From a template's text to its tree.
#pragma once

#include <string_view>

#include "chat/syntax.h"

namespace bev::jinja {

// Error(kInput) "line N: what" when the template is not understood.
Body parse_template(std::string_view source);
// Whether there is a {% generation %} block anywhere.
bool has_generation(const Body& body);

}  // namespace bev::jinja
