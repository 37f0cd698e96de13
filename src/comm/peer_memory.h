// Memory that all ranks of a process can access, as one of them sees it. Groups of such ranks agree
// on the data movement (thread_group.h); this executes it. For device memory everything is
// asynchronous: work is enqueued on streams, and only other enqueued work waits for it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/host_collective.h"

namespace bev {

// Event that completes when some enqueued work is done.
class PeerEvent {
 public:
  virtual ~PeerEvent() = default;
};
using PeerEventRef = std::shared_ptr<const PeerEvent>;  // null: complete

// Copy of data in transit from one rank to another; owned by neither.
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

  // Event after all work that this rank has enqueued so far.
  virtual PeerEventRef now() = 0;
  // Makes the work that this rank enqueues from now on wait for the event. A device error surfaces
  // in the next enqueued call.
  virtual void follow(const PeerEventRef& event) noexcept = 0;

  // Splits a collective into units of work; none if there is nothing to move.
  virtual std::vector<CollectiveSlice> cut(const CollectivePlan& plan) const = 0;
  // Executes or enqueues a slice; any member may run any slice. The event is after its completion.
  // Throws Error if the device fails, which is allowed only for collectives of one slice.
  virtual PeerEventRef run(const CollectivePlan& plan, const CollectiveSlice& slice,
                           std::span<const CollectivePost> posts) = 0;

  // Copies this rank's data into a message; the data may be changed after the event `packed`.
  virtual std::shared_ptr<PeerMessage> pack(const View& data, PeerEventRef& packed) = 0;
  // Copies a message to this rank's memory `to` (same size), which may be written after `ready`.
  virtual PeerEventRef unpack(PeerMessage& message, const View& to, const PeerEventRef& ready) = 0;
};

// Host memory: everything completes synchronously.
std::shared_ptr<PeerMemory> make_host_peer_memory();

}  // namespace bev
