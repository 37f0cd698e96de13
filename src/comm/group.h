// Communicator: a group of ranks and its collectives. An absent axis is a group of size 1 whose
// collectives pass the input through, never a null pointer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/view.h"

namespace bev {

class PeerMemory;

enum class Reduction : std::uint8_t { kSum, kMax };

// Handle of an asynchronous operation. After wait() the result may be read and the inputs may be
// changed. A posted operation completes on the other ranks without this rank, so members may wait
// for several in any order. Destroying a Work that was not waited for (an exception unwinds)
// cancels it: its memory is not touched afterwards. An empty Work is complete.
class Work {
 public:
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual void wait() = 0;
  };
  Work() = default;
  explicit Work(std::unique_ptr<Pending> pending) : pending_(std::move(pending)) {}
  void wait() {
    if (pending_) pending_->wait();
    pending_.reset();
  }

 private:
  std::unique_ptr<Pending> pending_;
};

// All members call the same collectives in the same order. `label` names the tensor or its use in
// hang reports. Reductions add in rank order, so all members get identical bits in every run.
class Group {
 public:
  virtual ~Group() = default;

  const std::string& name() const { return name_; }  // "tp"; for messages
  int rank() const { return rank_; }                 // index of this rank in the group
  int size() const { return static_cast<int>(members_.size()); }
  std::span<const int> members() const { return members_; }  // world ranks

  // All-reduce in place.
  virtual Work all_reduce(const View& data, Reduction reduction, std::string_view label) = 0;
  // All-gather: out is the concatenation of the members' inputs in rank order; counts may differ.
  virtual Work all_gather(const View& in, const View& out, std::string_view label) = 0;
  // Reduce-scatter: in is the concatenation of one part per member in rank order; out receives the
  // sum of this rank's parts. Part sizes are those of the members' outs and may differ.
  virtual Work reduce_scatter(const View& in, const View& out, std::string_view label) = 0;
  virtual Work broadcast(const View& data, int root, std::string_view label) = 0;
  // in is the concatenation of send_counts[i] elements for each member i; out is laid out likewise
  // by receive_counts.
  virtual Work all_to_all(const View& in, std::span<const std::int64_t> send_counts,
                          const View& out, std::span<const std::int64_t> receive_counts,
                          std::string_view label) = 0;
  // Point-to-point messages. Those between two members on the same channel arrive in order. A send
  // never waits for its receive.
  virtual Work send(const View& data, int to, int channel, std::string_view label) = 0;
  virtual Work receive(const View& data, int from, int channel, std::string_view label) = 0;
  virtual void barrier(std::string_view label) = 0;
  // True if these operations may be captured in a CUDA graph (kernels/device.h). The hosts then
  // rendezvous during capture, as always, and not when the graph is launched.
  virtual bool capturable() const { return false; }

  // Group of the same members for values in host memory: a device's group owns one, any other group
  // is its own.
  Group& host() { return host_ ? *host_ : *this; }
  void keep_host(std::unique_ptr<Group> host) { host_ = std::move(host); }

  // Creates a group of the same members whose data lies in `memory` as this rank accesses it; every
  // member calls it once. Null if the members are in several processes.
  virtual std::unique_ptr<Group> make_peer_group(std::shared_ptr<PeerMemory>) { return nullptr; }

 protected:
  Group(std::string name, int rank, std::vector<int> members)
      : name_(std::move(name)), rank_(rank), members_(std::move(members)) {}

 private:
  std::string name_;
  int rank_;
  std::vector<int> members_;
  std::unique_ptr<Group> host_;
};

// Creates groups whose collectives work on the memory that a rank computes in.
class GroupMaker {
 public:
  virtual ~GroupMaker() = default;
  // Creates a group with the members of `host`, which communicates through host memory.
  virtual std::unique_ptr<Group> make_group(std::unique_ptr<Group> host) = 0;
};

// Creates a group of this rank alone.
std::unique_ptr<Group> make_single_group(std::string name, int world_rank);

}  // namespace bev
