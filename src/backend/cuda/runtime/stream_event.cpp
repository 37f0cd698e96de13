// Side streams, events and stream-ordered memory.
#include "backend/cuda/runtime/stream_event.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace bev {

StreamEvent::StreamEvent(cudaStream_t stream) {
  check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "make an event");
  cudaError_t error = cudaEventRecord(event_, stream);
  if (error != cudaSuccess) cudaEventDestroy(event_);
  check_cuda(error, "record an event");
}

namespace {

// Keeps freed memory in the pool for later buffers, and forbids reuse that inserts dependencies
// between streams: a buffer would wait for another stream, perhaps for a message whose receiver
// waits for this rank (deadlock).
void keep_pool() {
  int device = 0, never = 0;
  cudaMemPool_t pool = nullptr;
  std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
  check_cuda(cudaGetDevice(&device), "find the device");
  check_cuda(cudaDeviceGetDefaultMemPool(&pool, device), "find the device's pool");
  check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
             "keep the memory of a pool");
  check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &never),
             "keep the buffers of a pool apart");
}

}  // namespace

SideStream::~SideStream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

cudaStream_t SideStream::get() {
  if (stream_ == nullptr) {
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "read stream priorities");
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
               "make a stream");
    keep_pool();
  }
  return stream_;
}

void SideStream::follow(const PeerEventRef& event) {
  if (event) {
    check_cuda(static_cast<const StreamEvent&>(*event).precede(get()), "wait for another stream");
  }
}

void follow_event(cudaStream_t stream, const PeerEventRef& event) noexcept {
  if (event) static_cast<const StreamEvent&>(*event).precede(stream);
}

namespace {

class FollowingWork final : public Work::Pending, private SideStreamWork {
 public:
  FollowingWork(CudaQueue& queue, PeerEventRef event) : queue_(queue), event_(std::move(event)) {
    queue_.add_side_stream_work(*this);
  }
  ~FollowingWork() override {
    queue_.remove_side_stream_work(*this);
    follow();
  }
  void wait() override {}  // follow() is called when the Work is destroyed right after
  void follow() noexcept override { follow_event(queue_.stream(), std::exchange(event_, {})); }

 private:
  CudaQueue& queue_;
  PeerEventRef event_;
};

}  // namespace

Work follow_later(CudaQueue& queue, PeerEventRef event) {
  return Work(std::make_unique<FollowingWork>(queue, std::move(event)));
}

StreamBuffer::StreamBuffer(std::size_t bytes, cudaStream_t stream) : bytes_(bytes) {
  check_cuda(cudaMallocAsync(&data_, std::max<std::size_t>(bytes, 1), stream),
             "allocate memory for a message");
}

void StreamBuffer::release(cudaStream_t stream) {
  check_cuda(cudaFreeAsync(std::exchange(data_, nullptr), stream), "free a message's memory");
}

}  // namespace bev
