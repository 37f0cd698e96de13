// Device memory for what the calls of one stream need while they run.
#pragma once

#include <cstddef>
#include <vector>

namespace bev {

class ScratchMemory {
 public:
  ScratchMemory() = default;
  ~ScratchMemory();
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;

  // The next call may overwrite it. 256-byte aligned. Grows at its first uses, which are no
  // recordings; what it had stays, since recordings may know it.
  void* take(std::size_t bytes, bool recording);

 private:
  std::vector<void*> blocks_;  // the last one is the largest, and in use
  std::size_t bytes_ = 0;
};

}  // namespace bev
