#include "comm/process/message_group.h"

#include <cstring>
#include <span>
#include <utility>

#include "comm/group_exchange.h"

namespace bev {

namespace {

// All-reduce for small tensors, one round: everyone sends its whole tensor to all others and
// reduces.
class WholeReduce : public GroupExchange {
 public:
  WholeReduce(GroupCall call, Reduction reduction)
      : GroupExchange(std::move(call)), reduction_(reduction) {}
  void finish() override {
    check_equal_counts();
    const View& data = call().in;
    reduce_into(data.data, data.data, data.numel(), reduction_);
  }

 private:
  Reduction reduction_;
};

// All-reduce as reduce-scatter and all-gather:
//   stage 0   slice i of each rank -> rank i, which reduces it
//   stage 1   reduced slice i -> every rank
class SlicedReduce : public GroupExchange {
 public:
  SlicedReduce(GroupCall call, Reduction reduction)
      : GroupExchange(std::move(call)), reduction_(reduction) {}

  static std::int64_t slice_begin(const GroupCall& call, int member) {
    return call.in.numel() * member / call.size();
  }
  static std::int64_t slice_count(const GroupCall& call, int member) {
    return slice_begin(call, member + 1) - slice_begin(call, member);
  }
  void advance(std::vector<Message>& out, std::vector<Wanted>& wanted_next) override {
    if (std::exchange(summed_, true)) return;
    check_equal_counts();
    const GroupCall& mine = call();
    std::int64_t begin = slice_begin(mine, mine.me()), count = slice_count(mine, mine.me());
    void* slice = element_address(mine.in, begin);
    reduce_into(slice, slice, count, reduction_);
    SharedBytes sum = mine.copy(mine.in, begin, count);
    for (int i = 0; i < mine.size(); ++i) {
      if (i != mine.me()) out.push_back(mine.message(i, sum, 1));
    }
    wanted_next = wanted(1);
  }
  void finish() override {
    for (int i = 0; i < call().size(); ++i) {
      if (i == call().me() || data_of(i).size() == 0) continue;
      std::memcpy(element_address(call().in, slice_begin(call(), i)), data_of(i).data(),
                  data_of(i).size());
    }
  }

 private:
  Reduction reduction_;
  bool summed_ = false;
};

class Gather : public GroupExchange {
 public:
  using GroupExchange::GroupExchange;
  void finish() override {
    const View &in = call().in, &out = call().out;
    std::int64_t begin = check_parts(&MessageHead::in_count, &MessageHead::out_count);
    if (element_address(out, begin) != in.data && in.bytes() > 0) {
      std::memcpy(element_address(out, begin), in.data, in.bytes());
    }
    begin = 0;
    for (int i = 0; i < call().size(); ++i) {
      bool theirs = i != call().me() && data_of(i).size() > 0;
      if (theirs) std::memcpy(element_address(out, begin), data_of(i).data(), data_of(i).size());
      begin += head_of(i).in_count;
    }
  }
};

// Only the owner knows the size of its part, so sizes are sent first:
//   stage 0   sizes -> all
//   stage 1   part i of each rank -> rank i, which reduces them
class ReduceScatter : public GroupExchange {
 public:
  using GroupExchange::GroupExchange;
  void advance(std::vector<Message>& out, std::vector<Wanted>& wanted_next) override {
    if (std::exchange(sized_, true)) return;
    begin_ = check_parts(&MessageHead::out_count, &MessageHead::in_count);
    const GroupCall& mine = call();
    std::int64_t begin = 0;
    for (int i = 0; i < mine.size(); ++i) {
      std::int64_t count = head_of(i).out_count;
      if (i != mine.me()) out.push_back(mine.message(i, mine.copy(mine.in, begin, count), 1));
      begin += count;
    }
    wanted_next = wanted(1);
  }
  void finish() override {
    reduce_into(call().out.data, element_address(call().in, begin_), call().out.numel(),
                Reduction::kSum);
  }

