// Members post what they bring and go on. The last post makes the operation ready; its slices are
// then claimed one by one by whoever is around: the last poster, and members that wait.
//
//   rank 0   post 0 ..... post 1 ........ wait 1: slices . . wait 0
//   rank 1   ....... post 0: all slices ............ post 1: slices ......
//
// No one needs to come back for an operation to finish on the others, so any order of waits does.
#include "comm/thread_group.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "base/error.h"
#include "comm/host_collective.h"

namespace bev {

namespace {

struct Operation {
  explicit Operation(std::size_t members) : posts(members), present(members, false) {}

  // Fixed once the operation is no longer open; before, the meeting's mutex guards them.
  std::vector<CollectivePost> posts;
  std::vector<bool> present;
  std::vector<CollectiveSlice> slices;
  std::string error;  // the posts do not fit together

  enum class State { kOpen, kRunning, kOver };
  State state = State::kOpen;  // under the mutex
  std::atomic<std::size_t> claimed{0}, done{0};

  // All members have posted.
  void start(std::span<const int> members) {
    try {
      check_posts(posts, members);
      slices = cut_slices(posts);
    } catch (const Error& mismatch) {
      error = mismatch.what();
    }
    state = slices.empty() ? State::kOver : State::kRunning;
  }
};

struct Mailbox {
  std::uint64_t sent = 0, wanted = 0;  // the n-th receive gets the n-th message
  std::map<std::uint64_t, std::vector<std::byte>> messages;
};

}  // namespace

class ThreadMeeting {
 public:
  ThreadMeeting(ThreadFabric& owner, std::string group, std::vector<int> ranks)
      : fabric(owner), name(std::move(group)), members(std::move(ranks)) {}

  ThreadFabric& fabric;
  const std::string name;
  const std::vector<int> members;

  std::mutex mutex;  // of what follows and of the operations' states
  std::condition_variable changed;
  std::map<std::array<int, 3>, Mailbox> mail;  // from, to, channel

  // The member's operation number `sequence`. Its memory may be used until it is finished or taken
  // back.
  std::shared_ptr<Operation> post(int member, std::uint64_t sequence, CollectivePost post);
  // Does what slices are left of an operation that is no longer open, and waits for the others'.
  void finish(Operation& operation);
  // False: too late, it runs or is over.
  bool take_back(Operation& operation, int member);

 private:
  void run_slices(Operation& operation);

  // Members post in order, so operations become complete in order.
  std::deque<std::shared_ptr<Operation>> open_;
  std::uint64_t first_open_ = 0;
};

std::shared_ptr<Operation> ThreadMeeting::post(int member, std::uint64_t sequence,
                                               CollectivePost post) {
  std::unique_lock lock(mutex);
  auto index = static_cast<std::size_t>(sequence - first_open_);
  if (index == open_.size()) open_.push_back(std::make_shared<Operation>(members.size()));
  std::shared_ptr<Operation> operation = open_[index];
  operation->posts[static_cast<std::size_t>(member)] = std::move(post);
  operation->present[static_cast<std::size_t>(member)] = true;
  if (std::ranges::find(operation->present, false) != operation->present.end()) return operation;
  open_.pop_front();
  ++first_open_;
  operation->start(members);
  // A single slice is done before anyone could help.
  if (operation->slices.size() != 1) changed.notify_all();
  lock.unlock();
  run_slices(*operation);
  return operation;
}

void ThreadMeeting::run_slices(Operation& operation) {
  std::size_t count = operation.slices.size();
  for (std::size_t i = operation.claimed++; i < count; i = operation.claimed++) {
    run_slice(operation.posts, operation.slices[i]);
    if (++operation.done < count) continue;
    std::lock_guard lock(mutex);
    operation.state = Operation::State::kOver;
    changed.notify_all();
  }
}

void ThreadMeeting::finish(Operation& operation) {
  run_slices(operation);
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return operation.state == Operation::State::kOver; });
}

bool ThreadMeeting::take_back(Operation& operation, int member) {
  std::lock_guard lock(mutex);
  if (operation.state != Operation::State::kOpen) return false;
  operation.present[static_cast<std::size_t>(member)] = false;
  return true;
}

namespace {

// A member's wait for something that the others must do.
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
  MemberWait(std::shared_ptr<ThreadMeeting> meeting, int member)
      : meeting_(std::move(meeting)), member_(member) {}

  int world_rank(int member) const { return meeting_->members[static_cast<std::size_t>(member)]; }
  // Under the meeting's mutex. What has come stays.
  virtual bool has_come() const = 0;
  virtual void fill(WaitRecord& record) const = 0;
  // Blocks until it has come; throws when the run fails or this lasts too long.
  void await();

