#include "plan/phantom.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/tables.h"

namespace bev {

namespace {

// Becomes any kernel: one that returns at once.
struct Nothing {
  template <class... Args>
  using Kernel = void (*)(Args...);
  template <class... Args>
  constexpr operator Kernel<Args...>() const {
    return [](Args...) {};
  }
};
constexpr Nothing kNothing;

class PhantomMemory final : public MemorySource {
 public:
  void* allocate(std::size_t bytes) override {
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    BEV_CHECK(address != MAP_FAILED, ErrorKind::kDevice, "memory plan: no addresses for ",
              format_bytes(static_cast<double>(bytes)));
    return address;
  }
  void release(void* address, std::size_t bytes) override { ::munmap(address, bytes); }
};

class PhantomDevice final : public Device {
 public:
  Stream stream() override { return {}; }
  std::unique_ptr<MemorySource> memory() override { return make_phantom_memory(); }
  std::unique_ptr<Group> make_group(std::unique_ptr<Group> host) override { return host; }
};

std::unique_ptr<Device> open_phantom(const DeviceOptions&) {
  return std::make_unique<PhantomDevice>();
}

class PhantomCopyLane final : public CopyLane {
 public:
  void follow() override {}
  void copy(const void*, void*, std::size_t) override {}
  Work mark() override { return {}; }
};

std::unique_ptr<CopyLane> open_phantom_lane(const Stream&) {
  return std::make_unique<PhantomCopyLane>();
}

std::unique_ptr<DeviceTrace> no_device_trace() { return nullptr; }

constexpr KernelTables kPhantomTables = {
    .fill = kNothing,
    .cast = kNothing,
    .device = {open_phantom, no_device_trace, kNothing,
               [](const Stream&, const View&, void*) { return Work(); }, nullptr, nullptr,
               open_phantom_lane, make_phantom_memory, kNothing, nullptr},
    .elementwise = {kNothing, kNothing, kNothing, kNothing, kNothing, kNothing, kNothing, kNothing,
                    kNothing},
    .gemm = {kNothing, [](const GemmArgs&) { return std::size_t{0}; }},
    .norm = {kNothing, kNothing, kNothing, kNothing},
    .activation = {kNothing, kNothing},
    .rope = {kNothing, kNothing},
    .attention = {kNothing, kNothing, kNothing, kNothing, kNothing},
    .latent = {kNothing, kNothing, kNothing},
    .embedding = {kNothing, kNothing},
    .loss = {kNothing, kNothing, kNothing, kNothing, kNothing, kNothing, {}},
    .router = {kNothing, kNothing, kNothing, kNothing, kNothing, kNothing, kNothing, kNothing},
    .moe = {kNothing, kNothing, kNothing, kNothing, kNothing, kNothing, kNothing, kNothing,
            kNothing, kNothing},
    .optim = {kNothing, kNothing, kNothing, kNothing, kNothing, kNothing, kNothing},
    .quantize = {kNothing, kNothing, kNothing, kNothing, kNothing, kNothing, kNothing},
};

class PhantomGroup final : public Group {
 public:
  PhantomGroup(std::string name, int rank, std::vector<int> members)
      : Group(std::move(name), rank, std::move(members)) {}

  Work all_reduce(const View&, Reduction, std::string_view) override { return {}; }
  Work all_gather(const View&, const View&, std::string_view) override { return {}; }
  Work reduce_scatter(const View&, const View&, std::string_view) override { return {}; }
  Work broadcast(const View&, int, std::string_view) override { return {}; }
  Work all_to_all(const View&, std::span<const std::int64_t>, const View&,
                  std::span<const std::int64_t>, std::string_view) override {
    return {};
  }
  Work send(const View&, int, int, std::string_view) override { return {}; }
  Work receive(const View&, int, int, std::string_view) override { return {}; }
  void barrier(std::string_view) override {}
};

}  // namespace

const Kernels& phantom_kernels() {
  static constexpr Kernels kernels = kPhantomTables.kernels();
  return kernels;
}

std::unique_ptr<MemorySource> make_phantom_memory() { return std::make_unique<PhantomMemory>(); }

std::unique_ptr<Group> PhantomWorld::make_group(std::string name, std::vector<int> members) {
  auto mine = std::find(members.begin(), members.end(), rank_);
  BEV_CHECK(mine != members.end(), ErrorKind::kInternal, "memory plan: rank ", rank_,
            " makes a group without itself");
  auto index = static_cast<int>(mine - members.begin());
  return std::make_unique<PhantomGroup>(std::move(name), index, std::move(members));
}

}  // namespace bev
