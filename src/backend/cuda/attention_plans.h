// cuDNN's plans of attention, one for each shape that was met.
#pragma once

#include <memory>

#include "kernels/attention.h"

namespace bev {

class CudaQueue;

class CudaAttention {
 public:
  CudaAttention();
  ~CudaAttention();
  CudaAttention(const CudaAttention&) = delete;
  CudaAttention& operator=(const CudaAttention&) = delete;

  // The same bits in every run: our backward then takes the place of cuDNN's.
  bool deterministic = false;

  // Loads the library at its first use.
  bool has_cudnn(CudaQueue& queue);
  // False, with nothing done, where cuDNN is not there or does not serve the shape.
  bool forward(CudaQueue& queue, const AttentionForwardArgs& args);
  bool backward(CudaQueue& queue, const AttentionBackwardArgs& args);

 private:
  struct Plans;
  struct Call;
  // A call without a plan where there is none for the shape.
  Call prepare(CudaQueue& queue, const AttentionShape& shape, bool backward);
  std::unique_ptr<Plans> plans_;
};

}  // namespace bev
