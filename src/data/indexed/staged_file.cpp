#include "data/indexed/staged_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace bev {

namespace {

constexpr std::size_t kBufferBytes = 1 << 20;

[[noreturn]] void fail_io(const char* what, const std::string& path, int error) {
  throw Error(ErrorKind::kIo, concat("cannot ", what, " ", path, ": ", std::strerror(error)));
}

}  // namespace

StagedFile::StagedFile(const std::string& path) : path_(path) {
  std::random_device random;
  do {
    temporary_ = concat(path, ".", random(), ".tmp");
    descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) fail_io("write", temporary_, errno);
  buffer_.reserve(kBufferBytes);
}

StagedFile::~StagedFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void StagedFile::write(std::span<const std::byte> bytes) {
  size_ += bytes.size();
  while (!bytes.empty()) {
    std::size_t count = std::min(bytes.size(), kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(),
                   bytes.begin() + static_cast<std::ptrdiff_t>(count));
    bytes = bytes.subspan(count);
    if (buffer_.size() == kBufferBytes) flush();
  }
}

void StagedFile::flush() {
  std::span<const std::byte> rest = buffer_;
  while (!rest.empty()) {
    ssize_t put = ::write(descriptor_, rest.data(), rest.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_io("write", temporary_, errno);
    rest = rest.subspan(static_cast<std::size_t>(put));
  }
  buffer_.clear();
}

void StagedFile::sync() {
  flush();
  if (::fsync(descriptor_) != 0) fail_io("sync", temporary_, errno);
}

void StagedFile::commit() {
  sync();
  int closed = ::close(std::exchange(descriptor_, -1));
  int error = errno;
  if (closed == 0 && ::rename(temporary_.c_str(), path_.c_str()) == 0) {
    sync_folder(parent_path(path_));
    return;
  }
  if (closed == 0) error = errno;
  ::unlink(temporary_.c_str());
  fail_io("write", path_, error);
}

}  // namespace bev
