// Results for whoever started the program.
#pragma once

#include <string>
#include <string_view>

namespace bev {

// Writes to standard output and flushes it; Error(kIo) when that fails, so that a full disk or a
// closed file is not taken for success.
void write_stdout(std::string_view text);
// To a file, whole or not at all; an empty path is standard output.
void write_result(const std::string& path, std::string_view text);

}  // namespace bev
