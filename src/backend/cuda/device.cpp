// The CUDA device of a rank: memory, transfers, events, CUDA graphs, groups, and the kernel tables.
#include "backend/cuda/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "backend/cuda/attention/attention_paths.h"
#include "backend/cuda/comm/nccl_group.h"
#include "backend/cuda/comm/peer_memory.h"
#include "backend/cuda/runtime/device_trace.h"
#include "backend/cuda/runtime/queue.h"
#include "backend/cuda/runtime/stream_event.h"
#include "backend/cuda/tables.h"
#include "base/error.h"
#include "base/gpu_archs.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "comm/single_group.h"
#include "kernels/fill_tables.h"
#include "kernels/tables.h"

namespace bev {

namespace {

class CudaMemory final : public MemorySource {
 public:
  void* allocate(std::size_t bytes) override {
    void* address = nullptr;
    cudaError_t error = cudaMalloc(&address, bytes);
    if (error == cudaErrorMemoryAllocation) {
      std::size_t free = 0, total = 0;
      cudaGetLastError();  // reported here, so it must be cleared
      cudaMemGetInfo(&free, &total);
      BEV_FAIL(ErrorKind::kDevice, "the GPU has no ", format_bytes(static_cast<double>(bytes)),
               " left: ", format_bytes(static_cast<double>(free)), " of ",
               format_bytes(static_cast<double>(total)), " are free");
    }
    check_cuda(error, "allocate memory");
    return address;
  }
  void release(void* address, std::size_t) override { cudaFree(address); }
};

// Page-locked host memory, mapped at the same addresses for the device.
class PinnedMemory final : public MemorySource {
 public:
  void* allocate(std::size_t bytes) override {
    void* address = pages_->allocate(bytes);
    cudaError_t error =
        cudaHostRegister(address, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (error != cudaSuccess) {
      cudaGetLastError();
      pages_->release(address, bytes);
      BEV_FAIL(ErrorKind::kDevice, "CUDA: ", format_bytes(static_cast<double>(bytes)),
               " of host memory cannot be pinned: ", cudaGetErrorString(error),
               "; the memory must be free, and the limit on locked memory (ulimit -l) above it");
    }
    void* seen = nullptr;
    check_cuda(cudaHostGetDevicePointer(&seen, address, 0), "find pinned memory");
    BEV_CHECK(seen == address, ErrorKind::kDevice,
              "CUDA: this device sees host memory at other addresses, which is not served");
    return address;
  }
  void release(void* address, std::size_t bytes) override {
    cudaDeviceSynchronize();  // kernels may still access it
    cudaHostUnregister(address);
    pages_->release(address, bytes);
  }

 private:
  std::unique_ptr<MemorySource> pages_ = make_host_memory();
};

// The direction follows from the addresses (unified virtual addressing).
void copy_async(void* to, const void* from, std::size_t bytes, const Stream& stream) {
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue_of(stream).stream()),
             "copy memory");
}

void check_not_capturing(const CudaQueue& queue, const char* what) {
  BEV_CHECK(!queue.capturing(), ErrorKind::kInternal, what, " while work is recorded");
}

void upload(const Stream& stream, const void* host, const View& to) {
  CudaQueue& queue = queue_of(stream);
  check_not_capturing(queue, "upload");
  if (to.bytes() == 0) return;
  if (to.bytes() > Staging::kMostBytes) {  // pageable memory: copied before the call returns
    return copy_async(to.data, host, to.bytes(), stream);
  }
  Staging::Block& block = queue.staging().take(to.bytes());
  std::memcpy(block.data, host, to.bytes());
  copy_async(to.data, block.data, to.bytes(), stream);
  check_cuda(cudaEventRecord(block.passed, queue.stream()), "record an event");
}

// A fetch through a staging block, which wait() copies to its destination.
class PendingFetch final : public Work::Pending {
 public:
  PendingFetch(CudaQueue& queue, Staging::Block& block, void* host, std::size_t bytes)
      : queue_(queue), block_(block), host_(host), bytes_(bytes) {
    block_.held = true;
  }
  ~PendingFetch() override { block_.held = false; }
  void wait() override {
    queue_.wait(block_.passed);
    std::memcpy(host_, block_.data, bytes_);
  }

