// Groups over NCCL, on what the hosts do: a fake NCCL moves the data between threads.
#include "backend/cuda/comm/nccl_group.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/error.h"
#include "comm/world.h"
#include "kernels/device.h"
#include "tests/nccl/fake_cuda.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using Floats = std::vector<float>;
using Counts = std::vector<std::int64_t>;

View view_of(Floats& data) {
  return {data.data(), Dtype::kF32, {static_cast<std::int64_t>(data.size())}};
}
Floats draw(std::mt19937& random, std::int64_t count) {
  Floats data(static_cast<std::size_t>(count));
  for (float& value : data) value = 0.137f * static_cast<float>(random() % 2001) - 100;
  return data;
}
std::int64_t sum_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// body(group, host group, queue) on `ranks` ranks, in default and in deterministic mode.
template <class Body>
void on_ranks(int ranks, const Body& body) {
  for (bool deterministic : {false, true}) {
    run_thread_ranks(ranks, {20.0}, [&](World& world) {
      DeviceOptions options;
      options.deterministic = deterministic;
      CudaQueue queue(0, options);
      std::vector<int> members(static_cast<std::size_t>(ranks));
      std::iota(members.begin(), members.end(), 0);
      std::unique_ptr<Group> host = world.make_group("group", members);
      std::unique_ptr<Group> group = make_nccl_group(*host, queue, deterministic);
      body(*group, *host, queue);
    });
  }
}

// Does the same on both groups and compares what is in `data` afterwards.
template <class Call>
void expect_same(Group& group, Group& host, Floats data, const Call& call) {
  Floats expected = data;
  call(group, data).wait();
  call(host, expected).wait();
  EXPECT_EQ(data, expected);
}

// Like this, equal and unequal counts by turns; some are zero.
Counts draw_counts(std::mt19937& random, int ranks) {
  bool equal = random() % 2 == 0;
  Counts counts(static_cast<std::size_t>(ranks), 5);
  if (equal) return counts;
  for (std::int64_t& count : counts) count = static_cast<std::int64_t>(random() % 7);
  return counts;
}

TEST(NcclGroup, EveryCollectiveGivesTheHosts) {
  for (int ranks : {2, 3, 4}) {
    on_ranks(ranks, [&](Group& group, Group& host, CudaQueue& queue) {
      std::mt19937 common(1), own(static_cast<unsigned>(group.rank()) + 2);
      for (int round = 0; round < 60; ++round) {
        Reduction reduction = round % 3 == 0 ? Reduction::kMax : Reduction::kSum;
        expect_same(group, host, draw(own, 17), [&](Group& on, Floats& data) {
          return on.all_reduce(view_of(data), reduction, "sum");
        });
        expect_same(group, host, draw(own, 9), [&](Group& on, Floats& data) {
          return on.broadcast(view_of(data), round % ranks, "broadcast");
        });
        Counts counts = draw_counts(common, ranks);
        std::int64_t mine = counts[static_cast<std::size_t>(group.rank())];
        Floats part = draw(own, mine), whole = draw(own, sum_of(counts));
        expect_same(group, host, whole, [&](Group& on, Floats& data) {
          return on.all_gather(view_of(part), view_of(data), "gather");
        });
        expect_same(group, host, part, [&](Group& on, Floats& data) {
          return on.reduce_scatter(view_of(whole), view_of(data), "scatter");
        });
        Counts send, receive;
        // Every third round all goes to the last rank.
        auto count = [&](int from, int to) -> std::int64_t {
          if (round % 3 == 2) return to == ranks - 1 ? from + 1 : 0;
          return (from * 3 + to + round) % 5;
        };
        for (int i = 0; i < ranks; ++i) {
          send.push_back(count(group.rank(), i));
          receive.push_back(count(i, group.rank()));
        }
        Floats in = draw(own, sum_of(send));
        expect_same(group, host, draw(own, sum_of(receive)), [&](Group& on, Floats& data) {
          return on.all_to_all(view_of(in), send, view_of(data), receive, "exchange");
        });
        if (round % 10 == 0) queue.wait_for_all();
      }
    });
  }
}

// Messages of two channels on each lane, received in another order than they were sent in.
TEST(NcclGroup, MessagesFindTheirReceivesInAnyOrder) {
  for (int ranks : {2, 3, 4}) {
    on_ranks(ranks, [&](Group& group, Group&, CudaQueue&) {
      auto message = [](int from, int to, int number) {
        return Floats(static_cast<std::size_t>(4 + number % 3),
                      static_cast<float>(1000 * from + 100 * to + number));
      };
      std::mt19937 random(static_cast<unsigned>(group.rank()));
      for (int round = 0; round < 20; ++round) {
        for (int to = 0; to < ranks; ++to) {
          for (int i = 0; to != group.rank() && i < 3; ++i) {
            Floats data = message(group.rank(), to, 3 * round + i);
            group.send(view_of(data), to, i % 2, "message").wait();
          }
        }
        struct Receipt {
          Floats got, expected;
          Work work;
        };
        std::vector<std::unique_ptr<Receipt>> receipts;
        for (int from = 0; from < ranks; ++from) {
          for (int i = 0; from != group.rank() && i < 3; ++i) {
            auto receipt = std::make_unique<Receipt>();
            receipt->expected = message(from, group.rank(), 3 * round + i);
            receipt->got.resize(receipt->expected.size());
            receipt->work = group.receive(view_of(receipt->got), from, i % 2, "message");
            receipts.push_back(std::move(receipt));
          }
        }
        std::shuffle(receipts.begin(), receipts.end(), random);
        for (auto& receipt : receipts) {
          receipt->work.wait();
          EXPECT_EQ(receipt->got, receipt->expected);
        }
      }
    });
  }
}

// The second time round it is recorded: its memory has to be where it was.
TEST(NcclGroup, ARecordingHasTheSameResultsAndAllocatesNothing) {
  for (int ranks : {2, 3, 4}) {
    on_ranks(ranks, [&](Group& group, Group& host, CudaQueue& queue) {
      int next = (group.rank() + 1) % ranks, previous = (group.rank() + ranks - 1) % ranks;
      auto run = [&] {
        Floats mine(6, static_cast<float>(group.rank() + 1)),
            in(static_cast<std::size_t>(6 * ranks), 2.5f);
        expect_same(group, host, mine, [&](Group& on, Floats& data) {
          return on.all_reduce(view_of(data), Reduction::kSum, "sum");
        });
        expect_same(group, host, mine, [&](Group& on, Floats& data) {
          return on.reduce_scatter(view_of(in), view_of(data), "scatter");
        });
        Floats got(6);
        Work sent = group.send(view_of(mine), next, 0, "ring");
        group.receive(view_of(got), previous, 0, "ring").wait();
        sent.wait();
        EXPECT_EQ(got, Floats(6, static_cast<float>(previous + 1)));
      };
      run();
      queue.begin_capture();
      std::int64_t before = fake_allocations();
      run();
      EXPECT_EQ(fake_allocations(), before);
    });
  }
}

TEST(NcclGroup, ARankThatThrowsIsTheCauseAndNobodyHangs) {
  expect_error(ErrorKind::kNumeric, {"rank 1: the cause"}, [] {
    on_ranks(3, [](Group& group, Group&, CudaQueue& queue) {
      Floats data(4);
      group.broadcast(view_of(data), 0, "first").wait();
      BEV_CHECK(group.rank() != 1, ErrorKind::kNumeric, "the cause");
      group.host().barrier("second");
      queue.wait_for_all();
    });
  });
}

}  // namespace
}  // namespace bev
