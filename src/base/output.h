// Result output of commands: standard output or a file.
#pragma once

#include <string>
#include <string_view>

namespace bev {

// Writes to standard output and flushes it. Throws Error(kIo) on failure, so that a full disk or a
// closed pipe is not taken for success.
void write_stdout(std::string_view text);
// Writes the file atomically; an empty path means standard output.
void write_result(const std::string& path, std::string_view text);

}  // namespace bev