 private:
  CudaQueue& queue_;
  Staging::Block& block_;
  void* host_;
  std::size_t bytes_;
};

Work fetch(const Stream& stream, const View& from, void* host) {
  CudaQueue& queue = queue_of(stream);
  check_not_capturing(queue, "fetch");
  if (from.bytes() == 0) return {};
  if (from.bytes() > Staging::kMostBytes) {
    copy_async(host, from.data, from.bytes(), stream);
    queue.wait_for_all();
    return {};
  }
  Staging::Block& block = queue.staging().take(from.bytes());
  copy_async(block.data, from.data, from.bytes(), stream);
  check_cuda(cudaEventRecord(block.passed, queue.stream()), "record an event");
  return Work(std::make_unique<PendingFetch>(queue, block, host, from.bytes()));
}

// An event that any thread can wait for.
class PendingEvent final : public Work::Pending {
 public:
  explicit PendingEvent(cudaStream_t stream) {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "make an event");
    check_cuda(cudaEventRecord(event_, stream), "record an event");
  }
  ~PendingEvent() override { cudaEventDestroy(event_); }
  void wait() override { check_cuda(cudaEventSynchronize(event_), "wait for a copy"); }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaTimestamp final : public DeviceTimestamp {
 public:
  explicit CudaTimestamp(cudaStream_t stream) {
    check_cuda(cudaEventCreate(&event_), "make an event");
    cudaError_t error = cudaEventRecord(event_, stream);
    if (error != cudaSuccess) cudaEventDestroy(event_);
    check_cuda(error, "record an event");
  }
  ~CudaTimestamp() override { cudaEventDestroy(event_); }
  CudaTimestamp(const CudaTimestamp&) = delete;
  CudaTimestamp& operator=(const CudaTimestamp&) = delete;

  double seconds_since(const DeviceTimestamp& earlier) const override {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds,
                                    static_cast<const CudaTimestamp&>(earlier).event_, event_),
               "read a time");
    return static_cast<double>(milliseconds) / 1000;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Runs on its own stream, which waits for an event on the compute stream.
class CudaSideCopier final : public SideCopier {
 public:
  explicit CudaSideCopier(CudaQueue& queue) : queue_(queue) {
    check_cuda(cudaGetDevice(&device_), "find the device");
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
    check_cuda(cudaEventCreateWithFlags(&reached_, cudaEventDisableTiming), "make an event");
  }
  ~CudaSideCopier() override {
    cudaEventDestroy(reached_);
    cudaStreamDestroy(stream_);
  }
  CudaSideCopier(const CudaSideCopier&) = delete;
  CudaSideCopier& operator=(const CudaSideCopier&) = delete;

  void follow() override {
    check_cuda(cudaEventRecord(reached_, queue_.stream()), "record an event");
    check_cuda(cudaStreamWaitEvent(stream_, reached_), "wait for an event");
  }
  Work fetch(const View& from, void* host) override {
    check_cuda(cudaSetDevice(device_), "choose the device");  // per thread, and this is another
    check_cuda(cudaMemcpyAsync(host, from.data, from.bytes(), cudaMemcpyDefault, stream_),
               "copy memory");
    return Work(std::make_unique<PendingEvent>(stream_));
  }
  // Memory that cannot be pinned still works, only slower.
  Unpin pin(void* host, std::size_t bytes) override {
    check_cuda(cudaSetDevice(device_), "choose the device");
    if (cudaHostRegister(host, bytes, cudaHostRegisterPortable) != cudaSuccess) {
      cudaGetLastError();
      return nullptr;
    }
    return [](void* memory) { cudaHostUnregister(memory); };
  }

