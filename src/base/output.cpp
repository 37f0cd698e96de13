#include "base/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"
#include "base/file.h"

namespace bev {

void write_stdout(std::string_view text) {
  bool done = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  BEV_CHECK(done && std::fflush(stdout) == 0, ErrorKind::kIo,
            "standard output: could not be written: ", std::strerror(errno));
}

void write_result(const std::string& path, std::string_view text) {
  path.empty() ? write_stdout(text) : write_file(path, text);
}

}  // namespace bev