 private:
  bool sized_ = false;
  std::int64_t begin_ = 0;
};

class AllToAll : public GroupExchange {
 public:
  AllToAll(GroupCall call, std::int64_t own_begin, std::span<const std::int64_t> counts)
      : GroupExchange(std::move(call)),
        own_begin_(own_begin),
        counts_(counts.begin(), counts.end()) {}
  void finish() override {
    check_same();
    std::size_t item = size_of(call().in.dtype);
    std::int64_t begin = 0;
    for (int i = 0; i < call().size(); ++i) {
      std::int64_t count = counts_[static_cast<std::size_t>(i)];
      bool own = i == call().me();
      std::size_t bytes = static_cast<std::size_t>(count) * item;
      BEV_CHECK(own || data_of(i).size() == bytes, ErrorKind::kComm, "all_to_all of ", call().label,
                ": rank ", call().world_rank(i), " sends ", data_of(i).size() / item,
                " elements, rank ", call().world_rank(call().me()), " expects ", count);
      const void* from = own ? element_address(call().in, own_begin_) : data_of(i).data();
      if (bytes > 0) std::memcpy(element_address(call().out, begin), from, bytes);
      begin += count;
    }
  }

 private:
  std::int64_t own_begin_;
  std::vector<std::int64_t> counts_;
};

// Waits for the root's data and copies it; on the root there is nothing to wait for.
class Broadcast : public GroupExchange {
 public:
  Broadcast(GroupCall call, std::vector<int> root)
      : GroupExchange(std::move(call), root), root_(root) {}
  void finish() override {
    check_equal_counts();
    for (int root : root_) {
      if (data_of(root).size() > 0) {
        std::memcpy(call().in.data, data_of(root).data(), data_of(root).size());
      }
    }
  }

 private:
  std::vector<int> root_;  // empty on the root
};

class Barrier : public GroupExchange {
 public:
  using GroupExchange::GroupExchange;
  void finish() override { check_same(); }
};

class Receive : public GroupExchange {
 public:
  Receive(GroupCall call, int from) : GroupExchange(std::move(call), {from}), from_(from) {}
  void finish() override {
    const SharedBytes& bytes = data_of(from_);
    BEV_CHECK(bytes.size() == call().in.bytes(), ErrorKind::kComm, "receive of ", call().label,
              ": ", bytes.size(), " bytes came from rank ", call().world_rank(from_), ", expected ",
              call().in.bytes());
    if (bytes.size() > 0) std::memcpy(call().in.data, bytes.data(), bytes.size());
  }
  std::string title() const override {
    return concat(GroupExchange::title(), " from rank ", call().world_rank(from_));
  }

 private:
  int from_;
};

class Ticket : public Work::Pending {
 public:
  explicit Ticket(std::unique_ptr<GroupExchange> exchange)
      : exchange_(std::move(exchange)),
        room_(exchange_->call().room),
        rank_(exchange_->call().world_rank(exchange_->call().me())) {}
  ~Ticket() override { room_.forget(rank_, *exchange_); }
  void post() { room_.post(rank_, *exchange_, exchange_->wanted(0)); }
  void wait() override {
    room_.wait(rank_, *exchange_);
    exchange_->finish();
  }

