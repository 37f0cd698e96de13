// Ranks in several processes (threads in this test): every collective is bit-equal to the thread
// transport, and a failure of any process reaches all.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/philox.h"
#include "comm/process/process_world.h"
#include "comm/process/sockets.h"
#include "comm/process/tcp_link.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kF64, Dtype::kF32, Dtype::kBf16, Dtype::kF16,
                             Dtype::kI64, Dtype::kI32, Dtype::kU8};

// In-memory links. Messages that arrive before a process has opened its link are queued.
class MemoryNetwork {
 public:
  explicit MemoryNetwork(int processes) : boxes_(static_cast<std::size_t>(processes)) {}

  void open(int process, Link::Inbox& inbox) {
    Box& box = boxes_[static_cast<std::size_t>(process)];
    std::deque<std::pair<int, Message>> early;
    {
      std::lock_guard lock(box.mutex);
      box.inbox = &inbox;
      early.swap(box.early);
    }
    // Without the lock, because a delivery may trigger a reply. Messages may be reordered.
    for (auto& [from, message] : early) inbox.deliver(from, std::move(message));
  }
  void send(int from, int to, Message message) {
    Box& box = boxes_[static_cast<std::size_t>(to)];
    {
      std::lock_guard lock(box.mutex);
      if (box.inbox == nullptr) {
        box.early.emplace_back(from, std::move(message));
        return;
      }
    }
    box.inbox->deliver(from, std::move(message));
  }
  // Waits until all processes have closed their links.
  void meet() {
    std::unique_lock lock(mutex_);
    ++closed_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return closed_ == boxes_.size(); });
  }
  int processes() const { return static_cast<int>(boxes_.size()); }

 private:
  struct Box {
    std::mutex mutex;
    Link::Inbox* inbox = nullptr;
    std::deque<std::pair<int, Message>> early;
  };
  std::deque<Box> boxes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t closed_ = 0;
};

class MemoryLink : public Link {
 public:
  MemoryLink(MemoryNetwork& network, int process) : network_(network), process_(process) {}
  int process() const override { return process_; }
  int processes() const override { return network_.processes(); }
  void open(Inbox& inbox) override { network_.open(process_, inbox); }
  void send(int process, Message message) override {
    network_.send(process_, process, std::move(message));
  }
  void close() override { network_.meet(); }
  void abandon(int, bool) override {}
  bool ends_others() const override { return false; }

 private:
  MemoryNetwork& network_;
  int process_;
};

int free_port() { return port_of(listen_on(0)); }

