// Escaping of text for HTML and XML.
#pragma once

#include <string>
#include <string_view>

namespace bev {

// Replaces & < > and both quotes by entities.
std::string escape_markup(std::string_view text);

}  // namespace bev
