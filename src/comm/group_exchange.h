// An operation of a group on its way: the call, and what the exchanges behind the collectives have
// in common. Each member sends straight to those that need its part.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "comm/mailroom.h"

namespace bev {

enum class GroupOp : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kSend,
  kReceive,
  kBarrier,
};
const char* name_of(GroupOp op);

inline std::byte* element_address(const View& view, std::int64_t element) {
  return static_cast<std::byte*>(view.data) +
         static_cast<std::size_t>(element) * size_of(view.dtype);
}

// A call of a collective on this rank.
struct GroupCall {
  Mailroom& room;
  const Group& group;
  MessageHead head;  // as sent to all, but for stage and receiver
  std::string label;
  View in, out;

  int me() const { return group.rank(); }
  int size() const { return group.size(); }
  int world_rank(int member) const { return group.members()[static_cast<std::size_t>(member)]; }
  const char* op_name() const { return name_of(static_cast<GroupOp>(head.op)); }

  Message message(int to, SharedBytes data, std::uint32_t stage = 0) const;
  // Elements of a view, to be sent.
  static SharedBytes copy(const View& view, std::int64_t begin, std::int64_t count);
};

// A slot per member; the peers send something in every stage.
class GroupExchange : public Exchange {
 public:
  GroupExchange(GroupCall call, std::vector<int> peers);
  explicit GroupExchange(GroupCall call);  // all others are peers

  const GroupCall& call() const { return call_; }
  std::vector<Wanted> wanted(std::uint32_t stage) const;

  void advance(std::vector<Message>&, std::vector<Wanted>&) override {}
  WaitRecord describe() const override;
  std::string title() const override;

 protected:
  const MessageHead& head_of(int member) const {
    return member == call_.me() ? call_.head : came[static_cast<std::size_t>(member)].head;
  }
  const SharedBytes& data_of(int member) const {
    return came[static_cast<std::size_t>(member)].data;
  }
  // Every peer is in the same collective of the same tensor.
  void check_same() const;
  void check_equal_counts() const;
  // The parts make up the whole that each member has. Returns where this rank's part begins.
  std::int64_t check_parts(std::int64_t MessageHead::*part, std::int64_t MessageHead::*whole) const;
  // Reduces what all members brought into `to`; this rank's own part is at `mine`.
  void reduce_into(void* to, const void* mine, std::int64_t count, Reduction reduction) const;

 private:
  std::string place(int member, const MessageHead& head, const std::string& label) const;

  GroupCall call_;
  std::vector<int> peers_;
};

}  // namespace bev
