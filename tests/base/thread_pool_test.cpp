#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/expect_error.h"

namespace bev {
namespace {
TEST(MachineThreads, AreNoMoreThanAffinityLeaves) {
  std::thread([] {
    cpu_set_t allowed, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    EXPECT_LE(machine_threads(), CPU_COUNT(&allowed));
    CPU_ZERO(&one);
    for (std::size_t cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &one);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(machine_threads(), 1);
  }).join();
}

TEST(MachineThreads, AreNoMoreThanTheQuotaLeaves) {
  EXPECT_EQ(quota_threads("200000 100000"), 2);
  EXPECT_EQ(quota_threads("250000 100000"), 3);  // two would leave half a core idle
  EXPECT_EQ(quota_threads("1000 100000"), 1);
  for (const char* text : {"max 100000", "", "100000", "-1 100000", "100000 0", "x y"}) {
    EXPECT_EQ(quota_threads(text), kNoQuota) << text;
  }
}

TEST(ThreadPool, RunsEveryPieceOnce) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (std::int64_t pieces : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> counts(static_cast<std::size_t>(pieces));
      pool.run(pieces, [&](std::int64_t piece) { ++counts[static_cast<std::size_t>(piece)]; });
      for (const auto& count : counts) EXPECT_EQ(count.load(), 1);
    }
  }
}

// Writes of a piece are visible to the caller and to the pieces of the next run.
TEST(ThreadPool, RunsFollowEachOther) {
  ThreadPool pool(4);
  std::vector<std::int64_t> values(64, 0);
  for (int round = 0; round < 2000; ++round) {
    pool.run(64, [&](std::int64_t piece) {
      // Reads the value written in the previous round, possibly by another thread.
      values[static_cast<std::size_t>(piece)] += piece;
    });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), std::int64_t{0}),
              (round + 1) * 63 * 64 / 2);
  }
}

TEST(ThreadPool, OneThreadUsesTheCallersOnly) {
  ThreadPool pool(1);
  std::set<std::thread::id> seen;
  pool.run(10, [&](std::int64_t) { seen.insert(std::this_thread::get_id()); });
  EXPECT_EQ(seen, std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST(ThreadPool, WorkersWakeAfterALongPause) {
  ThreadPool pool(3);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> count = 0;
    pool.run(30, [&](std::int64_t) { ++count; });
    EXPECT_EQ(count.load(), 30);
  }
}

TEST(ThreadPool, SeveralPoolsSideBySide) {
  std::vector<std::thread> owners;
  std::atomic<std::int64_t> total = 0;
  for (int owner = 0; owner < 4; ++owner) {
    owners.emplace_back([&] {
      ThreadPool pool(2);
      for (int round = 0; round < 100; ++round) {
        pool.run(10, [&](std::int64_t piece) { total += piece; });
      }
    });
  }
  for (std::thread& owner : owners) owner.join();
  EXPECT_EQ(total.load(), 4 * 100 * 45);
}

TEST(ThreadPool, IdleOrUnusedPoolsEnd) {
  for (int round = 0; round < 50; ++round) ThreadPool pool(4);
}

TEST(ThreadPool, ScratchIsKeptAndGrows) {
  ThreadPool pool(2);
  std::byte* small = pool.scratch(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small) % 64, 0u);
  EXPECT_EQ(pool.scratch(50), small);
  EXPECT_EQ(pool.scratch(100), small);
  std::byte* large = pool.scratch(1 << 20);
  large[(1 << 20) - 1] = std::byte{1};
  EXPECT_EQ(pool.scratch(100), large);
}

TEST(ThreadPool, RefusesNoThreads) {
  expect_error(ErrorKind::kConfig, {"thread pool", "0"}, [] { ThreadPool pool(0); });
}
}  // namespace
}  // namespace bev
