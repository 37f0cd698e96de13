// Messages between the members of a NCCL group. NCCL's operations on a communicator happen one
// after the other, and a send ends with its receive, so each direction of each pair of members has
// a communicator and a stream of its own, a lane:
//
//   sender     compute --> copy of the data --> [lane: send ]   goes on at once
//   its host   -- channel and size, over the host's group -->
//   receiver                                     [lane: receive] --> compute
//
// The receiver takes messages off a lane in the order in which they were sent and puts those of
// other channels aside, so no order of receives can block the lane.
//
// In a recording messages are sent from where they lie, so there a send does wait for its receive:
// rings may be recorded, pipelines may not.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cuda/nccl_communicator.h"
#include "backend/cuda/stream_event.h"

namespace bev {

class NcclLanes {
 public:
  // All members make it together, at the first message of any of them.
  NcclLanes(Group& host, CudaQueue& queue);
  ~NcclLanes();
  NcclLanes(const NcclLanes&) = delete;
  NcclLanes& operator=(const NcclLanes&) = delete;

  Work send(const View& data, int to, int channel, std::string_view label);
  Work receive(const View& data, int from, int channel, std::string_view label);

 private:
  class PendingReceive;
  using Key = std::pair<std::int64_t, std::uint64_t>;  // channel, number of the message there
  struct Lane {
    NcclCommunicator comm;
    SideStream stream;
    void connect(const NcclId& id, int rank);
    void send(const void* data, std::size_t bytes);
    void receive(void* data, std::size_t bytes);
  };
  struct Incoming : Lane {
    std::map<std::int64_t, std::uint64_t> wanted, came;  // messages so far, by channel
    std::map<Key, std::unique_ptr<StreamBuffer>> aside;  // came before they were wanted
  };
  // All members in the same order, so that no two of them wait for each other in different lanes.
  template <class Call>
  void for_lanes(const Call& call);
  void connect(int from, int to);
  Work send_copy(Lane& lane, const View& data);
  // Ends with its receive.
  Work send_in_place(Lane& lane, const View& data);
  // The message that `key` names, into `data` from `ready` on.
  PeerMomentRef take(int from, const Key& key, const View& data, const PeerMomentRef& ready,
                     std::string_view label);

  Group& host_;
  CudaQueue& queue_;
  SideStream copies_;
  std::vector<Lane> outgoing_;      // by member
  std::vector<Incoming> incoming_;  // by member
};

}  // namespace bev
