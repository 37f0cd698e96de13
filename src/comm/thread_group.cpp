// Shared-memory collectives. Members post their arguments and continue. The last post makes the
// operation ready; its slices are then claimed one by one by the last poster and by waiting
// members.
//
//   rank 0   post 0 ..... post 1 ........ wait 1: slices . . wait 0
//   rank 1   ....... post 0: all slices ............ post 1: slices ......
//
// No member has to come back for an operation to finish on the others, so waits may be in any
// order. In device memory a collective is one slice, which enqueues it on a stream; a waiting
// member makes its own stream wait for the event.
#include "comm/thread_group.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>

#include "base/error.h"
#include "comm/host_collective.h"

namespace bev {

namespace {

struct Operation {
  explicit Operation(std::size_t members) : posts(members), present(members, false) {}

  // Constant after kOpen; before that, guarded by the meeting's mutex.
  std::vector<CollectivePost> posts;
  std::vector<bool> present;
  CollectivePlan plan;
  std::vector<CollectiveSlice> slices;
  std::string error;  // the posts do not match, or the device failed
  PeerEventRef over;  // event of the result; valid in state kOver

  enum class State { kOpen, kRunning, kOver };
  State state = State::kOpen;  // guarded by the mutex
  std::atomic<std::size_t> claimed{0}, done{0};

  // Called when all members have posted.
  void start(std::span<const int> members, const PeerMemory& memory) {
    try {
      check_posts(posts, members);
      plan = plan_collective(posts);
      slices = memory.cut(plan);
    } catch (const Error& mismatch) {
      error = mismatch.what();
    }
    state = slices.empty() ? State::kOver : State::kRunning;
  }
};

struct Mailbox {
  std::uint64_t sent = 0, wanted = 0;  // the n-th receive gets the n-th message
  std::map<std::uint64_t, std::shared_ptr<PeerMessage>> messages;
};

}  // namespace

class ThreadMeeting {
 public:
  ThreadMeeting(ThreadFabric& owner, std::string group, std::vector<int> ranks)
      : fabric(owner), name(std::move(group)), members(std::move(ranks)) {}

  ThreadFabric& fabric;
  const std::string name;
  const std::vector<int> members;

  std::mutex mutex;  // guards the following and the operations' states
  std::condition_variable changed;
  std::map<std::array<int, 3>, Mailbox> mail;  // key: from, to, channel

  // Posts the member's operation number `sequence`. Its memory may be accessed until it is finished
  // or taken back.
  std::shared_ptr<Operation> post(int member, std::uint64_t sequence, CollectivePost post,
                                  PeerMemory& memory);
  // Executes the remaining slices of an operation that is no longer open, and waits for those of
  // others.
  void finish(Operation& operation, PeerMemory& memory);
  // Returns false if it is too late: the operation runs or is complete.
  bool take_back(Operation& operation, int member);
  // Meeting of the same members for another memory.
  std::shared_ptr<ThreadMeeting> peers();

 private:
  void run_slices(Operation& operation, PeerMemory& memory);

  // Indexed by sequence number - first_open_.
  std::deque<std::shared_ptr<Operation>> open_;
  std::uint64_t first_open_ = 0;
  std::shared_ptr<ThreadMeeting> peers_;
};

std::shared_ptr<Operation> ThreadMeeting::post(int member, std::uint64_t sequence,
                                               CollectivePost post, PeerMemory& memory) {
  std::unique_lock lock(mutex);
  auto index = static_cast<std::size_t>(sequence - first_open_);
  if (index == open_.size()) open_.push_back(std::make_shared<Operation>(members.size()));
  std::shared_ptr<Operation> operation = open_[index];
  operation->posts[static_cast<std::size_t>(member)] = std::move(post);
  operation->present[static_cast<std::size_t>(member)] = true;
  if (std::ranges::find(operation->present, false) != operation->present.end()) return operation;
  // Members post in order: none looks up this operation or an older one again.
  open_.erase(open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(index) + 1);
  first_open_ = sequence + 1;
  operation->start(members, memory);
  // A single slice is finished before anyone could help.
  if (operation->slices.size() != 1) changed.notify_all();
  lock.unlock();
  run_slices(*operation, memory);
  return operation;
}

void ThreadMeeting::run_slices(Operation& operation, PeerMemory& memory) {
  std::size_t count = operation.slices.size();
  for (std::size_t i = operation.claimed++; i < count; i = operation.claimed++) {
    try {
      PeerEventRef over = memory.run(operation.plan, operation.slices[i], operation.posts);
      if (over) operation.over = std::move(over);
    } catch (const Error& failure) {
      operation.error = failure.what();
    }
    if (++operation.done < count) continue;
    std::lock_guard lock(mutex);
    operation.state = Operation::State::kOver;
    changed.notify_all();
  }
}

void ThreadMeeting::finish(Operation& operation, PeerMemory& memory) {
  run_slices(operation, memory);
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return operation.state == Operation::State::kOver; });
  }
  memory.follow(operation.over);
}