 private:
  std::unique_ptr<GroupExchange> exchange_;
  Mailroom& room_;
  int rank_;
};

Work start(std::unique_ptr<GroupExchange> exchange) {
  auto ticket = std::make_unique<Ticket>(std::move(exchange));
  ticket->post();
  return Work(std::move(ticket));
}

// Sends the same message to all other members.
void send_to_others(const GroupCall& call, const SharedBytes& data) {
  for (int i = 0; i < call.size(); ++i) {
    if (i != call.me()) call.room.send(call.message(i, data));
  }
}

// Identity of a call within the run.
struct CallId {
  std::uint32_t group = 0;
  int channel = -1;
  std::uint64_t sequence = 0;
};

GroupCall make_call(Mailroom& room, const Group& group, GroupOp op, std::string_view label,
                    const View& in, const View& out, const CallId& place) {
  GroupCall call{room, group, {}, std::string(label), in, out};
  BEV_CHECK(in.dtype == out.dtype, ErrorKind::kComm, name_of(op), " of ", label, ": from ",
            name_of(in.dtype), " to ", name_of(out.dtype));
  BEV_CHECK(!room.aborted(), ErrorKind::kComm, name_of(op), " of ", label, ": another rank failed");
  call.head.op = static_cast<std::uint8_t>(op);
  call.head.dtype = static_cast<std::uint8_t>(in.dtype);
  call.head.from = call.world_rank(call.me());
  call.head.group = place.group;
  call.head.channel = place.channel;
  call.head.sequence = place.sequence;
  call.head.in_count = in.numel();
  call.head.out_count = out.numel();
  return call;
}

}  // namespace

MessageGroup::MessageGroup(std::string name, int rank, std::vector<int> members,
                           std::uint32_t number, Mailroom& room)
    : Group(std::move(name), rank, std::move(members)), number_(number), room_(room) {}

Work MessageGroup::all_reduce(const View& data, Reduction reduction, std::string_view label) {
  // Up to this size a second round trip costs more than the bytes it saves; with two ranks it saves
  // none.
  constexpr std::size_t kWholeBytes = 32 << 10;
  GroupCall call =
      make_call(room_, *this, GroupOp::kAllReduce, label, data, data, {number_, -1, calls_++});
  if (size() == 2 || data.bytes() <= kWholeBytes) {
    send_to_others(call, call.copy(data, 0, data.numel()));
    return start(std::make_unique<WholeReduce>(std::move(call), reduction));
  }
  for (int i = 0; i < size(); ++i) {
    if (i == rank()) continue;
    room_.send(call.message(i, call.copy(data, SlicedReduce::slice_begin(call, i),
                                         SlicedReduce::slice_count(call, i))));
  }
  return start(std::make_unique<SlicedReduce>(std::move(call), reduction));
}

Work MessageGroup::all_gather(const View& in, const View& out, std::string_view label) {
  GroupCall call =
      make_call(room_, *this, GroupOp::kAllGather, label, in, out, {number_, -1, calls_++});
  send_to_others(call, call.copy(in, 0, in.numel()));
  return start(std::make_unique<Gather>(std::move(call)));
}

Work MessageGroup::reduce_scatter(const View& in, const View& out, std::string_view label) {
  GroupCall call =
      make_call(room_, *this, GroupOp::kReduceScatter, label, in, out, {number_, -1, calls_++});
  send_to_others(call, {});
  return start(std::make_unique<ReduceScatter>(std::move(call)));
}

Work MessageGroup::broadcast(const View& data, int root, std::string_view label) {
  GroupCall call =
      make_call(room_, *this, GroupOp::kBroadcast, label, data, data, {number_, -1, calls_++});
  bool sends = rank() == root;
  if (sends) send_to_others(call, call.copy(data, 0, data.numel()));
  return start(
      std::make_unique<Broadcast>(std::move(call), sends ? std::vector<int>{} : std::vector{root}));
}

Work MessageGroup::all_to_all(const View& in, std::span<const std::int64_t> send_counts,
                              const View& out, std::span<const std::int64_t> receive_counts,
                              std::string_view label) {
  GroupCall call =
      make_call(room_, *this, GroupOp::kAllToAll, label, in, out, {number_, -1, calls_++});
  std::int64_t begin = 0, own = 0;
  for (int i = 0; i < size(); ++i) {
    std::int64_t count = send_counts[static_cast<std::size_t>(i)];
    if (i == rank()) own = begin;
    if (i != rank()) room_.send(call.message(i, call.copy(in, begin, count)));
    begin += count;
  }
  return start(std::make_unique<AllToAll>(std::move(call), own, receive_counts));
}

Work MessageGroup::send(const View& data, int to, int channel, std::string_view label) {
  GroupCall call = make_call(room_, *this, GroupOp::kSend, label, data, data,
                             {number_, channel, sent_[{to, channel}]++});
  room_.send(call.message(to, call.copy(data, 0, data.numel())));
  return {};
}

Work MessageGroup::receive(const View& data, int from, int channel, std::string_view label) {
  GroupCall call = make_call(room_, *this, GroupOp::kReceive, label, data, data,
                             {number_, channel, received_[{from, channel}]++});
  return start(std::make_unique<Receive>(std::move(call), from));
}

void MessageGroup::barrier(std::string_view label) {
  GroupCall call =
      make_call(room_, *this, GroupOp::kBarrier, label, {}, {}, {number_, -1, calls_++});
  send_to_others(call, {});
  start(std::make_unique<Barrier>(std::move(call))).wait();
}

}  // namespace bev
