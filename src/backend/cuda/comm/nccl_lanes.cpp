// Point-to-point messages over NCCL, one communicator and stream per direction of each pair.
#include "backend/cuda/comm/nccl_lanes.h"

#include <array>

#include "base/error.h"

namespace bev {

namespace {

// Channels of the host group that nothing else uses.
constexpr int kIdChannel = 1 << 20, kHeaderChannel = kIdChannel + 1;
constexpr int kSender = 0, kReceiver = 1;  // ranks in a lane's communicator

struct Header {
  std::int64_t channel = 0, bytes = 0;
  View view() { return {this, Dtype::kI64, {2}}; }
};

}  // namespace

NcclLanes::NcclLanes(Group& host, CudaQueue& queue)
    : host_(host),
      queue_(queue),
      outgoing_(static_cast<std::size_t>(host.size())),
      incoming_(static_cast<std::size_t>(host.size())) {
  for_lanes([&](int from, int to) { connect(from, to); });
}

// Destroying a communicator is collective too, so it follows the order of creation.
NcclLanes::~NcclLanes() {
  for_lanes([&](int from, int to) {
    NcclCommunicator ending;
    if (host_.rank() == from) std::swap(ending, outgoing_[static_cast<std::size_t>(to)].comm);
    if (host_.rank() == to) std::swap(ending, incoming_[static_cast<std::size_t>(from)].comm);
  });
}

template <class Call>
void NcclLanes::for_lanes(const Call& call) {
  for (int i = 0; i < host_.size(); ++i) {
    for (int j = i + 1; j < host_.size(); ++j) {
      call(i, j);
      call(j, i);
    }
  }
}

void NcclLanes::connect(int from, int to) {
  NcclId id{};
  View view{&id, Dtype::kU8, {sizeof(id)}};
  if (host_.rank() == from) {
    id = make_nccl_id();
    host_.send(view, to, kIdChannel, "NCCL lane").wait();
    outgoing_[static_cast<std::size_t>(to)].connect(id, kSender);
  } else if (host_.rank() == to) {
    host_.receive(view, from, kIdChannel, "NCCL lane").wait();
    incoming_[static_cast<std::size_t>(from)].connect(id, kReceiver);
  }
}

// The first message of a communicator makes the hosts of both sides wait for each other. It is sent
// here, so that later messages involve only the devices.
void NcclLanes::Lane::connect(const NcclId& id, int rank) {
  comm = NcclCommunicator(id, 2, rank);
  StreamBuffer byte(1, stream.get());
  rank == kSender ? send(byte.data(), 1) : receive(byte.data(), 1);
  byte.release(stream.get());
}

void NcclLanes::Lane::send(const void* data, std::size_t bytes) {
  check_nccl(
      nccl_library().send(data, bytes, nccl_dtype(Dtype::kU8), kReceiver, comm.get(), stream.get()),
      "send a message");
}

void NcclLanes::Lane::receive(void* data, std::size_t bytes) {
  check_nccl(nccl_library().receive(data, bytes, nccl_dtype(Dtype::kU8), kSender, comm.get(),
                                    stream.get()),
             "receive a message");
}

Work NcclLanes::send_copy(Lane& lane, const View& data) {
  // Copied on another stream than it is sent on, so that the rank continues although earlier
  // messages have not been received.
  copies_.follow(std::make_shared<StreamEvent>(queue_.stream()));
  StreamBuffer copy(data.bytes(), copies_.get());
  check_cuda(cudaMemcpyAsync(copy.data(), data.data, data.bytes(), cudaMemcpyDeviceToDevice,
                             copies_.get()),
             "copy a message");
  PeerEventRef packed = std::make_shared<StreamEvent>(copies_.get());
  lane.stream.follow(packed);
  lane.send(copy.data(), data.bytes());
  copy.release(lane.stream.get());
  return follow_later(queue_, std::move(packed));
}

Work NcclLanes::send_in_place(Lane& lane, const View& data) {
  lane.stream.follow(std::make_shared<StreamEvent>(queue_.stream()));
  lane.send(data.data, data.bytes());
  return follow_later(queue_, std::make_shared<StreamEvent>(lane.stream.get()));
}

Work NcclLanes::send(const View& data, int to, int channel, std::string_view label) {
  Lane& lane = outgoing_[static_cast<std::size_t>(to)];
  // A CUDA graph keeps its addresses, so each captured message would need a buffer of its own.
  Work work = queue_.capturing() ? send_in_place(lane, data) : send_copy(lane, data);
  Header header{channel, static_cast<std::int64_t>(data.bytes())};
  host_.send(header.view(), to, kHeaderChannel, label).wait();
  return work;
}

PeerEventRef NcclLanes::take(int from, const Key& key, const View& data, const PeerEventRef& ready,
                             std::string_view label) {
  Incoming& lane = incoming_[static_cast<std::size_t>(from)];
  cudaStream_t stream = lane.stream.get();
  auto check_size = [&](std::size_t bytes) {
    BEV_CHECK(bytes == data.bytes(), ErrorKind::kComm, "receive of ", label, ": ", bytes,
              " bytes came from rank ", host_.members()[static_cast<std::size_t>(from)],
              ", expected ", data.bytes());
  };
  while (!lane.aside.contains(key)) {
    Header header;
    host_.receive(header.view(), from, kHeaderChannel, label).wait();
    auto bytes = static_cast<std::size_t>(header.bytes);
    Key came{header.channel, lane.came[header.channel]++};
    if (came == key) {
      check_size(bytes);
      lane.stream.follow(ready);
      lane.receive(data.data, bytes);
      return std::make_shared<StreamEvent>(stream);
    }
    auto buffer = std::make_unique<StreamBuffer>(bytes, stream);
    lane.receive(buffer->data(), bytes);
    lane.aside[came] = std::move(buffer);
  }
  std::unique_ptr<StreamBuffer> buffer = std::move(lane.aside.extract(key).mapped());
  check_size(buffer->bytes());
  lane.stream.follow(ready);
  check_cuda(
      cudaMemcpyAsync(data.data, buffer->data(), data.bytes(), cudaMemcpyDeviceToDevice, stream),
      "copy a message");
  buffer->release(stream);
  return std::make_shared<StreamEvent>(stream);
}

class NcclLanes::PendingReceive final : public Work::Pending {
 public:
  PendingReceive(NcclLanes& lanes, int from, Key key, const View& data, std::string_view label)
      : lanes_(lanes),
        from_(from),
        key_(key),
        data_(data),
        label_(label),
        ready_(std::make_shared<StreamEvent>(lanes.queue_.stream())) {}
  void wait() override {
    follow_event(lanes_.queue_.stream(), lanes_.take(from_, key_, data_, ready_, label_));
  }

 private:
  NcclLanes& lanes_;
  int from_;
  Key key_;
  View data_;
  std::string label_;
  PeerEventRef ready_;
};

Work NcclLanes::receive(const View& data, int from, int channel, std::string_view label) {
  Key key{channel, incoming_[static_cast<std::size_t>(from)].wanted[channel]++};
  return Work(std::make_unique<PendingReceive>(*this, from, key, data, label));
}

}  // namespace bev
