// Every collective for several rank counts and every dtype, compared with the expected result.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "comm/placement.h"
#include "comm/world.h"

namespace bev {
namespace {

constexpr Dtype kDtypes[] = {Dtype::kF64, Dtype::kF32, Dtype::kBf16, Dtype::kF16,
                             Dtype::kI64, Dtype::kI32, Dtype::kU8};
constexpr int kRanks[] = {1, 2, 3, 4, 8};

template <class F>
auto visit_dtype(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::kI64:
      return f(std::int64_t{});
    case Dtype::kI32:
      return f(std::int32_t{});
    case Dtype::kU8:
      return f(std::uint8_t{});
    default:
      return visit_float(dtype, f);
  }
}

// Elements with small integer values, exact in every dtype.
class Buffer {
 public:
  Buffer(Dtype dtype, std::int64_t count)
      : bytes_(static_cast<std::size_t>(count) * size_of(dtype) + 1),
        view_{bytes_.data(), dtype, {count}} {}
  Buffer(const Buffer&) = delete;
  View view() const { return view_; }
  View part(std::int64_t begin, std::int64_t end) const { return view_.rows(begin, end); }
  void set(std::int64_t i, int value) {
    visit_dtype(view_.dtype, [&](auto zero) {
      using T = decltype(zero);
      static_cast<T*>(view_.data)[i] = T(static_cast<float>(value));
    });
  }
  double get(std::int64_t i) const {
    return visit_dtype(view_.dtype, [&](auto zero) -> double {
      return static_cast<double>(static_cast<const decltype(zero)*>(view_.data)[i]);
    });
  }
  std::int64_t count() const { return view_.numel(); }

 private:
  std::vector<std::byte> bytes_;
  View view_;
};

int value_of(int rank, std::int64_t i) { return static_cast<int>((rank * 5 + i * 3) % 17); }
int sum_of(int ranks, std::int64_t i) {
  int sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += value_of(rank, i);
  return sum;
}
std::vector<int> everyone(int ranks) {
  std::vector<int> list(static_cast<std::size_t>(ranks));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

// Runs body(group, dtype) for every rank count and dtype.
template <class Body>
void on_every_world(const Body& body) {
  for (int ranks : kRanks) {
    run_thread_ranks(ranks, {20.0}, [&](World& world) {
      std::unique_ptr<Group> group = world.make_group("group", everyone(ranks));
      for (Dtype dtype : kDtypes) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, " << name_of(dtype));
        body(*group, dtype);
      }
    });
  }
}

// Uneven parts, some empty.
std::int64_t part_size(int rank) { return rank % 3 == 1 ? 0 : 3 + 2 * rank; }
std::int64_t part_begin(int rank) {
  std::int64_t begin = 0;
  for (int i = 0; i < rank; ++i) begin += part_size(i);
  return begin;
}

TEST(Collective, AllReduceSumsAndTakesTheMaximum) {
  on_every_world([](Group& group, Dtype dtype) {
    for (std::int64_t count : {0, 1, 5, 2500}) {
      Buffer sum(dtype, count), most(dtype, count);
      for (std::int64_t i = 0; i < count; ++i) {
        sum.set(i, value_of(group.rank(), i));
        most.set(i, value_of(group.rank(), i));
      }
      group.all_reduce(sum.view(), Reduction::kSum, "sum").wait();
      group.all_reduce(most.view(), Reduction::kMax, "max").wait();
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(sum.get(i), sum_of(group.size(), i));
        int expected = 0;
        for (int r = 0; r < group.size(); ++r) expected = std::max(expected, value_of(r, i));
        ASSERT_EQ(most.get(i), expected);
      }
    }
  });
}

TEST(Collective, AllGatherPutsUnevenPartsInRankOrder) {
  on_every_world([](Group& group, Dtype dtype) {
    Buffer in(dtype, part_size(group.rank())), out(dtype, part_begin(group.size()));
    for (std::int64_t i = 0; i < in.count(); ++i) in.set(i, value_of(group.rank(), i));
    group.all_gather(in.view(), out.view(), "parts").wait();
    for (int rank = 0; rank < group.size(); ++rank) {
      for (std::int64_t i = 0; i < part_size(rank); ++i) {
        ASSERT_EQ(out.get(part_begin(rank) + i), value_of(rank, i));
      }
    }
  });
}

TEST(Collective, ReduceScatterGivesEachItsPartOfTheSum) {
  on_every_world([](Group& group, Dtype dtype) {
    Buffer in(dtype, part_begin(group.size())), out(dtype, part_size(group.rank()));
    for (std::int64_t i = 0; i < in.count(); ++i) in.set(i, value_of(group.rank(), i));
    group.reduce_scatter(in.view(), out.view(), "parts").wait();
    for (std::int64_t i = 0; i < out.count(); ++i) {
      ASSERT_EQ(out.get(i), sum_of(group.size(), part_begin(group.rank()) + i));
    }
    // The input is unchanged.
    for (std::int64_t i = 0; i < in.count(); ++i) ASSERT_EQ(in.get(i), value_of(group.rank(), i));
  });
}

