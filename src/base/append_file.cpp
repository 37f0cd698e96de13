#include "base/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace bev {

AppendFile::AppendFile(const std::string& path, OpenMode mode) : path_(path) {
  // O_NONBLOCK: opening a FIFO that has no reader fails instead of hanging. A later write() may
  // still block.
  int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK;
  if (mode == OpenMode::kTruncate) flags |= O_TRUNC;
  if (mode == OpenMode::kExclusive) flags |= O_EXCL;
  descriptor_ = ::open(path.c_str(), flags, 0666);
  BEV_CHECK(descriptor_ >= 0, ErrorKind::kIo, "cannot write ", path, ": ", std::strerror(errno));
  ::fcntl(descriptor_, F_SETFL, O_APPEND);
}

AppendFile::~AppendFile() { ::close(descriptor_); }

void AppendFile::write(std::string_view text) {
  while (!text.empty()) {
    ssize_t put = ::write(descriptor_, text.data(), text.size());
    if (put < 0 && errno == EINTR) continue;
    BEV_CHECK(put >= 0, ErrorKind::kIo, "cannot write ", path_, ": ", std::strerror(errno));
    text.remove_prefix(static_cast<std::size_t>(put));
  }
}

}  // namespace bev
