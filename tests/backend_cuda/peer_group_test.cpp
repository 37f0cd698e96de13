// Collectives between thread ranks that share the GPU, compared with those on the host.
#include <algorithm>
#include <thread>

#include "base/error.h"
#include "kernels/elementwise.h"
#include "tests/backend_cuda/peer_rig.h"
#include "tests/support/expect_error.h"

namespace bev::cuda_test {
namespace {

using CudaPeers = PeerRig;

constexpr Dtype kDtypes[] = {Dtype::kF64, Dtype::kF32, Dtype::kBf16, Dtype::kF16,
                             Dtype::kI64, Dtype::kI32, Dtype::kU8};

template <class Body>
void on_ranks(int ranks, const Body& body) {
  run_thread_ranks(ranks, {60.0}, [&](World& world) {
    PeerRank rank(world);
    body(rank);
  });
}

// A collective on both sides, with its memory.
struct Flight {
  Flight(PeerRank& rank, Dtype dtype, std::int64_t in_count, std::int64_t out_count, unsigned seed)
      : in(rank, dtype, in_count), out(rank, dtype, out_count) {
    in.fill(seed);
    out.fill(seed + 1);
  }
  // call(group, in, out) posts the collective.
  template <class Call>
  void post(Group& group, const Call& call) {
    host_work = call(group.host(), in.host(), out.host());
    work = call(group, in.device(), out.device());
  }
  void finish() {
    host_work.wait();
    work.wait();
  }
  BothSides in, out;
  Work host_work, work;
};
using Flights = std::vector<std::unique_ptr<Flight>>;

struct Counts {
  std::vector<std::int64_t> of;  // by rank of the group
  std::int64_t before(int member) const {
    return std::accumulate(of.begin(), of.begin() + member, std::int64_t{0});
  }
  std::int64_t all() const { return before(static_cast<int>(of.size())); }
};
Counts uneven(int ranks, std::int64_t scale) {
  Counts counts;
  for (int i = 0; i < ranks; ++i) counts.of.push_back(i % 3 == 1 ? 0 : scale * (i + 1) + 3 * i);
  return counts;
}

void post_reductions(PeerRank& rank, Group& group, Dtype dtype, unsigned seed, Flights& flights) {
  for (std::int64_t count : {0, 1, 5, 2500, 70001}) {
    for (Reduction reduction : {Reduction::kSum, Reduction::kMax}) {
      flights.push_back(std::make_unique<Flight>(rank, dtype, count, 0, seed += 2));
      flights.back()->post(group, [&](Group& on, const View& data, const View&) {
        // From the second element on the view is unaligned.
        View part = count == 2500 ? data.rows(1, count) : data;
        return on.all_reduce(part, reduction, "sum");
      });
    }
  }
}

void post_parts(PeerRank& rank, Group& group, Dtype dtype, unsigned seed, Flights& flights) {
  for (std::int64_t scale : {3, 4096}) {
    Counts counts = uneven(group.size(), scale);
    std::int64_t begin = counts.before(group.rank());
    std::int64_t mine = counts.of[static_cast<std::size_t>(group.rank())];
    flights.push_back(std::make_unique<Flight>(rank, dtype, mine, counts.all(), seed += 2));
    flights.back()->post(group, [](Group& on, const View& in, const View& out) {
      return on.all_gather(in, out, "gather");
    });
    flights.push_back(std::make_unique<Flight>(rank, dtype, 0, counts.all(), seed += 2));
    flights.back()->post(group, [&](Group& on, const View&, const View& out) {
      return on.all_gather(out.rows(begin, begin + mine), out, "gather in place");
    });
    flights.push_back(std::make_unique<Flight>(rank, dtype, counts.all(), mine, seed += 2));
    flights.back()->post(group, [](Group& on, const View& in, const View& out) {
      return on.reduce_scatter(in, out, "scatter");
    });
    flights.push_back(std::make_unique<Flight>(rank, dtype, counts.all(), 0, seed += 2));
    flights.back()->post(group, [&](Group& on, const View& in, const View&) {
      return on.reduce_scatter(in, in.rows(begin, begin + mine), "scatter in place");
    });
  }
}

void post_exchanges(PeerRank& rank, Group& group, Dtype dtype, unsigned seed, Flights& flights) {
  int size = group.size();
  flights.push_back(std::make_unique<Flight>(rank, dtype, 1234, 0, seed += 2));
  flights.back()->post(group, [&](Group& on, const View& data, const View&) {
    return on.broadcast(data, size - 1, "broadcast");
  });
  auto count = [](int from, int to) { return std::int64_t{(from * 7 + to * 3) % 5 * 100}; };
  Counts send, receive;
  for (int i = 0; i < size; ++i) {
    send.of.push_back(count(group.rank(), i));
    receive.of.push_back(count(i, group.rank()));
  }
  flights.push_back(std::make_unique<Flight>(rank, dtype, send.all(), receive.all(), seed += 2));
  flights.back()->post(group, [&](Group& on, const View& in, const View& out) {
    return on.all_to_all(in, send.of, out, receive.of, "exchange");
  });
  int next = (group.rank() + 1) % size, previous = (group.rank() + size - 1) % size;
  for (std::int64_t length : {0, 77, 100000}) {
    flights.push_back(std::make_unique<Flight>(rank, dtype, length, 0, seed += 2));
    flights.back()->post(group, [&](Group& on, const View& data, const View&) {
      return on.send(data, next, 3, "message");
    });
    flights.push_back(std::make_unique<Flight>(rank, dtype, length, 0, seed += 2));
    flights.back()->post(group, [&](Group& on, const View& data, const View&) {
      return on.receive(data, previous, 3, "message");
    });
  }
}

TEST_F(CudaPeers, EveryCollectiveLeavesTheBitsOfTheHosts) {
  for (int ranks : {2, 3, 4, 8}) {
    on_ranks(ranks, [&](PeerRank& rank) {
      std::unique_ptr<Group> group = rank.everyone();
      for (Dtype dtype : kDtypes) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << name_of(dtype));
        auto seed = static_cast<unsigned>(1000 * rank.rank());
        // All are in flight at once, and each rank waits in another order.
        Flights flights;
        post_reductions(rank, *group, dtype, seed + 100, flights);
        post_parts(rank, *group, dtype, seed + 200, flights);
        post_exchanges(rank, *group, dtype, seed + 300, flights);
        std::shuffle(flights.begin(), flights.end(), std::mt19937(seed));
        for (auto& flight : flights) flight->finish();
        for (auto& flight : flights) {
          EXPECT_TRUE(flight->in.same());
          EXPECT_TRUE(flight->out.same());
        }
      }
    });
  }
}