bool ThreadMeeting::take_back(Operation& operation, int member) {
  std::lock_guard lock(mutex);
  if (operation.state != Operation::State::kOpen) return false;
  operation.present[static_cast<std::size_t>(member)] = false;
  return true;
}

std::shared_ptr<ThreadMeeting> ThreadMeeting::peers() {
  std::lock_guard lock(mutex);
  if (!peers_) peers_ = std::make_shared<ThreadMeeting>(fabric, name, members);
  return peers_;
}

namespace {

// A member's wait for an action of the others.
class MemberWait : public Work::Pending, public ThreadFabric::Waiting {
 public:
  bool describe(WaitRecord& record) const override {
    std::lock_guard lock(meeting_->mutex);
    if (has_come()) return false;
    record.group = meeting_->name;
    fill(record);
    return true;
  }
  void wake() const override {
    std::lock_guard lock(meeting_->mutex);
    meeting_->changed.notify_all();
  }

 protected:
  using Meeting = std::shared_ptr<ThreadMeeting>;
  using Memory = std::shared_ptr<PeerMemory>;
  MemberWait(Meeting meeting, int member, Memory memory)
      : meeting_(std::move(meeting)), member_(member), memory_(std::move(memory)) {}

  int world_rank(int member) const { return meeting_->members[static_cast<std::size_t>(member)]; }
  // Requires the meeting's mutex. Once true, it stays true.
  virtual bool has_come() const = 0;
  virtual void fill(WaitRecord& record) const = 0;
  // Blocks until has_come(); throws if the run fails or the wait times out.
  void await();

  Meeting meeting_;
  int member_;
  Memory memory_;
};

void MemberWait::await() {
  {
    std::lock_guard lock(meeting_->mutex);
    if (has_come()) return;
  }
  ThreadFabric& fabric = meeting_->fabric;
  std::chrono::duration<double> timeout(fabric.timeout_seconds());
  ThreadFabric::WaitScope scope(fabric, world_rank(member_), *this);
  std::unique_lock lock(meeting_->mutex);
  auto over = [&] { return has_come() || fabric.aborted(); };
  while (!meeting_->changed.wait_for(lock, timeout, over)) {
    lock.unlock();
    fabric.fail_hanging(world_rank(member_));
    lock.lock();
  }
  if (has_come()) return;
  WaitRecord record;
  fill(record);
  BEV_FAIL(ErrorKind::kComm, record.collective, " of ", record.label, ": another rank failed");
}

class PendingCollective final : public MemberWait {
 public:
  PendingCollective(Meeting meeting, int member, Memory memory, std::uint64_t sequence,
                    CollectivePost brought)
      : MemberWait(std::move(meeting), member, std::move(memory)),
        operation_(meeting_->post(member, sequence, std::move(brought), *memory_)) {}
  ~PendingCollective() override {
    if (!settled_) give_up();
  }

  void wait() override {
    try {
      await();
    } catch (...) {
      give_up();
      throw;
    }
    meeting_->finish(*operation_, *memory_);
    settled_ = true;
    BEV_CHECK(operation_->error.empty(), ErrorKind::kComm, operation_->error);
  }

 private:
  // Afterwards nobody accesses this rank's memory: either the post is withdrawn, or the operation
  // is finished here. A complete operation finishes soon in any case, since it waits for nobody.
  void give_up() {
    settled_ = true;
    if (!meeting_->take_back(*operation_, member_)) meeting_->finish(*operation_, *memory_);
  }
  bool has_come() const override { return operation_->state != Operation::State::kOpen; }
  void fill(WaitRecord& record) const override {
    const CollectivePost& mine = operation_->posts[static_cast<std::size_t>(member_)];
    record.collective = name_of(mine.kind);
    record.label = mine.label;
    if (mine.kind != GroupOp::kBarrier) {
      record.data = concat(mine.in.shape, " ", name_of(mine.in.dtype));
    }
    for (std::size_t i = 0; i < operation_->present.size(); ++i) {
      if (!operation_->present[i]) record.absent.push_back(meeting_->members[i]);
    }
  }

  std::shared_ptr<Operation> operation_;
  bool settled_ = false;
};

// The source may be overwritten once the message is packed.
class PendingSend final : public Work::Pending {
 public:
  PendingSend(std::shared_ptr<PeerMemory> memory, PeerEventRef packed)
      : memory_(std::move(memory)), packed_(std::move(packed)) {}
  ~PendingSend() override { memory_->follow(packed_); }
  void wait() override {}

 private:
  std::shared_ptr<PeerMemory> memory_;
  PeerEventRef packed_;
};

class PendingReceive final : public MemberWait {
 public:
  PendingReceive(Meeting meeting, int member, Memory memory, int from, int channel,
                 const View& data, std::string_view label)
      : MemberWait(std::move(meeting), member, std::move(memory)),
        from_(from),
        data_(data),
        label_(label),
        ready_(memory_->now()) {
    std::lock_guard lock(meeting_->mutex);
    box_ = &meeting_->mail[{from, member, channel}];
    number_ = box_->wanted++;
  }