 private:
  CudaQueue& queue_;
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t reached_ = nullptr;
};

// Runs on its own stream. The compute stream waits for the copies through mark().
class CudaCopyLane final : public CopyLane {
 public:
  explicit CudaCopyLane(CudaQueue& queue) : queue_(queue) {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "make a stream");
  }
  ~CudaCopyLane() override { cudaStreamDestroy(stream_); }
  CudaCopyLane(const CudaCopyLane&) = delete;
  CudaCopyLane& operator=(const CudaCopyLane&) = delete;

  void follow() override {
    check_not_capturing(queue_, "copies beside a stream");
    check_cuda(StreamEvent(queue_.stream()).precede(stream_), "wait for an event");
  }
  void copy(const void* from, void* to, std::size_t bytes) override {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copy memory");
  }
  Work mark() override { return follow_later(queue_, std::make_shared<StreamEvent>(stream_)); }

 private:
  CudaQueue& queue_;
  cudaStream_t stream_ = nullptr;
};

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(CudaQueue& queue, cudaGraph_t graph) : queue_(queue) {
    cudaError_t error = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(error, "make a graph");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  void start() override {
    check_cuda(cudaGraphLaunch(executable_, queue_.stream()), "start a graph");
  }

 private:
  CudaQueue& queue_;
  cudaGraphExec_t executable_ = nullptr;
};

std::unique_ptr<DeviceGraph> capture_stream(const Stream& stream, FunctionRef<void()> body) {
  CudaQueue& queue = queue_of(stream);
  queue.begin_capture();
  try {
    body();
  } catch (...) {
    queue.abandon_capture();
    throw;
  }
  return std::make_unique<CudaGraph>(queue, queue.end_capture());
}

// A group of one rank, with copies on the device.
class CudaSingleGroup final : public SingleGroup {
 public:
  CudaSingleGroup(const Group& host, Stream stream)
      : SingleGroup(host.name(), host.members().front()), stream_(stream) {}

 protected:
  void copy_bytes(void* to, const void* from, std::size_t bytes) override {
    copy_async(to, from, bytes, stream_);
  }

 private:
  Stream stream_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const DeviceOptions& options)
      : index_(options.local_rank % std::max(cuda_device_count(), 1)),
        deterministic_(options.deterministic),
        pool_(options.threads),
        queue_(index_, options) {}
  Stream stream() override { return {&pool_, &queue_}; }
  std::unique_ptr<MemorySource> memory() override { return std::make_unique<CudaMemory>(); }
  std::unique_ptr<Group> make_group(std::unique_ptr<Group> host) override {
    std::unique_ptr<Group> group;
    if (host->size() == 1) {
      group = std::make_unique<CudaSingleGroup>(*host, stream());
    } else if (members_share_device(*host)) {
      group = host->make_peer_group(make_cuda_peer_memory(queue_));
    }
    if (!group) group = make_nccl_group(*host, queue_, deterministic_);
    group->keep_host(std::move(host));
    return group;
  }

 private:
  // Compares device indices of the processes; whether the ranks share one process shows when the
  // peer group is made.
  bool members_share_device(Group& host) const {
    std::int64_t mine = index_;
    std::vector<std::int64_t> all(static_cast<std::size_t>(host.size()));
    host.all_gather({&mine, Dtype::kI64, {1}}, {all.data(), Dtype::kI64, {host.size()}},
                    "devices of ranks")
        .wait();
    return std::ranges::all_of(all, [&](std::int64_t device) { return device == mine; });
  }

  int index_;
  bool deterministic_;
  ThreadPool pool_;
  CudaQueue queue_;
};

}  // namespace

namespace {
// Streams beyond this number share hardware queues, where a message that waits for its receiver
// would block others, perhaps those that the receiver waits for. The driver reads the variable when
// it starts; a value set by the user is kept.
bool ask_for_queues() { return ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0) == 0; }
}  // namespace

int cuda_device_count() {
  static const bool asked [[maybe_unused]] = ask_for_queues();
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

namespace {
int own_arch(int device) {
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "ask for the compute capability");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
             "ask for the compute capability");
  return 10 * major + minor;
}
}  // namespace

