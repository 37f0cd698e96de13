// Ranks as threads of one process. Members of a collective meet twice: when all inputs are posted,
// and when all have read what they need. Between the two each writes only its own part:
//
//   rank 0   post --+            +-- sum part 0 --+
//   rank 1   post --+-- meet ----+-- sum part 1 --+-- meet -- go on
//   rank 2   post --+            +-- sum part 2 --+
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/reduce.h"
#include "comm/world.h"

namespace bev {

namespace {

struct Posted {
  const char* op = "";
  std::string label;
  View in, out;
  std::vector<std::int64_t> send, receive;  // all_to_all: counts by member
};

class Fabric;

// What the members of one group share.
struct Meeting {
  Meeting(Fabric& owner, std::vector<int> ranks)
      : fabric(owner),
        members(std::move(ranks)),
        posted(members.size()),
        arrived(members.size(), false) {}
  Fabric& fabric;
  std::vector<int> members;
  std::mutex mutex;
  mutable std::condition_variable changed;
  std::vector<Posted> posted;
  std::vector<bool> arrived;
  std::size_t arrived_count = 0;
  std::uint64_t generation = 0;
  bool left = false;  // a member gave up, its memory is gone: no collective completes any more
  std::map<std::array<int, 3>, std::deque<std::vector<std::byte>>> mail;  // from, to, channel

  // `open`: the first meeting of a collective. Past it every member goes through to the second one,
  // whoever fails elsewhere, since others may still read its memory.
  void meet(int rank, const char* op, std::string_view label, bool open);
  enum class End { kReady, kAborted, kTimeout };
  End wait(std::unique_lock<std::mutex>& lock, bool heeds_abort, const auto& ready) const;
  std::string why(End end) const;
  std::string absent() const;
};

class Fabric {
 public:
  Fabric(int size, double timeout_seconds) : size_(size), timeout_seconds_(timeout_seconds) {}

  int size() const { return size_; }
  double timeout_seconds() const { return timeout_seconds_; }
  bool aborted() const { return aborted_.load(); }

  Meeting& meeting(const std::vector<int>& members, int instance) {
    std::lock_guard lock(mutex_);
    auto& slot = meetings_[{members, instance}];
    if (!slot) slot = std::make_unique<Meeting>(*this, members);
    return *slot;
  }

  void abort() {
    std::lock_guard lock(mutex_);
    aborted_.store(true);
    for (auto& [key, meeting] : meetings_) {
      std::lock_guard meeting_lock(meeting->mutex);
      meeting->changed.notify_all();
    }
  }

 private:
  int size_;
  double timeout_seconds_;
  std::atomic<bool> aborted_{false};
  std::mutex mutex_;
  std::map<std::pair<std::vector<int>, int>, std::unique_ptr<Meeting>> meetings_;
};

Meeting::End Meeting::wait(std::unique_lock<std::mutex>& lock, bool heeds_abort,
                           const auto& ready) const {
  auto deadline = std::chrono::steady_clock::now() +
                  std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                      std::chrono::duration<double>(fabric.timeout_seconds()));
  auto aborted = [&] { return heeds_abort && fabric.aborted(); };
  changed.wait_until(lock, deadline, [&] { return ready() || aborted(); });
  return ready() ? End::kReady : aborted() ? End::kAborted : End::kTimeout;
}

std::string Meeting::why(End end) const {
  if (end == End::kAborted) return "another rank failed";
  return concat("nothing came for ", fabric.timeout_seconds(), " s");
}

std::string Meeting::absent() const {
  std::string text = "; not there:";
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (!arrived[i]) text += concat(" rank ", members[i]);
  }
  return text;
}

