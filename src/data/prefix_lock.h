// One process at a time writes under a name. The lock goes with its process, however that ends.
#pragma once

#include <cstdint>
#include <string>

namespace bev {

enum class LockWait : std::uint8_t { kNever, kForever };

class PrefixLock {
 public:
  // Holds PREFIX.lock. When another has it: waits for it, or Error(kIo) naming its process.
  PrefixLock(const std::string& prefix, LockWait wait);
  // Removes the file.
  ~PrefixLock();
  PrefixLock(const PrefixLock&) = delete;
  PrefixLock& operator=(const PrefixLock&) = delete;

 private:
  bool try_hold(const std::string& prefix, LockWait wait);

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace bev
