// Memory that the ranks of a process all reach, as one of them sees it. Groups of such ranks agree
// on what is to be moved (thread_group.h); this moves it. In memory of a device nothing happens at
// once: work is put into queues, and nobody waits for it but other work.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/host_collective.h"

namespace bev {

// A moment that comes when some queued work is done.
class PeerMoment {
 public:
  virtual ~PeerMoment() = default;
};
using PeerMomentRef = std::shared_ptr<const PeerMoment>;  // null: it has come

// A copy of data on its way from one rank to another; it belongs to neither.
class PeerMessage {
 public:
  explicit PeerMessage(std::size_t bytes) : bytes_(bytes) {}
  virtual ~PeerMessage() = default;
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
};

class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  // When all that this rank has queued so far is done.
  virtual PeerMomentRef now() = 0;
  // What this rank queues from here on waits for the moment. An error of the device shows in
  // whatever is queued next.
  virtual void follow(const PeerMomentRef& moment) noexcept = 0;

  // How a collective is cut into pieces of work, none where there is nothing to move.
  virtual std::vector<CollectiveSlice> cut(const CollectivePlan& plan) const = 0;
  // Any member may run any piece. Returns when it is done. Throws Error when the device fails; only
  // collectives of one piece may.
  virtual PeerMomentRef run(const CollectivePlan& plan, const CollectiveSlice& slice,
                            std::span<const CollectivePost> posts) = 0;

  // Copies data of this rank; it may be changed once `packed` has come.
  virtual std::shared_ptr<PeerMessage> pack(const View& data, PeerMomentRef& packed) = 0;
  // Copies a message of as many bytes to this rank, whose memory may be written from `ready` on.
  virtual PeerMomentRef unpack(PeerMessage& message, const View& to,
                               const PeerMomentRef& ready) = 0;
};

// The host's: all is done at once.
std::shared_ptr<PeerMemory> make_host_peer_memory();

}  // namespace bev
