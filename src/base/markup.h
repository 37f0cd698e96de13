// Text for HTML and XML.
#pragma once

#include <string>
#include <string_view>

namespace bev {

// With & < > and both quotes as entities.
std::string escape_markup(std::string_view text);

}  // namespace bev
