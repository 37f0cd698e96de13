// The CPU device: everything is complete on return, so transfers are plain copies.
#include "backend/cpu/device.h"

#include <cstring>

#include "base/host_memory.h"
#include "base/thread_pool.h"

namespace bev {

namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : pool_(threads) {}
  Stream stream() override { return {&pool_, nullptr}; }
  std::unique_ptr<MemorySource> memory() override { return make_host_memory(); }
  std::unique_ptr<Group> make_group(std::unique_ptr<Group> host) override { return host; }

 private:
  ThreadPool pool_;
};

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// Work on a CPU stream is complete on return, so there is nothing to wait for.
class CpuSideCopier final : public SideCopier {
 public:
  void follow() override {}
  Work fetch(const View& from, void* host) override {
    copy_bytes(host, from.data, from.bytes());
    return {};
  }
  Unpin pin(void*, std::size_t) override { return nullptr; }
};

class CpuCopyLane final : public CopyLane {
 public:
  void follow() override {}
  void copy(const void* from, void* to, std::size_t bytes) override { copy_bytes(to, from, bytes); }
  Work mark() override { return {}; }
};

}  // namespace

DeviceKernels cpu_device_kernels() {
  return {
      .open = [](const DeviceOptions& options) -> std::unique_ptr<Device> {
        return std::make_unique<CpuDevice>(options.threads);
      },
      .trace = []() -> std::unique_ptr<DeviceTrace> { return nullptr; },
      .upload = [](const Stream&, const void* host,
                   const View& to) { copy_bytes(to.data, host, to.bytes()); },
      .fetch =
          [](const Stream&, const View& from, void* host) {
            copy_bytes(host, from.data, from.bytes());
            return Work();
          },
      .mark = nullptr,
      .open_copier = [](const Stream&) -> std::unique_ptr<SideCopier> {
        return std::make_unique<CpuSideCopier>();
      },
      .open_lane = [](const Stream&) -> std::unique_ptr<CopyLane> {
        return std::make_unique<CpuCopyLane>();
      },
      .pinned_memory = make_host_memory,
      .free_memory = [](const Stream&) { return static_cast<std::int64_t>(free_host_memory()); },
      .copy = [](const Stream&, const View& from,
                 const View& to) { copy_bytes(to.data, from.data, to.bytes()); },
      .capture = nullptr,
  };
}

}  // namespace bev