void Meeting::meet(int rank, const char* op, std::string_view label, bool open) {
  std::unique_lock lock(mutex);
  auto me = static_cast<std::size_t>(rank);
  BEV_CHECK(!open || !fabric.aborted(), ErrorKind::kComm, op, " of ", label,
            ": another rank failed");
  arrived[me] = true;
  if (++arrived_count == members.size() && !left) {
    arrived.assign(members.size(), false);
    arrived_count = 0;
    ++generation;
    changed.notify_all();
    return;
  }
  End end = wait(lock, open, [&, mine = generation] { return generation != mine; });
  if (end == End::kReady) return;
  left = true;
  BEV_FAIL(ErrorKind::kComm, op, " of ", label, " on rank ", members[me], ": ", why(end),
           end == End::kTimeout ? absent() : "");
}

class ThreadGroup : public Group {
 public:
  ThreadGroup(std::string name, int rank, Meeting& meeting)
      : Group(std::move(name), rank, meeting.members), meeting_(meeting) {}

  Work all_reduce(const View& data, Reduction reduction, std::string_view label) override {
    open("all_reduce", label, data, data);
    check_equal_counts();
    // Everyone reduces one slice and writes it to all.
    Range slice = shard(data.numel());
    std::vector<const void*> sources;
    for (const Posted& other : meeting_.posted) sources.push_back(at(other.in, slice.first));
    void* mine = at(data, slice.first);
    reduce_elements(data.dtype, reduction, sources, mine, slice.second);
    std::size_t bytes = static_cast<std::size_t>(slice.second) * size_of(data.dtype);
    for (const Posted& other : meeting_.posted) {
      void* to = at(other.in, slice.first);
      if (to != mine && bytes > 0) std::memcpy(to, mine, bytes);
    }
    return close();
  }

  Work all_gather(const View& in, const View& out, std::string_view label) override {
    open("all_gather", label, in, out);
    std::int64_t total = 0, offset = 0;
    for (const Posted& other : meeting_.posted) total += other.in.numel();
    check_totals(&Posted::out, total);
    for (const Posted& other : meeting_.posted) {
      void* to = at(out, offset);
      if (to != other.in.data && other.in.bytes() > 0) {
        std::memcpy(to, other.in.data, other.in.bytes());
      }
      offset += other.in.numel();
    }
    return close();
  }

  Work reduce_scatter(const View& in, const View& out, std::string_view label) override {
    open("reduce_scatter", label, in, out);
    std::int64_t total = 0, offset = 0;
    for (int i = 0; i < size(); ++i) {
      if (i == rank()) offset = total;
      total += meeting_.posted[static_cast<std::size_t>(i)].out.numel();
    }
    check_totals(&Posted::in, total);
    std::vector<const void*> sources;
    for (const Posted& other : meeting_.posted) sources.push_back(at(other.in, offset));
    reduce_elements(in.dtype, Reduction::kSum, sources, out.data, out.numel());
    return close();
  }

  Work broadcast(const View& data, int root, std::string_view label) override {
    open("broadcast", label, data, data);
    check_equal_counts();
    const View& from = meeting_.posted[static_cast<std::size_t>(root)].in;
    if (from.data != data.data && data.bytes() > 0) std::memcpy(data.data, from.data, data.bytes());
    return close();
  }

  Work all_to_all(const View& in, std::span<const std::int64_t> send_counts, const View& out,
                  std::span<const std::int64_t> receive_counts, std::string_view label) override {
    open("all_to_all", label, in, out, send_counts, receive_counts);
    check_exchange();
    std::int64_t to = 0;
    for (const Posted& other : meeting_.posted) {
      std::int64_t from = 0;
      for (int j = 0; j < rank(); ++j) from += other.send[static_cast<std::size_t>(j)];
      std::int64_t count = other.send[static_cast<std::size_t>(rank())];
      if (count > 0) {
        std::memcpy(at(out, to), at(other.in, from),
                    static_cast<std::size_t>(count) * size_of(in.dtype));
      }
      to += count;
    }
    return close();
  }

