// Compares a CUDA kernel with the CPU kernel in f64: every tensor exists on both sides with the
// same values, and outputs are NaN before the call.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "backend/cpu/cpu_kernels.h"
#include "backend/cuda/device.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "tensor/tensor.h"
#include "tests/support/devices.h"

namespace bev::cuda_test {

// exact: f64 for floating dtypes, on the host; device: in `dtype`, rounded from the same values.
struct Twin {
  Tensor exact, device;
};

class CudaRig : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    device_ = cuda().device.open({});
    arena_ = std::make_unique<Arena>(device_->memory());
  }

  const Kernels& cpu() const { return cpu_kernels(); }
  const Kernels& cuda() const { return *test::find_device(test::TestDevice::kCuda); }
  Stream cpu_stream() { return {&pool_, nullptr}; }
  Stream cuda_stream() { return device_->stream(); }

  // Values in [-scale, scale), different in every call.
  Twin random(Dtype dtype, const Shape& shape, double scale = 1) {
    std::vector<double> values(static_cast<std::size_t>(shape.numel()));
    std::uint64_t key = ++draws_;
    for (std::size_t i = 0; i < values.size(); ++i) {
      PhiloxCounter words = philox({static_cast<std::uint32_t>(i), 0, 0, 0}, key);
      values[i] = scale * (2 * static_cast<double>(uniform_of(words[0])) - 1);
    }
    return twin(dtype, shape, values);
  }
  Twin poisoned(Dtype dtype, const Shape& shape) {
    return twin(dtype, shape,
                std::vector<double>(static_cast<std::size_t>(shape.numel()),
                                    std::numeric_limits<double>::quiet_NaN()));
  }
  Twin twin(Dtype dtype, const Shape& shape, const std::vector<double>& values) {
    Twin out{Tensor(host_, Dtype::kF64, shape, "test"), Tensor(*arena_, dtype, shape, "test")};
    Tensor rounded(host_, dtype, shape, "test");
    visit_float(dtype, [&](auto type) {
      using T = decltype(type);
      for (std::size_t i = 0; i < values.size(); ++i) {
        T value = T(static_cast<accumulate_t<T>>(values[i]));
        rounded.as<T>()[i] = value;
        out.exact.as<double>()[i] = static_cast<accumulate_t<T>>(value);
      }
    });
    cuda().device.upload(cuda_stream(), rounded.view().data, out.device);
    return out;
  }
  // The same values on both sides.
  template <class T>
  Twin words(const std::vector<T>& values) {
    Shape shape{static_cast<std::int64_t>(values.size())};
    Twin out{Tensor(host_, DtypeOf<T>::value, shape, "test"),
             Tensor(*arena_, DtypeOf<T>::value, shape, "test")};
    std::copy(values.begin(), values.end(), out.exact.as<T>());
    cuda().device.upload(cuda_stream(), values.data(), out.device);
    return out;
  }

  std::vector<double> download(const Tensor& tensor) {
    Tensor host(host_, tensor.dtype(), tensor.shape(), "test");
    cuda().device.fetch(cuda_stream(), tensor, host.view().data).wait();
    std::vector<double> out(static_cast<std::size_t>(tensor.numel()));
    visit_float(tensor.dtype(), [&](auto type) {
      using T = decltype(type);
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<accumulate_t<T>>(host.as<T>()[i]);
      }
    });
    return out;
  }

  // |device - exact| / |exact| over the whole tensor; NaN if only one side has a NaN.
  double error(const Twin& twin) {
    std::vector<double> got = download(twin.device);
    const double* want = twin.exact.as<double>();
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] == want[i]) continue;  // including infinities
      difference += (got[i] - want[i]) * (got[i] - want[i]);
    }
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::isfinite(want[i])) size += want[i] * want[i];
    }
    return std::sqrt(difference) / std::max(std::sqrt(size), 1e-30);
  }
  // The error of rounding the result to `dtype` and of sums in f32.
  static double tolerance(Dtype dtype) {
    return dtype == Dtype::kBf16 ? 5e-3 : dtype == Dtype::kF16 ? 1e-3 : 2e-6;
  }

  Arena& host_arena() { return host_; }
  Arena& device_arena() { return *arena_; }

 private:
  ThreadPool pool_{2};
  Arena host_{make_host_memory()};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Arena> arena_;
  std::uint64_t draws_ = 0;
};

}  // namespace bev::cuda_test