TEST_F(CudaPeers, OverlappingGroupsDoNotMix) {
  on_ranks(8, [](PeerRank& rank) {
    std::vector<std::unique_ptr<Group>> groups;
    groups.push_back(rank.everyone());
    groups.push_back(
        rank.group(rank.rank() < 4 ? std::vector{0, 1, 2, 3} : std::vector{7, 6, 5, 4}));
    groups.push_back(rank.group({rank.rank() % 4, rank.rank() % 4 + 4}));
    groups.push_back(rank.group({0, 7}));
    Flights flights;
    for (unsigned round = 0; round < 20; ++round) {
      for (auto& group : groups) {
        if (group->size() == 1) continue;
        unsigned seed = 1000 * static_cast<unsigned>(rank.rank()) + 20 * round;
        post_exchanges(rank, *group, Dtype::kF32, seed, flights);
        flights.push_back(std::make_unique<Flight>(rank, Dtype::kBf16, 3001, 0, seed));
        flights.back()->post(*group, [](Group& on, const View& data, const View&) {
          return on.all_reduce(data, Reduction::kSum, "sum");
        });
      }
    }
    for (auto& flight : flights) flight->finish();
    for (auto& flight : flights) EXPECT_TRUE(flight->in.same() && flight->out.same());
  });
}

