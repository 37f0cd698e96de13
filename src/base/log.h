// Log lines on stderr. Each call writes its text and a line end in one write(2), so that lines of
// threads and processes do not mix. On a terminal a progress line in its way is erased first.
#pragma once

#include <string_view>

namespace bev {

void log_info(std::string_view text);
void log_warning(std::string_view text);  // "warning: " in front
void log_error(std::string_view text);    // "error: " in front

}  // namespace bev