  Work send(const View& data, int to, int channel, std::string_view) override {
    const auto* bytes = static_cast<const std::byte*>(data.data);
    std::vector<std::byte> copy(bytes, bytes + data.bytes());
    std::lock_guard lock(meeting_.mutex);
    meeting_.mail[{rank(), to, channel}].push_back(std::move(copy));
    meeting_.changed.notify_all();
    return {};
  }

  Work receive(const View& data, int from, int channel, std::string_view label) override {
    return Work(std::make_unique<Receive>(*this, data, from, channel, std::string(label)));
  }

  void barrier(std::string_view label) override {
    open("barrier", label, {}, {});
    close();
  }

 private:
  // Takes its message when waited for; those of one channel are waited for in the order posted.
  class Receive final : public Work::Pending {
   public:
    Receive(ThreadGroup& group, const View& data, int from, int channel, std::string label)
        : group_(group), data_(data), from_(from), channel_(channel), label_(std::move(label)) {}

    void wait() override {
      Meeting& meeting = group_.meeting_;
      int receiver = group_.members()[static_cast<std::size_t>(group_.rank())];
      int sender = group_.members()[static_cast<std::size_t>(from_)];
      std::unique_lock lock(meeting.mutex);
      auto& box = meeting.mail[{from_, group_.rank(), channel_}];
      Meeting::End end = meeting.wait(lock, true, [&] { return !box.empty(); });
      BEV_CHECK(end == Meeting::End::kReady, ErrorKind::kComm, "receive of ", label_, " on rank ",
                receiver, " from rank ", sender, ": ", meeting.why(end));
      std::vector<std::byte> message = std::move(box.front());
      box.pop_front();
      lock.unlock();
      BEV_CHECK(message.size() == data_.bytes(), ErrorKind::kComm, "receive of ", label_, ": ",
                message.size(), " bytes came from rank ", sender, ", expected ", data_.bytes());
      if (!message.empty()) std::memcpy(data_.data, message.data(), message.size());
    }

   private:
    ThreadGroup& group_;
    View data_;
    int from_, channel_;
    std::string label_;
  };
  using Range = std::pair<std::int64_t, std::int64_t>;  // begin, count

  static void* at(const View& view, std::int64_t element) {
    return static_cast<std::byte*>(view.data) +
           static_cast<std::size_t>(element) * size_of(view.dtype);
  }
  Range shard(std::int64_t n) const {
    std::int64_t begin = n * rank() / size(), end = n * (rank() + 1) / size();
    return {begin, end - begin};
  }

  // Checks between open and close see the same posts on all members: all throw or none does.
  void open(const char* op, std::string_view label, const View& in, const View& out,
            std::span<const std::int64_t> send = {}, std::span<const std::int64_t> receive = {}) {
    BEV_CHECK(in.dtype == out.dtype, ErrorKind::kComm, op, " of ", label, ": from ",
              name_of(in.dtype), " to ", name_of(out.dtype));
    {
      std::lock_guard lock(meeting_.mutex);
      meeting_.posted[static_cast<std::size_t>(rank())] = {
          op,  std::string(label),         in,
          out, {send.begin(), send.end()}, {receive.begin(), receive.end()}};
    }
    op_ = op;
    label_ = label;
    meeting_.meet(rank(), op, label, true);
    const Posted& first = meeting_.posted.front();
    for (int i = 1; i < size(); ++i) {
      const Posted& other = meeting_.posted[static_cast<std::size_t>(i)];
      bool same = std::string_view(first.op) == other.op && first.label == other.label &&
                  first.in.dtype == other.in.dtype;
      BEV_CHECK(same, ErrorKind::kComm, "ranks meet in different collectives: rank ", members()[0],
                " in ", first.op, " of ", first.label, " (", name_of(first.in.dtype), "), rank ",
                members()[static_cast<std::size_t>(i)], " in ", other.op, " of ", other.label, " (",
                name_of(other.in.dtype), ")");
    }
  }
  void check_equal_counts() const {
    for (const Posted& other : meeting_.posted) {
      BEV_CHECK(other.in.numel() == meeting_.posted.front().in.numel(), ErrorKind::kComm, op_,
                " of ", label_, ": ranks bring ", meeting_.posted.front().in.shape, " and ",
                other.in.shape);
    }
  }
  void check_totals(View Posted::*side, std::int64_t total) const {
    for (std::size_t i = 0; i < meeting_.posted.size(); ++i) {
      const View& view = meeting_.posted[i].*side;
      BEV_CHECK(view.numel() == total, ErrorKind::kComm, op_, " of ", label_, ": rank ",
                members()[i], " has ", view.shape, " for parts of ", total, " elements in all");
    }
  }
  void check_exchange() const {
    for (std::size_t i = 0; i < meeting_.posted.size(); ++i) {
      for (std::size_t j = 0; j < meeting_.posted.size(); ++j) {
        std::int64_t sent = meeting_.posted[i].send[j];
        std::int64_t expected = meeting_.posted[j].receive[i];
        BEV_CHECK(sent == expected, ErrorKind::kComm, "all_to_all of ", label_, ": rank ",
                  members()[i], " sends ", sent, " elements, rank ", members()[j], " expects ",
                  expected);
      }
    }
  }
  Work close() {
    meeting_.meet(rank(), op_, label_, false);
    return {};
  }

