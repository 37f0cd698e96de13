// Quantises the same values on CPU and GPU, and compares bytes.
#pragma once

#include <string>
#include <vector>

#include "autograd/quantize.h"
#include "tests/backend_cuda/rig.h"

namespace bev::cuda_test {

class QuantizeRig : public CudaRig {
 protected:
  QuantizeTools cpu_tools() { return {cpu(), cpu_stream(), host_arena()}; }
  QuantizeTools cuda_tools() { return {cuda(), cuda_stream(), device_arena()}; }

  // The same values in the same dtype on both sides.
  struct Pair {
    Tensor host, device;
  };
  Pair pair(Dtype dtype, const Shape& shape, double scale, const std::vector<double>& first = {}) {
    Twin drawn = random(Dtype::kF32, shape, scale);
    for (std::size_t i = 0; i < first.size(); ++i) drawn.exact.as<double>()[i] = first[i];
    Pair out{Tensor(host_arena(), dtype, shape, "test"),
             Tensor(device_arena(), dtype, shape, "test")};
    cpu().cast(cpu_stream(), drawn.exact, out.host);
    cuda().device.upload(cuda_stream(), out.host.view().data, out.device);
    return out;
  }
  std::string bytes_of(const Tensor& tensor, bool device) {
    std::string bytes(tensor.view().bytes(), '\0');
    if (device) {
      cuda().device.fetch(cuda_stream(), tensor, bytes.data()).wait();
    } else {
      std::copy_n(static_cast<const char*>(tensor.view().data), bytes.size(), bytes.data());
    }
    return bytes;
  }
  // Padding of the scales beyond the rows is never read.
  void expect_same(const Tensor& host, const Tensor& device, const char* what) {
    if (host.empty() && device.empty()) return;
    std::string one = bytes_of(host, false), other = bytes_of(device, true);
    ASSERT_EQ(one.size(), other.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      ASSERT_EQ(static_cast<int>(one[i]), static_cast<int>(other[i]))
          << what << ", byte " << i << " of " << one.size();
    }
  }
  Quantized zeroed(const QuantizeTools& tools, const QuantizeRequest& request) {
    Quantized out = quantize(tools, request);
    for (const Tensor* tensor : {&out.rows, &out.row_scales, &out.columns, &out.column_scales}) {
      if (!tensor->empty()) tools.kernels.fill(tools.stream, *tensor, 7);
    }
    quantize_into(tools, request, out);
    return out;
  }
};

}  // namespace bev::cuda_test
