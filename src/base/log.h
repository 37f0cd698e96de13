// Log lines on stderr. Each call writes the text and a newline in one write(2), so that lines of
// threads and processes do not interleave. On a terminal, a progress line is erased first.
#pragma once

#include <string_view>

namespace bev {

void log_info(std::string_view text);
void log_warning(std::string_view text);  // prefixed with "warning: "
void log_error(std::string_view text);    // prefixed with "error: "

}  // namespace bev
