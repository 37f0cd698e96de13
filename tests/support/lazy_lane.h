// Kernels whose copy lanes copy as late as permitted: when the stream waits. Premature access to
// the memory shows as wrong values.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_kernels.h"
#include "kernels/device.h"

namespace bev::test {

class LazyLane final : public CopyLane {
 public:
  void follow() override {}
  void copy(const void* from, void* to, std::size_t bytes) override {
    copies_->push_back({from, to, bytes});
  }
  Work mark() override { return Work(std::make_unique<Pending>(copies_, copies_->size())); }

 private:
  struct Copy {
    const void* from;
    void* to;
    std::size_t bytes;
  };
  using Copies = std::vector<Copy>;
  // Performs the copies up to its mark, in order.
  class Pending final : public Work::Pending {
   public:
    Pending(std::shared_ptr<Copies> copies, std::size_t count)
        : copies_(std::move(copies)), count_(count) {}
    ~Pending() override { wait(); }
    void wait() override {
      for (std::size_t i = 0; i < count_; ++i) {
        Copy& copy = (*copies_)[i];
        if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
        copy.bytes = 0;
      }
      count_ = 0;
    }

   private:
    std::shared_ptr<Copies> copies_;
    std::size_t count_;
  };
  std::shared_ptr<Copies> copies_ = std::make_shared<Copies>();
};

inline const Kernels& lazy_kernels() {
  static const DeviceKernels device = [] {
    DeviceKernels changed = cpu_kernels().device;
    changed.open_lane = [](const Stream&) -> std::unique_ptr<CopyLane> {
      return std::make_unique<LazyLane>();
    };
    return changed;
  }();
  static const Kernels kernels = with_table(cpu_kernels(), device);
  return kernels;
}

}  // namespace bev::test
