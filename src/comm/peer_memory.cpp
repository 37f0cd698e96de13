#include "comm/peer_memory.h"

#include <cstring>

namespace bev {

namespace {

class HostMessage final : public PeerMessage {
 public:
  explicit HostMessage(const View& data) : PeerMessage(data.bytes()) {
    const auto* bytes = static_cast<const std::byte*>(data.data);
    copy_.assign(bytes, bytes + data.bytes());
  }
  void write_to(void* place) const {
    if (!copy_.empty()) std::memcpy(place, copy_.data(), copy_.size());
  }

 private:
  std::vector<std::byte> copy_;
};

class HostPeerMemory final : public PeerMemory {
 public:
  PeerEventRef now() override { return nullptr; }
  void follow(const PeerEventRef&) noexcept override {}
  std::vector<CollectiveSlice> cut(const CollectivePlan& plan) const override {
    return cut_slices(plan);
  }
  PeerEventRef run(const CollectivePlan& plan, const CollectiveSlice& slice,
                   std::span<const CollectivePost>) override {
    run_slice(plan, slice);
    return nullptr;
  }
  std::shared_ptr<PeerMessage> pack(const View& data, PeerEventRef&) override {
    return std::make_shared<HostMessage>(data);
  }
  PeerEventRef unpack(PeerMessage& message, const View& to, const PeerEventRef&) override {
    static_cast<const HostMessage&>(message).write_to(to.data);
    return nullptr;
  }
};

}  // namespace

std::shared_ptr<PeerMemory> make_host_peer_memory() { return std::make_shared<HostPeerMemory>(); }

}  // namespace bev
