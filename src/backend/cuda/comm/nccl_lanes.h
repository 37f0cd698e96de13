// Point-to-point messages (send/receive) in a NCCL group. Operations on a communicator run in order
// and a send completes with its receive, so each direction of each pair of members has its own
// communicator and stream, a lane:
//
//   sender     compute --> copy of the data --> [lane: send ]   continues at once
//   its host   -- channel and size, over the host's group -->
//   receiver                                     [lane: receive] --> compute
//
// The receiver takes messages off a lane in the order in which they were sent and buffers those of
// other channels, so no order of receives can block the lane.
//
// Under CUDA graph capture messages are sent in place, so that a send waits for its receive: rings
// can be captured, pipelines cannot.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cuda/comm/nccl_communicator.h"
#include "backend/cuda/runtime/stream_event.h"

namespace bev {

class NcclLanes {
 public:
  // Collective over all members, at the first message of any of them.
  NcclLanes(Group& host, CudaQueue& queue);
  ~NcclLanes();
  NcclLanes(const NcclLanes&) = delete;
  NcclLanes& operator=(const NcclLanes&) = delete;

  Work send(const View& data, int to, int channel, std::string_view label);
  Work receive(const View& data, int from, int channel, std::string_view label);

 private:
  class PendingReceive;
  using Key = std::pair<std::int64_t, std::uint64_t>;  // channel, sequence number in it
  struct Lane {
    NcclCommunicator comm;
    SideStream stream;
    void connect(const NcclId& id, int rank);
    void send(const void* data, std::size_t bytes);
    void receive(void* data, std::size_t bytes);
  };
  struct Incoming : Lane {
    std::map<std::int64_t, std::uint64_t> wanted, came;  // messages so far, by channel
    std::map<Key, std::unique_ptr<StreamBuffer>> aside;  // arrived before their receive
  };
  // All members iterate in the same order, so that no two of them wait for each other in different
  // lanes.
  template <class Call>
  void for_lanes(const Call& call);
  void connect(int from, int to);
  Work send_copy(Lane& lane, const View& data);
  // Completes with its receive.
  Work send_in_place(Lane& lane, const View& data);
  // Receives the message `key` into `data`, which may be written after `ready`.
  PeerEventRef take(int from, const Key& key, const View& data, const PeerEventRef& ready,
                    std::string_view label);

  Group& host_;
  CudaQueue& queue_;
  SideStream copies_;
  std::vector<Lane> outgoing_;      // by member
  std::vector<Incoming> incoming_;  // by member
};

}  // namespace bev