  std::shared_ptr<ThreadMeeting> meeting_;
  int member_;
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
  PendingCollective(std::shared_ptr<ThreadMeeting> meeting, int member,
                    std::shared_ptr<Operation> operation)
      : MemberWait(std::move(meeting), member), operation_(std::move(operation)) {}
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
    meeting_->finish(*operation_);
    settled_ = true;
    BEV_CHECK(operation_->error.empty(), ErrorKind::kComm, operation_->error);
  }

 private:
  // Either the others never touch this rank's memory, or they are through with it: a complete
  // operation finishes soon whatever happens elsewhere, since it waits for nobody.
  void give_up() {
    settled_ = true;
    if (!meeting_->take_back(*operation_, member_)) meeting_->finish(*operation_);
  }
  bool has_come() const override { return operation_->state != Operation::State::kOpen; }
  void fill(WaitRecord& record) const override {
    const CollectivePost& mine = operation_->posts[static_cast<std::size_t>(member_)];
    record.collective = name_of(mine.kind);
    record.label = mine.label;
    if (mine.kind != CollectiveKind::kBarrier) {
      record.data = concat(mine.in.shape, " ", name_of(mine.in.dtype));
    }
    for (std::size_t i = 0; i < operation_->present.size(); ++i) {
      if (!operation_->present[i]) record.absent.push_back(meeting_->members[i]);
    }
  }

  std::shared_ptr<Operation> operation_;
  bool settled_ = false;
};

class PendingReceive final : public MemberWait {
 public:
  PendingReceive(std::shared_ptr<ThreadMeeting> meeting, int member, int from, int channel,
                 const View& data, std::string_view label)
      : MemberWait(std::move(meeting), member), from_(from), data_(data), label_(label) {
    std::lock_guard lock(meeting_->mutex);
    box_ = &meeting_->mail[{from, member, channel}];
    number_ = box_->wanted++;
  }

  void wait() override {
    await();
    std::vector<std::byte> message;
    {
      std::lock_guard lock(meeting_->mutex);
      message = std::move(box_->messages.extract(number_).mapped());
    }
    BEV_CHECK(message.size() == data_.bytes(), ErrorKind::kComm, "receive of ", label_, ": ",
              message.size(), " bytes came from rank ", world_rank(from_), ", expected ",
              data_.bytes());
    if (!message.empty()) std::memcpy(data_.data, message.data(), message.size());
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
  Mailbox* box_ = nullptr;
  std::uint64_t number_ = 0;
};

class ThreadGroup final : public Group {
 public:
  ThreadGroup(std::shared_ptr<ThreadMeeting> meeting, int rank)
      : Group(meeting->name, rank, meeting->members), meeting_(std::move(meeting)) {}

  Work all_reduce(const View& data, Reduction reduction, std::string_view label) override {
    return post({CollectiveKind::kAllReduce, std::string(label), data, data, reduction});
  }
  Work all_gather(const View& in, const View& out, std::string_view label) override {
    return post({CollectiveKind::kAllGather, std::string(label), in, out});
  }
  Work reduce_scatter(const View& in, const View& out, std::string_view label) override {
    return post({CollectiveKind::kReduceScatter, std::string(label), in, out});
  }
  Work broadcast(const View& data, int root, std::string_view label) override {
    check_member(root, "broadcast", label);
    return post(
        {CollectiveKind::kBroadcast, std::string(label), data, data, Reduction::kSum, root});
  }
  Work all_to_all(const View& in, std::span<const std::int64_t> send_counts, const View& out,
                  std::span<const std::int64_t> receive_counts, std::string_view label) override {
    return post({CollectiveKind::kAllToAll,
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
    const auto* bytes = static_cast<const std::byte*>(data.data);
    std::vector<std::byte> copy(bytes, bytes + data.bytes());
    std::lock_guard lock(meeting_->mutex);
    Mailbox& box = meeting_->mail[{rank(), to, channel}];
    box.messages[box.sent++] = std::move(copy);
    meeting_->changed.notify_all();
    return {};
  }
  Work receive(const View& data, int from, int channel, std::string_view label) override {
    check_open("receive", label);
    check_member(from, "receive", label);
    return Work(std::make_unique<PendingReceive>(meeting_, rank(), from, channel, data, label));
  }
  void barrier(std::string_view label) override {
    post({CollectiveKind::kBarrier, std::string(label), {}, {}}).wait();
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
    std::shared_ptr<Operation> operation = meeting_->post(rank(), sequence_++, std::move(brought));
    return Work(std::make_unique<PendingCollective>(meeting_, rank(), std::move(operation)));
  }

  std::shared_ptr<ThreadMeeting> meeting_;
  std::uint64_t sequence_ = 0;
};

}  // namespace

std::shared_ptr<ThreadMeeting> make_thread_meeting(ThreadFabric& fabric, std::string name,
                                                   std::vector<int> members) {
  return std::make_shared<ThreadMeeting>(fabric, std::move(name), std::move(members));
}

std::unique_ptr<Group> make_thread_group(std::shared_ptr<ThreadMeeting> meeting, int rank) {
  return std::make_unique<ThreadGroup>(std::move(meeting), rank);
}

}  // namespace bev