int cuda_arch(int device, int limit) {
  const int arch = own_arch(device);
  BEV_CHECK(limit <= arch, ErrorKind::kConfig, "--limit-arch: ", limit, " is above ", arch,
            ", the architecture of ", cuda_device_name(device), "; give at most that");
  return limit > 0 ? limit : arch;
}

std::string cuda_device_name(int device) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, device), "ask for the name of a device");
  return concat(properties.name, " (compute capability ", properties.major, ".", properties.minor,
                ")");
}

void check_cuda_devices() {
  for (int device = 0; device < cuda_device_count(); ++device) {
    BEV_CHECK(archs_fit(BEV_CUDA_ARCHS, own_arch(device)), ErrorKind::kConfig,
              "--device cuda: ", cuda_device_name(device),
              " has no kernels in this program, which was built for ", cuda_archs(),
              "; build it on that machine or by `make build ARCHS=",
              std::max(own_arch(device), kLeastArch),
              "` (80 and up), hide the card by CUDA_VISIBLE_DEVICES, or use --device cpu");
  }
}

std::string cuda_archs() { return archs_text(BEV_CUDA_ARCHS); }

double cuda_device_memory(int device) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, device), "ask for the memory of a device");
  return static_cast<double>(properties.totalGlobalMem);
}

DeviceKernels cuda_table(Family<DeviceKernels>) {
  return {
      .open = [](const DeviceOptions& options) -> std::unique_ptr<Device> {
        return std::make_unique<CudaDevice>(options);
      },
      .trace = make_cuda_trace,
      .upload = upload,
      .fetch = fetch,
      .mark = [](const Stream& stream) -> std::unique_ptr<DeviceTimestamp> {
        return std::make_unique<CudaTimestamp>(queue_of(stream).stream());
      },
      .open_copier = [](const Stream& stream) -> std::unique_ptr<SideCopier> {
        return std::make_unique<CudaSideCopier>(queue_of(stream));
      },
      .open_lane = [](const Stream& stream) -> std::unique_ptr<CopyLane> {
        return std::make_unique<CudaCopyLane>(queue_of(stream));
      },
      .pinned_memory = []() -> std::unique_ptr<MemorySource> {
        return std::make_unique<PinnedMemory>();
      },
      .free_memory = [](const Stream&) -> std::int64_t {
        std::size_t free = 0, total = 0;
        check_cuda(cudaMemGetInfo(&free, &total), "ask for free memory");
        return static_cast<std::int64_t>(free);
      },
      .copy = [](const Stream& stream, const View& from,
                 const View& to) { copy_async(to.data, from.data, to.bytes(), stream); },
      .capture = capture_stream,
  };
}

template <class Table>
Table make_table() {
  Table cuda_table(Family<Table>);
  return cuda_table(Family<Table>());
}

namespace {
struct Tables {
  template <class Table>
  operator const Table&() const {
    static const Table table = make_table<Table>();
    return table;
  }
};
}  // namespace

const Kernels& cuda_kernels() {
  static const Kernels kernels = fill_members<Kernels>(Tables(), cuda_fill, cuda_cast);
  return kernels;
}

namespace {
// Norms, RoPE, activations, the router and embeddings compute one row at a time and need no other
// kernel here.
struct ExactTables {
  AttentionKernels attention = cuda_exact_attention();
  GemmKernels gemm = cuda_exact_gemm();
  LatentKernels latent = cuda_kernels().latent;
  LossKernels loss = cuda_kernels().loss;
  MoeKernels moe = cuda_exact_moe();
  QuantizeKernels quantize = cuda_kernels().quantize;

  ExactTables() {
    latent.absorb = false;
    loss.logits.narrow = false;
    quantize.scaled_gemm = cuda_scaled_gemm_exact;
  }
  Kernels kernels() const {
    const Kernels linear = with_table(with_table(cuda_kernels(), gemm), quantize);
    const Kernels mixed = with_table(with_table(linear, attention), latent);
    return with_table(with_table(mixed, moe), loss);
  }
};
}  // namespace

const Kernels& cuda_exact_kernels() {
  static const ExactTables tables;
  static const Kernels kernels = tables.kernels();
  return kernels;
}

}  // namespace bev
