// Side streams, events and stream-ordered memory for work that overlaps with a rank's compute
// stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "backend/cuda/runtime/queue.h"
#include "comm/peer_memory.h"

namespace bev {

// CUDA event that other streams can wait for, also after its stream is destroyed.
class StreamEvent final : public PeerEvent {
 public:
  // Recorded after all work enqueued on `stream` so far.
  explicit StreamEvent(cudaStream_t stream);
  ~StreamEvent() override { cudaEventDestroy(event_); }
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;

  // Work enqueued on `stream` from now on waits for the event.
  cudaError_t precede(cudaStream_t stream) const { return cudaStreamWaitEvent(stream, event_, 0); }

 private:
  cudaEvent_t event_ = nullptr;
};

// High-priority stream, created at its first use.
class SideStream {
 public:
  SideStream() = default;
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  cudaStream_t get();
  // Later work on this stream waits for the event; null: nothing to wait for.
  void follow(const PeerEventRef& event);

 private:
  cudaStream_t stream_ = nullptr;
};

// Work enqueued on `stream` from now on waits for the event. Errors surface in the next CUDA call.
void follow_event(cudaStream_t stream, const PeerEventRef& event) noexcept;
// A Work that completes with the event; the compute stream waits for it when the Work is waited for
// or dropped.
Work follow_later(CudaQueue& queue, PeerEventRef event);

// Stream-ordered memory (cudaMallocAsync): allocation and release never block the host.
class StreamBuffer {
 public:
  StreamBuffer(std::size_t bytes, cudaStream_t stream);
  // cudaFree blocks on the device, so release() comes first except while an exception unwinds.
  ~StreamBuffer() { cudaFree(data_); }
  StreamBuffer(const StreamBuffer&) = delete;
  StreamBuffer& operator=(const StreamBuffer&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // Frees the memory after the work enqueued on `stream` so far.
  void release(cudaStream_t stream);

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace bev
