#include "plan/phantom.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/fill_tables.h"
#include "kernels/tables.h"

namespace bev {

namespace {

// Converts to any kernel: a function that does nothing and returns a zero value.
struct NoKernel {
  template <class Result, class... Args>
  using Kernel = Result (*)(Args...);
  template <class Result, class... Args>
  constexpr operator Kernel<Result, Args...>() const {
    return [](Args...) { return Result(); };
  }
  constexpr operator LogitsRule() const { return {}; }
};

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

template <class Table>
Table phantom_table(Family<Table>) {
  return fill_members<Table>(NoKernel());
}
DeviceKernels phantom_table(Family<DeviceKernels>) {
  DeviceKernels device = fill_members<DeviceKernels>(NoKernel());
  device.open = open_phantom;
  device.open_lane = open_phantom_lane;
  device.pinned_memory = make_phantom_memory;
  device.mark = nullptr;
  device.open_copier = nullptr;
  device.capture = nullptr;
  return device;
}

struct PhantomTables {
  template <class Table>
  operator const Table&() const {
    static const Table table = phantom_table(Family<Table>());
    return table;
  }
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
  static const Kernels kernels = fill_members<Kernels>(PhantomTables(), NoKernel(), NoKernel());
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