// Runs on_process(link) for each process and returns the exceptions.
template <class OnProcess>
std::vector<std::exception_ptr> with_links(int processes, bool tcp, const OnProcess& on_process) {
  MemoryNetwork network(processes);
  int port = tcp ? free_port() : 0;
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(processes));
  std::vector<std::thread> threads;
  for (int process = 0; process < processes; ++process) {
    threads.emplace_back([&, process] {
      try {
        std::unique_ptr<Link> link = std::make_unique<MemoryLink>(network, process);
        if (tcp) {
          Launch launch{LaunchKind::kTcp, process, processes, processes, false,
                        "localhost",      port,    {}};
          link = connect_tcp_link(launch, 20);
        }
        on_process(*link);
      } catch (...) {
        thrown[static_cast<std::size_t>(process)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

// Runs body(world) on every rank and rethrows the error, which must be the same in all processes.
template <class Body>
void run_processes(int processes, int ranks, bool tcp, const Body& body, double timeout = 20) {
  auto thrown = with_links(processes, tcp, [&](Link& link) {
    run_process_ranks(link, {{}, ranks, timeout, nullptr}, body);
  });
  auto text = [](const std::exception_ptr& error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const Error& caught) {
      return std::string(caught.what());
    }
    return std::string();
  };
  for (const auto& error : thrown) EXPECT_EQ(text(error), text(thrown[0]));
  if (thrown[0]) std::rethrow_exception(thrown[0]);
}

std::vector<int> everyone(int ranks) {
  std::vector<int> list(static_cast<std::size_t>(ranks));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

// Memory of any dtype with values that round when they are added.
struct Buffer {
  Buffer(Dtype dtype, std::int64_t count, int rank = -1)
      : bytes(static_cast<std::size_t>(count) * size_of(dtype) + 1),
        view{bytes.data(), dtype, {count}} {
    for (std::int64_t i = 0; rank >= 0 && i < count; ++i) {
      auto word =
          philox({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(rank), 0, 0}, 7);
      if (is_float(dtype)) {
        visit_float(dtype, [&](auto zero) {
          using T = decltype(zero);
          view.as<T>()[i] = T(static_cast<float>(word[0]) * 1e-9f - 2);
        });
      } else {
        std::memcpy(bytes.data() + static_cast<std::size_t>(i) * size_of(dtype), &word,
                    std::min<std::size_t>(size_of(dtype), 3));
      }
    }
  }
  Buffer(const Buffer&) = delete;

  std::vector<std::byte> bytes;
  View view;
};

using Bytes = std::vector<std::byte>;
void keep(Bytes& log, const Buffer& buffer) {
  log.insert(log.end(), buffer.bytes.begin(), buffer.bytes.end());
}

// Every collective with unequal parts, posted together and waited for in any order.
void run_collectives(World& world, Group& group, Dtype dtype, Bytes& log) {
  int n = group.size(), me = group.rank();
  auto part = [](int rank) { return std::int64_t{3} + rank; };
  std::int64_t total = 0;
  for (int i = 0; i < n; ++i) total += part(i);
  Buffer small(dtype, 5, world.rank()), large(dtype, 40000, world.rank());
  Buffer highest(dtype, 7, world.rank()), mine(dtype, part(me), world.rank());
  Buffer gathered(dtype, total), whole(dtype, total, world.rank()), scattered(dtype, part(me));
  Buffer root(dtype, 6, world.rank()), empty(dtype, 0);
  std::vector<std::int64_t> send, receive;
  for (int i = 0; i < n; ++i) send.push_back((me + 2 * i) % 3);
  for (int i = 0; i < n; ++i) receive.push_back((i + 2 * me) % 3);
  std::int64_t outgoing = std::accumulate(send.begin(), send.end(), std::int64_t{0});
  std::int64_t incoming = std::accumulate(receive.begin(), receive.end(), std::int64_t{0});
  Buffer given(dtype, outgoing, world.rank()), taken(dtype, incoming);
  // All to the last member, which alone receives something.
  std::vector<std::int64_t> to_last(static_cast<std::size_t>(n)), from_all = to_last;
  to_last.back() = me + 1;
  for (int i = 0; me == n - 1 && i < n; ++i) from_all[static_cast<std::size_t>(i)] = i + 1;
  Buffer pushed(dtype, me + 1, world.rank()), piled(dtype, me == n - 1 ? n * (n + 1) / 2 : 0);

  Work works[] = {group.all_reduce(small.view, Reduction::kSum, "small"),
                  group.all_reduce(large.view, Reduction::kSum, "large"),
                  group.all_reduce(highest.view, Reduction::kMax, "highest"),
                  group.all_gather(mine.view, gathered.view, "parts"),
                  group.reduce_scatter(whole.view, scattered.view, "whole"),
                  group.broadcast(root.view, n - 1, "root"),
                  group.all_to_all(given.view, send, taken.view, receive, "given"),
                  group.all_to_all(pushed.view, to_last, piled.view, from_all, "pushed"),
                  group.all_reduce(empty.view, Reduction::kSum, "nothing")};
  bool backwards = world.rank() % 2 == 1;
  for (int i = 0; i < 9; ++i) works[backwards ? 8 - i : i].wait();
  group.barrier("end");
  for (const Buffer* buffer :
       {&small, &large, &highest, &gathered, &scattered, &root, &taken, &piled}) {
    keep(log, *buffer);
  }
}

// Records the results of every rank.
class Program {
 public:
  explicit Program(int ranks) : logs(static_cast<std::size_t>(ranks)) {}
  void operator()(World& world) const {
    Bytes& log = logs[static_cast<std::size_t>(world.rank())];
    std::unique_ptr<Group> all = world.make_group("all", everyone(world.size()));
    // Every other rank; a group of one if there is one rank.
    std::vector<int> alike;
    for (int i = world.rank() % 2; i < world.size(); i += 2) alike.push_back(i);
    std::unique_ptr<Group> half = world.make_group("half", alike);
    for (Dtype dtype : kDtypes) {
      run_collectives(world, *all, dtype, log);
      if (half->size() > 1) run_collectives(world, *half, dtype, log);
    }
  }
  mutable std::vector<Bytes> logs;
};

TEST(Message, EveryCollectiveGivesTheBitsOfTheThreadTransport) {
  struct Case {
    int processes, ranks;
    bool tcp;
  };
  for (Case c : {Case{2, 1, false},
                 {3, 1, false},
                 {5, 1, false},
                 {2, 2, false},
                 {1, 3, false},
                 {2, 1, true},
                 {3, 1, true},
                 {2, 2, true}}) {
    SCOPED_TRACE(testing::Message() << c.processes << " x " << c.ranks << (c.tcp ? " tcp" : ""));
    Program expected(c.processes * c.ranks), actual(c.processes * c.ranks);
    run_thread_ranks(c.processes * c.ranks, {20.0}, expected);
    run_processes(c.processes, c.ranks, c.tcp, actual);
    EXPECT_TRUE(expected.logs == actual.logs);
  }
}

View view_of(std::vector<float>& data) {
  return {data.data(), Dtype::kF32, {static_cast<std::int64_t>(data.size())}};
}

TEST(Message, ChannelsKeepTheirOrderEachByItself) {
  for (bool tcp : {false, true}) {
    run_processes(2, 1, tcp, [](World& world) {
      std::unique_ptr<Group> group = world.make_group("pair", {0, 1});
      std::vector<float> data(1);
      if (world.rank() == 0) {
        for (int i = 0; i < 20; ++i) {
          data[0] = static_cast<float>(i);
          group->send(view_of(data), 1, i % 2, "x").wait();
        }
        return;
      }
      // All messages of the odd channel first.
      for (int channel : {1, 0}) {
        for (int i = channel; i < 20; i += 2) {
          group->receive(view_of(data), 0, channel, "x").wait();
          EXPECT_EQ(data[0], static_cast<float>(i));
        }
      }
    });
  }
}

// Rank 0 posts and then waits for something that comes only after the others have the result.
TEST(Message, APostedOperationNeedsNoHelp) {
  run_processes(3, 1, true, [](World& world) {
    std::unique_ptr<Group> group = world.make_group("all", everyone(3));
    std::vector<float> large(40000, 1.0f), part(2, 1.0f), whole(6, 1.0f), token(1);
    Work sum = group->all_reduce(view_of(large), Reduction::kSum, "large");
    Work scatter = group->reduce_scatter(view_of(whole), view_of(part), "whole");
    if (world.rank() == 0) {
      group->receive(view_of(token), 1, 0, "token").wait();
    } else {
      sum.wait();
      scatter.wait();
      if (world.rank() == 1) group->send(view_of(token), 0, 0, "token").wait();
    }
    sum.wait();
    scatter.wait();
    EXPECT_EQ(large, std::vector<float>(40000, 3.0f));
    EXPECT_EQ(part, std::vector<float>(2, 3.0f));
  });
}

TEST(Message, ADroppedOperationLeavesItsMemoryAlone) {
  std::atomic<bool> dropped = false;
  std::vector<float> kept(4, 1.0f);
  expect_error(ErrorKind::kNumeric, {"rank 0: the cause"}, [&] {
    run_processes(2, 1, false, [&](World& world) {
      std::unique_ptr<Group> group = world.make_group("pair", {0, 1});
      if (world.rank() == 0) {
        { Work work = group->receive(view_of(kept), 1, 0, "x"); }
        dropped = true;
        group->barrier("sent");
        BEV_FAIL(ErrorKind::kNumeric, "the cause");
      }
      while (!dropped) std::this_thread::yield();
      std::vector<float> data(4, 9.0f);
      group->send(view_of(data), 0, 0, "x").wait();
      group->barrier("sent");
      group->barrier("never");
    });
  });
  EXPECT_EQ(kept, std::vector<float>(4, 1.0f));
}

// Runs body(group) on three processes and expects the same error on all.
template <class Body>
void expect_failure(ErrorKind kind, const std::vector<std::string>& parts, const Body& body,
                    double timeout = 20) {
  for (bool tcp : {false, true}) {
    expect_error(kind, parts, [&] {
      run_processes(
          3, 1, tcp,
          [&](World& world) {
            std::unique_ptr<Group> group = world.make_group("all", everyone(3));
            body(*group);
          },
          timeout);
    });
  }
}

TEST(Message, RanksThatDisagreeAreNamed) {
  expect_failure(ErrorKind::kComm, {"in all_reduce of weights", "rank 2 in broadcast of tokens"},
                 [](Group& group) {
                   std::vector<float> data(4);
                   if (group.rank() == 2) {
                     group.broadcast(view_of(data), 2, "tokens").wait();
                     group.barrier("end");
                   } else {
                     group.all_reduce(view_of(data), Reduction::kSum, "weights").wait();
                   }
                 });
  expect_failure(ErrorKind::kComm, {"all_reduce of x", "[4]", "[50000]"}, [](Group& group) {
    std::vector<float> data(group.rank() == 1 ? 50000 : 4);
    group.all_reduce(view_of(data), Reduction::kSum, "x").wait();
  });
  expect_failure(ErrorKind::kComm, {"all_gather of x", "rank 1", "[7]", "6 elements"},
                 [](Group& group) {
                   std::vector<float> in(2), out(group.rank() == 1 ? 7 : 6);
                   group.all_gather(view_of(in), view_of(out), "x").wait();
                 });
  expect_failure(ErrorKind::kComm, {"reduce_scatter of x", "[6]", "7 elements"}, [](Group& group) {
    std::vector<float> in(6), out(group.rank() == 2 ? 3 : 2);
    group.reduce_scatter(view_of(in), view_of(out), "x").wait();
  });
  expect_failure(ErrorKind::kComm, {"receive of x", "12 bytes", "rank 0", "expected 16"},
                 [](Group& group) {
                   std::vector<float> data(group.rank() == 0 ? 3 : 4);
                   if (group.rank() == 0) group.send(view_of(data), 1, 0, "x").wait();
                   if (group.rank() == 1) group.receive(view_of(data), 0, 0, "x").wait();
                   group.barrier("end");
                 });
}

TEST(Message, AFailureReachesEveryProcessWithItsKind) {
  for (int culprit : {0, 2}) {
    expect_failure(ErrorKind::kNumeric, {concat("rank ", culprit, ": the cause")},
                   [&](Group& group) {
                     std::vector<float> data(4);
                     BEV_CHECK(group.rank() != culprit, ErrorKind::kNumeric, "the cause");
                     group.all_reduce(view_of(data), Reduction::kSum, "x").wait();
                   });
  }
}

// Unwinding may wait for a device that waits for the lost rank.
TEST(Message, AHangIsKnownBeforeTheErrorPasses) {
  struct Unwinding {
    World& world;
    bool& known;
    ~Unwinding() { known = world.aborted(); }
  };
  bool known = false;
  expect_error(ErrorKind::kComm, {"rank 1 never came"}, [&] {
    run_processes(
        2, 1, false,
        [&](World& world) {
          std::unique_ptr<Group> group = world.make_group("all", everyone(2));
          while (world.rank() == 1 && !world.aborted()) std::this_thread::yield();
          if (world.rank() == 1) return;
          Unwinding unwinding{world, known};
          group->barrier("end");
        },
        0.2);
  });
  EXPECT_TRUE(known);
}

TEST(Message, AHangIsReportedWithWhatEveryRankDoes) {
  for (int absent : {0, 1}) {
    std::vector<std::string> parts = {"all_reduce of x on rank", "0.2 s",
                                      concat("for rank ", absent), "(group all, [4] f32)",
                                      concat("rank ", absent, " never came: it is in step 8")};
    for (bool tcp : {false, true}) {
      expect_error(ErrorKind::kComm, parts, [&] {
        run_processes(
            3, 1, tcp,
            [&](World& world) {
              std::unique_ptr<Group> group = world.make_group("all", everyone(3));
              world.activity().set_step(8);
              while (world.rank() == absent && !world.aborted()) std::this_thread::yield();
              std::vector<float> data(4);
              group->all_reduce(view_of(data), Reduction::kSum, "x").wait();
            },
            0.2);
      });
    }
  }
}

TEST(Message, ProcessesThatWereStartedOtherwiseAreRefused) {
  for (bool tcp : {false, true}) {
    auto thrown = with_links(3, tcp, [&](Link& link) {
      bool odd = link.process() == 2;
      Settings settings = {odd ? "--lr 0.1" : "--lr 0.2", "--tp 2", "train"};
      if (!odd) settings.insert(settings.begin(), "--bf16 true");
      // A different number of ranks as well.
      run_process_ranks(link, {settings, odd ? 1 : 2, 20.0, nullptr}, [](World& world) {
        std::unique_ptr<Group> group = world.make_group("all", everyone(world.size()));
        group->barrier("start");
      });
    });
    for (const std::exception_ptr& failure : thrown) {
      ASSERT_TRUE(failure);
      expect_error(ErrorKind::kConfig,
                   {"process 2 was started otherwise than process 0", "--lr 0.1 here",
                    "--bf16 true --lr 0.2 there"},
                   [&] { std::rethrow_exception(failure); });
    }
  }
}

// The connection of process 1 closes silently.
TEST(Message, AProcessThatIsGoneIsNamed) {
  auto thrown = with_links(3, true, [&](Link& link) {
    if (link.process() == 1) return;
    run_process_ranks(link, {{}, 2, 20.0, nullptr}, [](World& world) {
      std::unique_ptr<Group> group = world.make_group("all", everyone(6));
      group->barrier("start");
    });
  });
  for (std::size_t process : {0, 2}) {
    expect_error(ErrorKind::kComm, {"process 1 (ranks 2 to 3)"},
                 [&] { std::rethrow_exception(thrown[process]); });
  }
}

TEST(Message, ProcessesThatDoNotComeAreNamed) {
  Launch launch{LaunchKind::kTcp, 0, 3, 3, false, "localhost", free_port(), {}};
  expect_error(ErrorKind::kComm, {"not there: process 1, 2"},
               [&] { connect_tcp_link(launch, 0.2); });
  launch.process = 1;
  expect_error(ErrorKind::kComm, {"cannot connect to localhost port"},
               [&] { connect_tcp_link(launch, 0.2); });
}

TEST(Launch, IsReadFromTheVariablesOfEachLauncher) {
  EXPECT_EQ(find_launch({}).kind, LaunchKind::kAlone);
  Launch launch = find_launch({{"OMPI_COMM_WORLD_SIZE", "4"},
                               {"OMPI_COMM_WORLD_RANK", "3"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  EXPECT_EQ(launch.kind, LaunchKind::kMpi);
  EXPECT_EQ(launch.process, 3);
  EXPECT_EQ(launch.processes, 4);
  EXPECT_EQ(launch.local_processes, 2);
  EXPECT_EQ(launch.local_process, 1);
  launch = find_launch({{"SLURM_STEP_NUM_TASKS", "6"},
                        {"SLURM_PROCID", "5"},
                        {"SLURM_STEP_TASKS_PER_NODE", "3(x2)"},
                        {"SLURM_LOCALID", "2"}});
  EXPECT_EQ(launch.kind, LaunchKind::kMpi);
  EXPECT_EQ(launch.local_processes, 3);
  EXPECT_EQ(launch.local_process, 2);
  launch = find_launch({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}});
  EXPECT_EQ(launch.kind, LaunchKind::kTcp);
  EXPECT_EQ(launch.local_processes, 2);
  EXPECT_EQ(launch.local_process, 1);
  EXPECT_EQ(launch.master_port, 29500);
  // One process needs no link, and a batch script is not a job step.
  EXPECT_EQ(find_launch({{"OMPI_COMM_WORLD_SIZE", "1"}}).kind, LaunchKind::kAlone);
  EXPECT_EQ(find_launch({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).kind, LaunchKind::kAlone);
  EXPECT_EQ(find_launch({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}).kind, LaunchKind::kAlone);
}

TEST(Launch, NamesTheVariableThatIsWrong) {
  auto refuse = [](const std::map<std::string, std::string>& variables, const char* name) {
    expect_error(ErrorKind::kConfig, {name}, [&] { find_launch(variables); });
  };
  refuse({{"RANK", "0"}}, "WORLD_SIZE: is not set");
  refuse({{"WORLD_SIZE", "2"}}, "RANK: is not set");
  refuse({{"RANK", "0"}, {"WORLD_SIZE", "2"}}, "MASTER_ADDR: is not set");
  refuse({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}, "RANK: '2'");
  refuse({{"RANK", "one"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}, "RANK: 'one'");
  refuse({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "x"}},
         "MASTER_PORT: 'x'");
  refuse({{"OMPI_COMM_WORLD_SIZE", "2"}}, "OMPI_COMM_WORLD_RANK: is not set");
}

}  // namespace
}  // namespace bev
