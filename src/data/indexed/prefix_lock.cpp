#include "data/indexed/prefix_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/log.h"

namespace bev {

namespace {

std::string first_bytes(int descriptor) {
  std::string text(32, '\0');
  ssize_t count = ::pread(descriptor, text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
  return std::string(trim(text));
}

}  // namespace

PrefixLock::PrefixLock(const std::string& prefix, LockWait wait) : path_(prefix + ".lock") {
  while (!try_hold(prefix, wait)) continue;
  std::string process = concat(::getpid(), "\n");
  // The process id is only for messages; write errors are ignored.
  if (::ftruncate(descriptor_, 0) == 0) {
    [[maybe_unused]] ssize_t put = ::pwrite(descriptor_, process.data(), process.size(), 0);
  }
}

PrefixLock::~PrefixLock() {
  ::unlink(path_.c_str());
  ::close(descriptor_);
}

// Returns false if the locked file is no longer the one of that name, because its holder removed
// it.
bool PrefixLock::try_hold(const std::string& prefix, LockWait wait) {
  descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  BEV_CHECK(descriptor_ >= 0, ErrorKind::kIo, "cannot write ", path_, ": ", std::strerror(errno));
  int status = ::flock(descriptor_, LOCK_EX | LOCK_NB);
  if (status != 0 && errno == EWOULDBLOCK) {
    std::string holder = first_bytes(descriptor_);
    if (wait == LockWait::kNever) {
      ::close(descriptor_);
      BEV_FAIL(ErrorKind::kIo, prefix, ": another run writes it",
               holder.empty() ? "" : concat(" (process ", holder, ")"),
               "; wait for it, or write to another name");
    }
    log_info(concat("waiting for ", holder.empty() ? "another process" : "process " + holder,
                    ", which writes ", prefix));
    while ((status = ::flock(descriptor_, LOCK_EX)) != 0 && errno == EINTR) continue;
  }
  int error = errno;
  struct stat held {
  }, named{};
  bool same = ::fstat(descriptor_, &held) == 0 && ::stat(path_.c_str(), &named) == 0 &&
              held.st_ino == named.st_ino && held.st_dev == named.st_dev;
  if (status == 0 && same) return true;
  ::close(descriptor_);
  BEV_CHECK(status == 0, ErrorKind::kIo, "cannot lock ", path_, ": ", std::strerror(error));
  return false;
}

}  // namespace bev
