// Streams, events and memory for work beside a rank's own stream.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "backend/cuda/queue.h"
#include "comm/peer_memory.h"

namespace bev {

// A point in a stream, which other streams can wait for, also after the stream is gone.
class StreamEvent final : public PeerMoment {
 public:
  // After all that was put into the stream so far.
  explicit StreamEvent(cudaStream_t stream);
  ~StreamEvent() override { cudaEventDestroy(event_); }
  StreamEvent(const StreamEvent&) = delete;
  StreamEvent& operator=(const StreamEvent&) = delete;

  // What is put into `stream` from now on comes after this.
  cudaError_t precede(cudaStream_t stream) const { return cudaStreamWaitEvent(stream, event_, 0); }

 private:
  cudaEvent_t event_ = nullptr;
};

// A stream whose work goes before that of ordinary ones; made at its first use.
class SideStream {
 public:
  SideStream() = default;
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  cudaStream_t get();
  // Null: there is nothing to wait for.
  void follow(const PeerMomentRef& moment);

 private:
  cudaStream_t stream_ = nullptr;
};

// What is put into `stream` from now on comes after the moment. An error shows in what comes next.
void follow_moment(cudaStream_t stream, const PeerMomentRef& moment) noexcept;
// A Work whose end is the moment; the rank's stream follows when it is waited for or dropped.
Work follow_later(CudaQueue& queue, PeerMomentRef moment);

// Memory of the device's pool, taken and given back in the order of streams, so that nobody waits.
class StreamBuffer {
 public:
  StreamBuffer(std::size_t bytes, cudaStream_t stream);
  // Waits for the device, where it was not released: an error passes.
  ~StreamBuffer() { cudaFree(data_); }
  StreamBuffer(const StreamBuffer&) = delete;
  StreamBuffer& operator=(const StreamBuffer&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  // Not used any more after what is in the stream so far.
  void release(cudaStream_t stream);

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace bev
