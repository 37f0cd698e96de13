// What the GPU benchmarks share: a device, tensors of noise on it, and the time of a call.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>

#include "backend/cuda/device.h"
#include "base/clock.h"
#include "tensor/tensor.h"

namespace bev {

class Gpu {
 public:
  Gpu() : device_(cuda_kernels().device.open({})), arena_(device_->memory()) {}

  Stream stream() { return device_->stream(); }
  Tensor empty(Dtype dtype, const Shape& shape) { return Tensor(arena_, dtype, shape, "bench"); }
  Tensor noise(const Shape& shape, Dtype dtype = Dtype::kBf16) {
    Tensor out = empty(dtype, shape);
    cuda_kernels().optim.normal(stream(), {out.view().flat(), ++draws_, 0, 0, 1});
    return out;
  }
  // Of a call; endless where it is not served.
  template <class Body>
  double seconds(const Body& body) {
    constexpr int kTimes = 20;
    if (!body()) return std::numeric_limits<double>::infinity();
    wait();
    double begin = monotonic_seconds();
    for (int i = 0; i < kTimes; ++i) body();
    wait();
    return (monotonic_seconds() - begin) / kTimes;
  }

 private:
  void wait() {
    float value = 0;
    cuda_kernels().device.fetch(stream(), flag_, &value).wait();
  }
  std::unique_ptr<Device> device_;
  Arena arena_;
  Tensor flag_{arena_, Dtype::kF32, {1}, "bench"};
  std::uint64_t draws_ = 0;
};

}  // namespace bev