  Meeting& meeting_;
  const char* op_ = "";
  std::string label_;
};

class ThreadWorld : public World {
 public:
  ThreadWorld(int rank, Fabric& fabric) : rank_(rank), fabric_(fabric) {}
  int rank() const override { return rank_; }
  int size() const override { return fabric_.size(); }

  std::unique_ptr<Group> make_group(std::string name, std::vector<int> members) override {
    auto me = std::find(members.begin(), members.end(), rank_);
    BEV_CHECK(me != members.end(), ErrorKind::kInternal, "rank ", rank_,
              " makes a group without itself");
    if (members.size() == 1) return make_single_group(std::move(name), rank_);
    int instance = instances_[members]++;
    auto index = static_cast<int>(me - members.begin());
    return std::make_unique<ThreadGroup>(std::move(name), index,
                                         fabric_.meeting(members, instance));
  }

 private:
  int rank_;
  Fabric& fabric_;
  std::map<std::vector<int>, int> instances_;
};

struct FirstFailure {
  std::mutex mutex;
  std::exception_ptr cause;
  int rank = -1;
};

void run_rank(int rank, Fabric& fabric, FirstFailure& failure, const void* body,
              void (*call)(const void*, World&)) {
  try {
    ThreadWorld world(rank, fabric);
    call(body, world);
  } catch (...) {
    {
      std::lock_guard lock(failure.mutex);
      if (!failure.cause) {
        failure.cause = std::current_exception();
        failure.rank = rank;
      }
    }
    fabric.abort();
  }
}

}  // namespace

namespace detail {
void run_thread_ranks(int ranks, const ThreadWorldOptions& options, const void* body,
                      void (*call)(const void*, World&)) {
  Fabric fabric(ranks, options.timeout_seconds);
  FirstFailure failure;
  std::vector<std::thread> threads;
  try {
    for (int rank = 1; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] { run_rank(rank, fabric, failure, body, call); });
    }
  } catch (const std::system_error& error) {
    fabric.abort();
    for (std::thread& thread : threads) thread.join();
    BEV_FAIL(ErrorKind::kDevice, "only ", threads.size() + 1, " of ", ranks,
             " ranks could be started as threads: ", error.what());
  }
  run_rank(0, fabric, failure, body, call);
  for (std::thread& thread : threads) thread.join();
  if (!failure.cause) return;
  if (ranks == 1) std::rethrow_exception(failure.cause);
  try {
    std::rethrow_exception(failure.cause);
  } catch (const Error& error) {
    throw Error(error.kind(), concat("rank ", failure.rank, ": ", error.what()));
  }
}
}  // namespace detail

}  // namespace bev
