// Inter-process lock (flock) on an output prefix. The kernel releases it when the process ends, for
// whatever reason.
#pragma once

#include <cstdint>
#include <string>

namespace bev {

enum class LockWait : std::uint8_t { kNever, kForever };

class PrefixLock {
 public:
  // Locks PREFIX.lock. If another process holds it: waits, or throws Error(kIo) naming that
  // process.
  PrefixLock(const std::string& prefix, LockWait wait);
  // Removes the lock file.
  ~PrefixLock();
  PrefixLock(const PrefixLock&) = delete;
  PrefixLock& operator=(const PrefixLock&) = delete;

 private:
  bool try_hold(const std::string& prefix, LockWait wait);

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace bev
