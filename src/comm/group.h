// A group of ranks and its collectives. Groups are handed to whoever needs them; an absent axis is
// a group of size 1 whose collectives pass through, never a null.
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

// A pending operation: posted, and finished by wait(), after which the result may be read and the
// inputs may be changed. A posted operation needs no help to finish on the other ranks, so members
// may wait for several in any order. Dropping a Work that was not waited for (an exception passes)
// gives the operation up: its memory is not touched any more. An empty Work is finished.
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

// All members call the same collectives in the same order. `label` names the tensor or use in
// reports of a hang. Sums run in rank order, so every member gets the same bits, run after run.
class Group {
 public:
  virtual ~Group() = default;

  const std::string& name() const { return name_; }  // "tp", for messages
  int rank() const { return rank_; }                 // index of this rank in the group
  int size() const { return static_cast<int>(members_.size()); }
  std::span<const int> members() const { return members_; }  // world ranks

  // In place.
  virtual Work all_reduce(const View& data, Reduction reduction, std::string_view label) = 0;
  // out holds the members' inputs one after the other, in rank order; counts may differ.
  virtual Work all_gather(const View& in, const View& out, std::string_view label) = 0;
  // in holds one part per member in rank order, out receives the sum of this rank's parts. The
  // parts have the sizes of the members' outs.
  virtual Work reduce_scatter(const View& in, const View& out, std::string_view label) = 0;
  virtual Work broadcast(const View& data, int root, std::string_view label) = 0;
  // send_counts[i] elements for member i, one after the other; likewise received.
  virtual Work all_to_all(const View& in, std::span<const std::int64_t> send_counts,
                          const View& out, std::span<const std::int64_t> receive_counts,
                          std::string_view label) = 0;
  // Messages between two members arrive in the order sent, on each channel by itself. A send never
  // waits for its receive.
  virtual Work send(const View& data, int to, int channel, std::string_view label) = 0;
  virtual Work receive(const View& data, int from, int channel, std::string_view label) = 0;
  virtual void barrier(std::string_view label) = 0;
  // Whether what a device records (kernels/device.h) may have these operations in it. Hosts then
  // meet in them while it is recorded, as always, and not when it is started.
  virtual bool recordable() const { return false; }

  // The same members, for values in host memory: groups of a device with memory of its own have one
  // beside them.
  Group& host() { return host_ ? *host_ : *this; }
  void keep_host(std::unique_ptr<Group> host) { host_ = std::move(host); }

  // Another group of the same members, whose data lies in `memory` as this rank sees it: every
  // member calls it once. Null where members are in several processes.
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

// Makes groups for the memory that a rank computes in.
class GroupMaker {
 public:
  virtual ~GroupMaker() = default;
  // Of the members of a group that talks through host memory.
  virtual std::unique_ptr<Group> make_group(std::unique_ptr<Group> host) = 0;
};

// A group of this rank alone.
std::unique_ptr<Group> make_single_group(std::string name, int world_rank);

}  // namespace bev