// As in the parameter store: the part lies inside the whole.
TEST(Collective, PartsMayLieInTheWhole) {
  on_every_world([](Group& group, Dtype dtype) {
    std::int64_t begin = part_begin(group.rank()), end = part_begin(group.rank() + 1);
    Buffer whole(dtype, part_begin(group.size()));
    for (std::int64_t i = 0; i < whole.count(); ++i) whole.set(i, value_of(group.rank(), i));
    group.reduce_scatter(whole.view(), whole.part(begin, end), "gradients").wait();
    for (std::int64_t i = 0; i < whole.count(); ++i) {
      bool mine = i >= begin && i < end;
      ASSERT_EQ(whole.get(i), mine ? sum_of(group.size(), i) : value_of(group.rank(), i));
    }
    group.all_gather(whole.part(begin, end), whole.view(), "weights").wait();
    for (std::int64_t i = 0; i < whole.count(); ++i) {
      ASSERT_EQ(whole.get(i), sum_of(group.size(), i));
    }
  });
}

TEST(Collective, BroadcastFromEveryRoot) {
  on_every_world([](Group& group, Dtype dtype) {
    for (int root = 0; root < group.size(); ++root) {
      Buffer data(dtype, 9);
      for (std::int64_t i = 0; i < 9; ++i) data.set(i, value_of(group.rank(), i));
      group.broadcast(data.view(), root, "data").wait();
      for (std::int64_t i = 0; i < 9; ++i) ASSERT_EQ(data.get(i), value_of(root, i));
    }
  });
}

using ExchangeCount = std::int64_t (*)(int from, int to, int ranks);
void expect_exchange(Group& group, Dtype dtype, ExchangeCount count) {
  int me = group.rank(), ranks = group.size();
  std::vector<std::int64_t> send, receive;
  for (int other = 0; other < ranks; ++other) {
    send.push_back(count(me, other, ranks));
    receive.push_back(count(other, me, ranks));
  }
  auto total = [](const std::vector<std::int64_t>& list) {
    return std::accumulate(list.begin(), list.end(), std::int64_t{0});
  };
  Buffer in(dtype, total(send)), out(dtype, total(receive));
  std::int64_t at = 0;
  for (int to = 0; to < ranks; ++to) {
    for (std::int64_t i = 0; i < count(me, to, ranks); ++i) {
      in.set(at++, me * 10 + to + static_cast<int>(i));
    }
  }
  group.all_to_all(in.view(), send, out.view(), receive, "tokens").wait();
  at = 0;
  for (int from = 0; from < ranks; ++from) {
    for (std::int64_t i = 0; i < count(from, me, ranks); ++i) {
      ASSERT_EQ(out.get(at++), from * 10 + me + static_cast<int>(i));
    }
  }
}

TEST(Collective, AllToAllExchangesUnevenCounts) {
  on_every_world([&](Group& group, Dtype dtype) {
    expect_exchange(group, dtype,
                    [](int from, int to, int) -> std::int64_t { return (from * 2 + to) % 4; });
    // All to the last member; all from the first; nothing; only to itself.
    expect_exchange(group, dtype, [](int from, int to, int ranks) -> std::int64_t {
      return to == ranks - 1 ? from + 1 : 0;
    });
    expect_exchange(group, dtype,
                    [](int from, int to, int) -> std::int64_t { return from == 0 ? to : 0; });
    expect_exchange(group, dtype, [](int, int, int) -> std::int64_t { return 0; });
    expect_exchange(group, dtype,
                    [](int from, int to, int) -> std::int64_t { return from == to ? 3 : 0; });
  });
}

TEST(Collective, MessagesArriveInTheOrderSent) {
  for (int ranks : {2, 3, 8}) {
    run_thread_ranks(ranks, {20.0}, [&](World& world) {
      std::unique_ptr<Group> ring = world.make_group("group", everyone(ranks));
      int next = (world.rank() + 1) % ranks, previous = (world.rank() + ranks - 1) % ranks;
      // A send never waits: all may send before anyone receives.
      for (int i = 0; i < 50; ++i) {
        Buffer message(Dtype::kI32, 1 + i % 3);
        message.set(0, world.rank() * 100 + i);
        ring->send(message.view(), next, 0, "message").wait();
        message.set(0, -1);
      }
      for (int i = 0; i < 50; ++i) {
        Buffer message(Dtype::kI32, 1 + i % 3);
        ring->receive(message.view(), previous, 0, "message").wait();
        ASSERT_EQ(message.get(0), previous * 100 + i);
      }
    });
  }
}

