// Shared by the GPU benchmarks: a device, random tensors, timing of a call, and main().
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <memory>

#include "backend/cuda/device.h"
#include "base/clock.h"
#include "base/error.h"
#include "kernels/device.h"
#include "kernels/optim.h"
#include "tensor/tensor.h"

namespace bev {

class Gpu {
 public:
  Gpu() : device_(cuda_kernels().device.open({})), arena_(device_->memory()) {}

  Stream stream() { return device_->stream(); }
  Arena& arena() { return arena_; }
  Tensor empty(Dtype dtype, const Shape& shape) { return Tensor(arena_, dtype, shape, "bench"); }
  Tensor noise(const Shape& shape, Dtype dtype = Dtype::kBf16) {
    Tensor out = empty(dtype, shape);
    cuda_kernels().optim.normal(stream(), {.x = out.view().flat(), .key = ++draws_});
    return out;
  }
  // Mean time of a call over at least `least` seconds; infinity if the call is not supported.
  template <class Body>
  double seconds(const Body& body, double least = 0) {
    if (!body()) return std::numeric_limits<double>::infinity();
    for (int times = 20;; times *= 2) {
      wait();
      double begin = monotonic_seconds();
      for (int i = 0; i < times; ++i) body();
      wait();
      double taken = monotonic_seconds() - begin;
      if (taken >= least) return taken / times;
    }
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

// Runs body(Gpu&) and returns the exit status.
template <class Body>
int gpu_main(const char* name, const Body& body) {
  try {
    BEV_CHECK(cuda_device_count() > 0, ErrorKind::kConfig, "no GPU, or no driver for it");
    Gpu gpu;
    body(gpu);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
}

}  // namespace bev