  void wait() override {
    await();
    std::shared_ptr<PeerMessage> message;
    {
      std::lock_guard lock(meeting_->mutex);
      message = std::move(box_->messages.extract(number_).mapped());
    }
    BEV_CHECK(message->bytes() == data_.bytes(), ErrorKind::kComm, "receive of ", label_, ": ",
              message->bytes(), " bytes came from rank ", world_rank(from_), ", expected ",
              data_.bytes());
    memory_->follow(memory_->unpack(*message, data_, ready_));
  }

 private:
  bool has_come() const override { return box_->messages.contains(number_); }
  void fill(WaitRecord& record) const override {
    record.collective = "receive";
    record.label = label_;
    record.data = concat(data_.shape, " ", name_of(data_.dtype));
    record.absent = {world_rank(from_)};
  }

  int from_;
  View data_;
  std::string label_;
  PeerEventRef ready_;
  Mailbox* box_ = nullptr;
  std::uint64_t number_ = 0;
};

class ThreadGroup final : public Group {
 public:
  ThreadGroup(std::shared_ptr<ThreadMeeting> meeting, int rank, std::shared_ptr<PeerMemory> memory)
      : Group(meeting->name, rank, meeting->members),
        meeting_(std::move(meeting)),
        memory_(std::move(memory)) {}

  Work all_reduce(const View& data, Reduction reduction, std::string_view label) override {
    return post({GroupOp::kAllReduce, std::string(label), data, data, reduction});
  }
  Work all_gather(const View& in, const View& out, std::string_view label) override {
    return post({GroupOp::kAllGather, std::string(label), in, out});
  }
  Work reduce_scatter(const View& in, const View& out, std::string_view label) override {
    return post({GroupOp::kReduceScatter, std::string(label), in, out});
  }
  Work broadcast(const View& data, int root, std::string_view label) override {
    check_member(root, "broadcast", label);
    return post({GroupOp::kBroadcast, std::string(label), data, data, Reduction::kSum, root});
  }
  Work all_to_all(const View& in, std::span<const std::int64_t> send_counts, const View& out,
                  std::span<const std::int64_t> receive_counts, std::string_view label) override {
    return post({GroupOp::kAllToAll,
                 std::string(label),
                 in,
                 out,
                 Reduction::kSum,
                 0,
                 {send_counts.begin(), send_counts.end()},
                 {receive_counts.begin(), receive_counts.end()}});
  }
  Work send(const View& data, int to, int channel, std::string_view label) override {
    check_open("send", label);
    check_member(to, "send", label);
    PeerEventRef packed;
    std::shared_ptr<PeerMessage> message = memory_->pack(data, packed);
    {
      std::lock_guard lock(meeting_->mutex);
      Mailbox& box = meeting_->mail[{rank(), to, channel}];
      box.messages[box.sent++] = std::move(message);
      meeting_->changed.notify_all();
    }
    if (!packed) return {};
    return Work(std::make_unique<PendingSend>(memory_, std::move(packed)));
  }
  Work receive(const View& data, int from, int channel, std::string_view label) override {
    check_open("receive", label);
    check_member(from, "receive", label);
    return Work(
        std::make_unique<PendingReceive>(meeting_, rank(), memory_, from, channel, data, label));
  }
  void barrier(std::string_view label) override {
    post({GroupOp::kBarrier, std::string(label), {}, {}}).wait();
  }
  std::unique_ptr<Group> make_peer_group(std::shared_ptr<PeerMemory> memory) override {
    return make_thread_group(meeting_->peers(), rank(), std::move(memory));
  }

 private:
  void check_open(const char* collective, std::string_view label) const {
    BEV_CHECK(!meeting_->fabric.aborted(), ErrorKind::kComm, collective, " of ", label,
              ": another rank failed");
  }
  void check_member(int member, const char* collective, std::string_view label) const {
    BEV_CHECK(member >= 0 && member < size(), ErrorKind::kInternal, collective, " of ", label,
              ": no member ", member, " in group ", name(), " of ", size());
  }
  Work post(CollectivePost brought) {
    check_open(name_of(brought.kind), brought.label);
    BEV_CHECK(brought.in.dtype == brought.out.dtype, ErrorKind::kComm, name_of(brought.kind),
              " of ", brought.label, ": from ", name_of(brought.in.dtype), " to ",
              name_of(brought.out.dtype));
    brought.ready = memory_->now();
    return Work(std::make_unique<PendingCollective>(meeting_, rank(), memory_, sequence_++,
                                                    std::move(brought)));
  }

  std::shared_ptr<ThreadMeeting> meeting_;
  std::shared_ptr<PeerMemory> memory_;
  std::uint64_t sequence_ = 0;
};

}  // namespace

std::shared_ptr<ThreadMeeting> make_thread_meeting(ThreadFabric& fabric, std::string name,
                                                   std::vector<int> members) {
  return std::make_shared<ThreadMeeting>(fabric, std::move(name), std::move(members));
}

std::unique_ptr<Group> make_thread_group(std::shared_ptr<ThreadMeeting> meeting, int rank,
                                         std::shared_ptr<PeerMemory> memory) {
  return std::make_unique<ThreadGroup>(std::move(meeting), rank, std::move(memory));
}

}  // namespace bev
