// cuDNN attention: an execution plan per shape.
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

  // Bitwise reproducible: the backward then uses our kernels instead of cuDNN.
  bool deterministic = false;

  // Loads the library at the first call.
  bool has_cudnn(CudaQueue& queue);
  // Return false, and do nothing, if cuDNN is missing or does not support the shape.
  bool forward(CudaQueue& queue, const AttentionForwardArgs& args);
  bool backward(CudaQueue& queue, const AttentionBackwardArgs& args);

 private:
  struct Plans;
  struct Call;
  // The call has no plan if cuDNN does not support the shape.
  Call prepare(CudaQueue& queue, const AttentionShape& shape, bool backward);
  std::unique_ptr<Plans> plans_;
};

}  // namespace bev
