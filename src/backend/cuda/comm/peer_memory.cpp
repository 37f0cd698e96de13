// Collectives and messages between ranks that share a GPU, on side streams.
#include "backend/cuda/comm/peer_memory.h"

#include "backend/cuda/comm/peer_exchange.h"
#include "backend/cuda/runtime/stream_event.h"

namespace bev {

namespace {

class CudaMessage final : public PeerMessage {
 public:
  CudaMessage(const View& data, cudaStream_t stream)
      : PeerMessage(data.bytes()), copy_(data.bytes(), stream) {
    check_cuda(cudaMemcpyAsync(copy_.data(), data.data, bytes(), cudaMemcpyDeviceToDevice, stream),
               "send a message");
    packed_ = std::make_shared<StreamEvent>(stream);
  }
  const PeerEventRef& packed() const { return packed_; }
  void unpack(void* to, cudaStream_t stream) {
    check_cuda(cudaMemcpyAsync(to, copy_.data(), bytes(), cudaMemcpyDeviceToDevice, stream),
               "receive a message");
    copy_.release(stream);
  }

 private:
  StreamBuffer copy_;
  PeerEventRef packed_;
};

class CudaPeerMemory final : public PeerMemory {
 public:
  explicit CudaPeerMemory(CudaQueue& queue) : queue_(queue) {}

  PeerEventRef now() override { return std::make_shared<StreamEvent>(queue_.stream()); }
  void follow(const PeerEventRef& event) noexcept override { follow_event(queue_.stream(), event); }
  std::vector<CollectiveSlice> cut(const CollectivePlan& plan) const override {
    return std::vector<CollectiveSlice>(plan.parts.empty() ? 0 : 1);
  }
  PeerEventRef run(const CollectivePlan& plan, const CollectiveSlice&,
                   std::span<const CollectivePost> posts) override {
    for (const CollectivePost& post : posts) collectives_.follow(post.ready);
    cuda::run_exchange(collectives_.get(), plan);
    return std::make_shared<StreamEvent>(collectives_.get());
  }
  std::shared_ptr<PeerMessage> pack(const View& data, PeerEventRef& packed) override {
    sends_.follow(now());
    auto message = std::make_shared<CudaMessage>(data, sends_.get());
    packed = message->packed();
    return message;
  }
  PeerEventRef unpack(PeerMessage& message, const View& to, const PeerEventRef& ready) override {
    auto& packed = static_cast<CudaMessage&>(message);
    receives_.follow(ready);
    receives_.follow(packed.packed());
    packed.unpack(to.data, receives_.get());
    return std::make_shared<StreamEvent>(receives_.get());
  }

 private:
  CudaQueue& queue_;
  // Separate streams: an operation that waits for a rank would block those behind it in its stream.
  SideStream collectives_, sends_, receives_;
};

}  // namespace

std::shared_ptr<PeerMemory> make_cuda_peer_memory(CudaQueue& queue) {
  return std::make_shared<CudaPeerMemory>(queue);
}

}  // namespace bev
