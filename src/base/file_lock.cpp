#include "base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace bev {

FileLock::~FileLock() { close(); }

LockResult FileLock::try_lock() { return acquire(LOCK_EX | LOCK_NB); }
LockResult FileLock::lock() { return acquire(LOCK_EX); }

void FileLock::open() {
  close();
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  BEV_CHECK(descriptor_ >= 0, ErrorKind::kIo, "cannot write ", path_, ": ", std::strerror(errno));
}

void FileLock::close() {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

// The holder may have removed the file that was waited for: then the lock is taken on a new one.
LockResult FileLock::acquire(int operation) {
  while (true) {
    open();
    int status = 0;
    while ((status = ::flock(descriptor_, operation)) != 0 && errno == EINTR) continue;
    if (status != 0 && errno == EWOULDBLOCK) return LockResult::kBusy;
    if (status != 0 && (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP)) {
      return LockResult::kUnsupported;
    }
    BEV_CHECK(status == 0, ErrorKind::kIo, "cannot lock ", path_, ": ", std::strerror(errno));
    struct stat held {
    }, named{};
    bool same = ::fstat(descriptor_, &held) == 0 && ::stat(path_.c_str(), &named) == 0 &&
                held.st_ino == named.st_ino && held.st_dev == named.st_dev;
    if (same) return LockResult::kHeld;
  }
}

std::string FileLock::text() const {
  std::string text(4096, '\0');
  ssize_t count = ::pread(descriptor_, text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return std::string(trim(text));
}

void FileLock::write(std::string_view text) {
  [[maybe_unused]] ssize_t put = ::pwrite(descriptor_, text.data(), text.size(), 0);
  [[maybe_unused]] int cut = ::ftruncate(descriptor_, static_cast<off_t>(text.size()));
}

void FileLock::remove() {
  ::unlink(path_.c_str());
  close();
}

}  // namespace bev
