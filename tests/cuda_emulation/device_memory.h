// Memory of the emulated device: it ends at a page that cannot be accessed, and begins as NaN.
#pragma once

#include <cstddef>

#include "tests/backend_cpu/kernel_fixture.h"

namespace bev::cuda_emulation {

class DeviceMemory {
 public:
  // The data is aligned to 16 bytes, or to `alignment`.
  explicit DeviceMemory(std::size_t bytes, std::size_t alignment = 16);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // False if bytes around the data were written.
  bool intact() const;

 private:
  void* pages_ = nullptr;
  std::size_t page_bytes_ = 0, bytes_;
  unsigned char* data_ = nullptr;
};

// A tensor on the emulated device.
class DeviceTensor {
 public:
  // All values are NaN.
  DeviceTensor(Dtype dtype, Shape shape)
      : dtype_(dtype),
        shape_(shape),
        memory_(static_cast<std::size_t>(shape.numel()) * size_of(dtype)) {}
  // A copy of a tensor of the host.
  explicit DeviceTensor(const View& from) : DeviceTensor(from.dtype, from.shape) {
    if (memory_.bytes() > 0) std::memcpy(memory_.data(), from.data, memory_.bytes());
  }

  View view() { return {memory_.data(), dtype_, shape_}; }
  void* data() { return memory_.data(); }
  bool intact() const { return memory_.intact(); }
  std::string bits() const { return {static_cast<const char*>(memory_.data()), memory_.bytes()}; }
  std::vector<double> values() {
    kernel_test::Buffer host(dtype_, shape_);
    if (memory_.bytes() > 0) std::memcpy(host.view().data, memory_.data(), memory_.bytes());
    return host.values();
  }

 private:
  Dtype dtype_;
  Shape shape_;
  DeviceMemory memory_;
};

// An array on the emulated device.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& from) : memory_(from.size() * sizeof(T)) {
    if (!from.empty()) std::memcpy(memory_.data(), from.data(), from.size() * sizeof(T));
  }
  T* data() { return static_cast<T*>(memory_.data()); }
  std::vector<T> values() { return {data(), data() + memory_.bytes() / sizeof(T)}; }
  bool intact() const { return memory_.intact(); }

 private:
  DeviceMemory memory_;
};

}  // namespace bev::cuda_emulation
