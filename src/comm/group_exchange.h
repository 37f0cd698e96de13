// Collectives over messages: the call, and the part common to all collective algorithms. Each
// member sends directly to the members that need its part (no ring or tree).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/group.h"
#include "comm/group_op.h"
#include "comm/process/mailroom.h"

namespace bev {

inline std::byte* element_address(const View& view, std::int64_t element) {
  return static_cast<std::byte*>(view.data) +
         static_cast<std::size_t>(element) * size_of(view.dtype);
}

// A collective call on this rank.
struct GroupCall {
  Mailroom& room;
  const Group& group;
  MessageHead head;  // header sent to all; only stage and receiver differ
  std::string label;
  View in, out;

  int me() const { return group.rank(); }
  int size() const { return group.size(); }
  int world_rank(int member) const { return group.members()[static_cast<std::size_t>(member)]; }
  const char* op_name() const { return name_of(static_cast<GroupOp>(head.op)); }

  Message message(int to, SharedBytes data, std::uint32_t stage = 0) const;
  // Copies elements of a view into a send buffer.
  static SharedBytes copy(const View& view, std::int64_t begin, std::int64_t count);
};

// State machine of one collective on this rank: a slot per member; every peer sends one message per
// stage.
class GroupExchange : public Exchange {
 public:
  GroupExchange(GroupCall call, std::vector<int> peers);
  explicit GroupExchange(GroupCall call);  // all other members are peers

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
  // Throws unless every peer is in the same collective with the same label and dtype.
  void check_same() const;
  void check_equal_counts() const;
  // Checks that the parts add up to the whole on each member. Returns the offset of this rank's
  // part.
  std::int64_t check_parts(std::int64_t MessageHead::*part, std::int64_t MessageHead::*whole) const;
  // Reduces all members' data into `to`, in rank order; this rank's own part is at `mine`.
  void reduce_into(void* to, const void* mine, std::int64_t count, Reduction reduction) const;

 private:
  std::string place(int member, const MessageHead& head, const std::string& label) const;

  GroupCall call_;
  std::vector<int> peers_;
};

}  // namespace bev
