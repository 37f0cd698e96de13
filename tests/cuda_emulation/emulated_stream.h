// A stream of the emulated device with these settings.
#pragma once

#include <memory>

#include "tests/cuda_emulation/device_memory.h"
#include "tests/cuda_emulation/emulated_block.h"

namespace bev {
class CudaQueue;
}

namespace bev::cuda_emulation {

class EmulatedStream {
 public:
  explicit EmulatedStream(const Device& settings = {});
  ~EmulatedStream();
  EmulatedStream(const EmulatedStream&) = delete;
  EmulatedStream& operator=(const EmulatedStream&) = delete;

  operator Stream();

 private:
  std::unique_ptr<CudaQueue> queue_;
};

}  // namespace bev::cuda_emulation