// Long kernels on each rank's stream produce and consume the values, at a different pace on each
// rank, without host synchronisation. A collective that starts too early, or a rank that continues
// too early, would see wrong values.
TEST_F(CudaPeers, CollectivesAreOrderedWithWhatRanksCompute) {
  constexpr int kRanks = 4, kRounds = 30;
  constexpr std::int64_t kCount = 1 << 20;
  on_ranks(kRanks, [](PeerRank& rank) {
    const Kernels& cuda = cuda_kernels();
    std::unique_ptr<Group> group = rank.everyone();
    Tensor slow(rank.arena(), Dtype::kF32, {kCount * 16}, "test");
    Tensor total(rank.arena(), Dtype::kF32, {kCount}, "test");
    cuda.fill(rank.stream(), total, 0);
    int next = (rank.rank() + 1) % kRanks, previous = (rank.rank() + kRanks - 1) % kRanks;
    for (int round = 0; round < kRounds; ++round) {
      // Their memory is reused in the next round, for other values.
      Tensor value(rank.arena(), Dtype::kF32, {kCount}, "test");
      Tensor message(rank.arena(), Dtype::kF32, {kCount}, "test");
      for (int i = 0; i < (rank.rank() + round) % kRanks * 4; ++i) {
        cuda.fill(rank.stream(), slow, i);
      }
      cuda.fill(rank.stream(), value, rank.rank() + round);
      Work sent = group->send(value, next, 0, "message");
      Work received = group->receive(message, previous, 0, "message");
      sent.wait();
      Work sum = group->all_reduce(value, Reduction::kSum, "sum");
      received.wait();
      cuda.elementwise.axpby(rank.stream(), 1, message, 1, total);
      // Half of the works are dropped without a wait.
      if (round % 2 == 0) {
        sum.wait();
      } else {
        group->host().barrier("posted");
        sum = Work();
      }
      cuda.elementwise.axpby(rank.stream(), 1, value, 1, total);
    }
    std::vector<float> got(kCount);
    cuda.device.fetch(rank.stream(), total, got.data()).wait();
    // Sums of the ranks 0..3, of the previous rank's index, and of the rounds.
    float expected = kRounds * (6 + previous) + 5 * (kRounds - 1) * kRounds / 2;
    EXPECT_EQ(got, std::vector<float>(kCount, expected));
  });
}

TEST_F(CudaPeers, ASendNeverWaitsForItsReceive) {
  on_ranks(2, [](PeerRank& rank) {
    std::unique_ptr<Group> group = rank.everyone();
    int other = 1 - rank.rank();
    std::vector<std::unique_ptr<BothSides>> sent, received;
    for (unsigned i = 0; i < 20; ++i) {
      sent.push_back(std::make_unique<BothSides>(rank, Dtype::kF32, 300000));
      sent.back()->fill(i);
      group->send(sent.back()->device(), other, 0, "message").wait();
    }
    sent.clear();
    for (unsigned i = 0; i < 20; ++i) {
      received.push_back(std::make_unique<BothSides>(rank, Dtype::kF32, 300000));
      BothSides& at = *received.back();
      at.fill(i);  // the expected values
      cuda_kernels().fill(rank.stream(), at.device(), -1);
      group->receive(at.device(), other, 0, "message").wait();
    }
    for (auto& at : received) EXPECT_TRUE(at->same());
  });
}

template <class Body>
void expect_failure(ErrorKind kind, const std::vector<std::string>& parts, double timeout,
                    const Body& body) {
  expect_error(kind, parts, [&] {
    run_thread_ranks(3, {timeout}, [&](World& world) {
      PeerRank rank(world);
      std::unique_ptr<Group> group = rank.everyone();
      Tensor data(rank.arena(), Dtype::kF32, {1000}, "test");
      body(world, *group, data);
    });
  });
}

TEST_F(CudaPeers, RanksThatMeetInDifferentCollectivesAreNamed) {
  expect_failure(ErrorKind::kComm, {"rank 0 in all_reduce of weights", "rank 2 in broadcast of"},
                 60, [](World&, Group& group, const View& data) {
                   if (group.rank() == 2) group.broadcast(data, 0, "tokens").wait();
                   group.all_reduce(data, Reduction::kSum, "weights").wait();
                 });
}

TEST_F(CudaPeers, ARankThatThrowsWakesTheOthers) {
  expect_failure(ErrorKind::kNumeric, {"rank 1: the cause"}, 60,
                 [](World&, Group& group, const View& data) {
                   Work pending = group.all_reduce(data, Reduction::kSum, "first");
                   BEV_CHECK(group.rank() != 1, ErrorKind::kNumeric, "the cause");
                   pending.wait();
                   group.receive(data, 1, 0, "never sent").wait();
                 });
}

TEST_F(CudaPeers, ARankThatStallsIsReported) {
  expect_failure(ErrorKind::kComm,
                 {"all_reduce of x in group group has waited 2.", "rank 1 never came"}, 2,
                 [](World& world, Group& group, const View& data) {
                   while (group.rank() == 1 && !world.aborted()) std::this_thread::yield();
                   group.all_reduce(data, Reduction::kSum, "x").wait();
                 });
}

}  // namespace
}  // namespace bev::cuda_test
