// Pinned host memory that transfers pass through, so that they run beside the host's work and no
// call waits for the device. Blocks are used again once the device is through with them.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace bev {

class Staging {
 public:
  // Larger transfers (weights on their way in and out) go without.
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;

  struct Block {
    explicit Block(std::size_t capacity);
    ~Block();
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    void* data = nullptr;
    std::size_t bytes;
    cudaEvent_t passed = nullptr;  // recorded after the last transfer
    bool held = false;             // the host still reads it
  };

  // A block that nobody uses.
  Block& take(std::size_t bytes);

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace bev
