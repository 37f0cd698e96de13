// Inter-process lock (flock) on an output prefix. The kernel releases it when the process ends, for
// whatever reason.
#pragma once

#include <cstdint>
#include <string>

#include "base/file_lock.h"

namespace bev {

enum class LockWait : std::uint8_t { kNever, kForever };

class PrefixLock {
 public:
  // Locks PREFIX.lock. If another process holds it: waits, or throws Error(kIo) naming that
  // process.
  PrefixLock(const std::string& prefix, LockWait wait);
  // Removes the lock file.
  ~PrefixLock() { lock_.remove(); }
  PrefixLock(const PrefixLock&) = delete;
  PrefixLock& operator=(const PrefixLock&) = delete;

 private:
  FileLock lock_;
};

}  // namespace bev
