// Device scratch memory for the kernels of one stream.
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

  // 256-byte aligned; valid until the next call. Grows only outside of CUDA graph capture. Old
  // blocks are kept, because captured graphs may refer to them.
  void* take(std::size_t bytes, bool capturing);

 private:
  std::vector<void*> blocks_;  // the last one is the largest and in use
  std::size_t bytes_ = 0;
};

}  // namespace bev
