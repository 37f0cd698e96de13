#include "comm/group_exchange.h"

#include "comm/reduce.h"

namespace bev {

Message GroupCall::message(int to, SharedBytes data, std::uint32_t stage) const {
  Message out_going{head, label, std::move(data)};
  out_going.head.to = world_rank(to);
  out_going.head.stage = stage;
  return out_going;
}

SharedBytes GroupCall::copy(const View& view, std::int64_t begin, std::int64_t count) {
  return SharedBytes::copy_of(element_address(view, begin),
                              static_cast<std::size_t>(count) * size_of(view.dtype));
}

GroupExchange::GroupExchange(GroupCall call, std::vector<int> peers)
    : call_(std::move(call)), peers_(std::move(peers)) {
  std::span<const int> members = call_.group.members();
  slot_members.assign(members.begin(), members.end());
  came.resize(members.size());
  missing.resize(members.size(), false);
}

GroupExchange::GroupExchange(GroupCall call) : GroupExchange(std::move(call), {}) {
  for (int i = 0; i < call_.size(); ++i) {
    if (i != call_.me()) peers_.push_back(i);
  }
}

std::vector<Exchange::Wanted> GroupExchange::wanted(std::uint32_t stage) const {
  std::vector<Wanted> all;
  for (int peer : peers_) {
    all.push_back(
        {{call_.head.group, call_.head.channel, call_.world_rank(peer), stage, call_.head.sequence},
         static_cast<std::size_t>(peer)});
  }
  return all;
}

WaitRecord GroupExchange::describe() const {
  WaitRecord record;
  record.collective = call_.op_name();
  record.label = call_.label;
  record.group = call_.group.name();
  record.data = concat(call_.in.shape, " ", name_of(call_.in.dtype));
  return record;
}

std::string GroupExchange::title() const {
  return concat(call_.op_name(), " of ", call_.label, " on rank ", call_.world_rank(call_.me()));
}

void GroupExchange::check_same() const {
  for (int peer : peers_) {
    const Message& other = came[static_cast<std::size_t>(peer)];
    bool same = other.head.op == call_.head.op && other.text == call_.label &&
                other.head.dtype == call_.head.dtype;
    if (same) continue;
    std::string places[] = {place(call_.me(), call_.head, call_.label),
                            place(peer, other.head, other.text)};
    if (peer < call_.me()) std::swap(places[0], places[1]);
    BEV_FAIL(ErrorKind::kComm, "ranks meet in different collectives: ", places[0], ", ", places[1]);
  }
}

void GroupExchange::check_equal_counts() const {
  check_same();
  for (int peer : peers_) {
    std::int64_t theirs = head_of(peer).in_count;
    BEV_CHECK(theirs == call_.head.in_count, ErrorKind::kComm, call_.op_name(), " of ", call_.label,
              ": ranks bring ", Shape{call_.head.in_count}, " and ", Shape{theirs});
  }
}

std::int64_t GroupExchange::check_parts(std::int64_t MessageHead::*part,
                                        std::int64_t MessageHead::*whole) const {
  check_same();
  std::int64_t total = 0, begin = 0;
  for (int i = 0; i < call_.size(); ++i) {
    if (i == call_.me()) begin = total;
    total += head_of(i).*part;
  }
  for (int i = 0; i < call_.size(); ++i) {
    BEV_CHECK(head_of(i).*whole == total, ErrorKind::kComm, call_.op_name(), " of ", call_.label,
              ": rank ", call_.world_rank(i), " has ", Shape{head_of(i).*whole}, " for parts of ",
              total, " elements in all");
  }
  return begin;
}

void GroupExchange::reduce_into(void* to, const void* mine, std::int64_t count,
                                Reduction reduction) const {
  std::vector<const void*> sources;
  for (int i = 0; i < call_.size(); ++i) {
    sources.push_back(i == call_.me() ? mine : data_of(i).data());
  }
  reduce_elements(call_.in.dtype, reduction, sources, to, count);
}

std::string GroupExchange::place(int member, const MessageHead& head,
                                 const std::string& label) const {
  return concat("rank ", call_.world_rank(member), " in ", name_of(static_cast<GroupOp>(head.op)),
                " of ", label, " (", name_of(static_cast<Dtype>(head.dtype)), ")");
}

}  // namespace bev
