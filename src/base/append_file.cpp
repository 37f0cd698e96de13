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

std::size_t AppendFile::write_some(std::string_view text) {
  ssize_t put = 0;
  do {
    put = ::write(descriptor_, text.data(), text.size());
  } while (put < 0 && errno == EINTR);
  BEV_CHECK(put >= 0, ErrorKind::kIo, "cannot write ", path_, ": ", std::strerror(errno));
  return static_cast<std::size_t>(put);
}

void AppendFile::write(std::string_view text) {
  while (!text.empty()) text.remove_prefix(write_some(text));
}

}  // namespace bev
