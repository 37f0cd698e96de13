// Staging buffers in pinned host memory, so that transfers are asynchronous. Blocks are reused once
// the device has finished with them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace bev {

class Staging {
 public:
  // Larger transfers (loading and saving weights) bypass it.
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;

  struct Block {
    explicit Block(std::size_t capacity);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    void* data = nullptr;
    std::size_t bytes;
    cudaEvent_t passed = nullptr;  // event after the last transfer
    bool held = false;             // the host still reads it
  };

  // Returns a block that is not in use.
  Block& take(std::size_t bytes);

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace bev