TEST(Collective, BarrierWaitsForAll) {
  std::atomic<int> arrived = 0;
  run_thread_ranks(4, {20.0}, [&](World& world) {
    std::unique_ptr<Group> group = world.make_group("group", everyone(4));
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      group->barrier("round");
      ASSERT_GE(arrived.load(), 4 * round);
    }
  });
}

TEST(Collective, SumsRunInRankOrderWhateverTheTiming) {
  // 1e8 + 1 - 1e8 in f32 depends on the order.
  const float parts[] = {1e8f, 1.0f, -1e8f, 3.0f};
  float expected = ((1e8f + 1.0f) - 1e8f) + 3.0f;
  for (int round = 0; round < 10; ++round) {
    run_thread_ranks(4, {20.0}, [&](World& world) {
      std::unique_ptr<Group> group = world.make_group("group", everyone(4));
      if (world.rank() == round % 4) std::this_thread::yield();
      std::vector<float> data(7, parts[world.rank()]);
      group->all_reduce({data.data(), Dtype::kF32, {7}}, Reduction::kSum, "sum").wait();
      for (float x : data) ASSERT_EQ(x, expected);
    });
  }
}

TEST(Collective, SixteenBitSumsAreRoundedOnce) {
  // 256 + 1 + 1: in bf16 each single addition would be lost.
  run_thread_ranks(3, {20.0}, [&](World& world) {
    std::unique_ptr<Group> group = world.make_group("group", everyone(3));
    Bf16 value(world.rank() == 0 ? 256.0f : 1.0f);
    group->all_reduce({&value, Dtype::kBf16, {1}}, Reduction::kSum, "sum").wait();
    ASSERT_EQ(static_cast<float>(value), 258.0f);
  });
}

TEST(Collective, ANanSurvivesTheMaximumFromEveryRank) {
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    for (int bad = 0; bad < 3; ++bad) {
      run_thread_ranks(3, {20.0}, [&](World& world) {
        std::unique_ptr<Group> group = world.make_group("group", everyone(3));
        Buffer data(dtype, 4);
        for (std::int64_t i = 0; i < 4; ++i) data.set(i, world.rank());
        if (world.rank() == bad) {
          visit_float(dtype, [&](auto zero) {
            using T = decltype(zero);
            static_cast<T*>(data.view().data)[2] = T(std::nanf(""));
          });
        }
        group->all_reduce(data.view(), Reduction::kMax, "max").wait();
        ASSERT_EQ(data.get(1), 2);
        ASSERT_TRUE(std::isnan(data.get(2)));
      });
    }
  }
}

TEST(Collective, GroupsOfSomeRanksWorkSideBySide) {
  run_thread_ranks(6, {20.0}, [&](World& world) {
    int me = world.rank();
    // Members in arbitrary order: the group rank is the index in the list.
    std::unique_ptr<Group> odd_even = world.make_group(
        "group", me % 2 == 0 ? std::vector<int>{4, 0, 2} : std::vector<int>{1, 3, 5});
    std::unique_ptr<Group> pair = world.make_group("group", {me / 2 * 2, me / 2 * 2 + 1});
    for (int round = 0; round < 20; ++round) {
      std::int32_t in = me, out[3] = {};
      odd_even->all_gather({&in, Dtype::kI32, {1}}, {out, Dtype::kI32, {3}}, "ranks").wait();
      for (int i = 0; i < 3; ++i)
        ASSERT_EQ(out[i], odd_even->members()[static_cast<std::size_t>(i)]);
      std::int32_t sum = me;
      pair->all_reduce({&sum, Dtype::kI32, {1}}, Reduction::kSum, "pair").wait();
      ASSERT_EQ(sum, me / 2 * 4 + 1);
    }
    EXPECT_EQ(odd_even->members()[static_cast<std::size_t>(odd_even->rank())], me);
  });
}

// Two groups of the same members are independent.
TEST(Collective, EqualMemberListsAreSeparateGroups) {
  run_thread_ranks(2, {20.0}, [&](World& world) {
    std::unique_ptr<Group> first = world.make_group("group", {0, 1}),
                           second = world.make_group("group", {0, 1});
    std::int32_t one = 1, two = 2, got = 0;
    if (world.rank() == 0) {
      first->send({&one, Dtype::kI32, {1}}, 1, 0, "one").wait();
      second->send({&two, Dtype::kI32, {1}}, 1, 0, "two").wait();
    } else {
      second->receive({&got, Dtype::kI32, {1}}, 0, 0, "two").wait();
      EXPECT_EQ(got, 2);
      first->receive({&got, Dtype::kI32, {1}}, 0, 0, "one").wait();
      EXPECT_EQ(got, 1);
    }
  });
}

}  // namespace
}  // namespace bev
