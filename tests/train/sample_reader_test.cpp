// Prefetching reader: what is read, in which order, by which rank, and what happens on failure.
#include "train/sample_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

// Sample i is the token i; reads are counted, and may be slow or fail.
class Numbers : public Dataset {
 public:
  explicit Numbers(std::int64_t count) : count_(count) {}

  std::int64_t seq_length() const override { return 1; }
  std::int64_t num_samples() const override { return count_; }
  TokenSample sample(std::int64_t index) const override {
    reads.fetch_add(1);
    // Later samples overtake earlier ones.
    for (std::int64_t i = 0; i < (index * 7919) % 5; ++i) std::this_thread::yield();
    BEV_CHECK(index < count_, ErrorKind::kInput, "numbers.bin: sample ", index, " is damaged");
    auto token = static_cast<std::int32_t>(index);
    return {{token}, {token}, {1.0f}, {1}};
  }

  mutable std::atomic<std::int64_t> reads = 0;

 private:
  std::int64_t count_;
};

SampleSource source_of(std::shared_ptr<const Dataset> data, const BatchSpec& batches,
                       std::int64_t rank, OrderKind kind = OrderKind::kSingle) {
  SampleOrderSpec spec{.kind = kind,
                       .num_samples = data->num_samples(),
                       .micro_batch_size = batches.micro_batch_size,
                       .data_parallel_size = batches.data_parallel_size};
  return {std::move(data), std::make_shared<SampleOrder>(spec), BatchSchedule(batches), rank,
          batches.data_parallel_size};
}

// Samples of the iterations in [from, to) as read by all ranks, sorted within each iteration.
std::vector<std::int32_t> read_all(const BatchSpec& spec, std::int64_t from, std::int64_t to,
                                   const ReadAhead& ahead, OrderKind kind = OrderKind::kSingle) {
  auto data = std::make_shared<Numbers>(1000);
  BatchSchedule batches(spec);
  std::vector<std::unique_ptr<SampleReader>> readers;
  for (std::int64_t rank = 0; rank < spec.data_parallel_size; ++rank) {
    readers.push_back(
        std::make_unique<SampleReader>(source_of(data, spec, rank, kind), from, ahead));
  }
  std::vector<std::int32_t> out;
  for (std::int64_t consumed = from; consumed < to;) {
    BatchSize size = batches.at(consumed);
    auto begin = static_cast<std::ptrdiff_t>(out.size());
    for (std::int64_t m = 0; m < size.micro_batches; ++m) {
      for (auto& reader : readers) {
        for (const TokenSample& sample : reader->next()) out.push_back(sample.tokens[0]);
      }
    }
    std::sort(out.begin() + begin, out.end());
    consumed += size.running;
  }
  return out;
}

TEST(SampleReader, LosesAndRepeatsNothingAcrossRestarts) {
  // 12 is divisible by every number of ranks; the ramp-up has batches of 12, 24, 36.
  for (const std::vector<std::int64_t>& rampup :
       {std::vector<std::int64_t>{}, std::vector<std::int64_t>{12, 12, 100}}) {
    auto spec = [&](std::int64_t ranks) {
      return BatchSpec{.micro_batch_size = 1,
                       .data_parallel_size = ranks,
                       .global_batch_size = 36,
                       .rampup = rampup};
    };
    BatchSchedule batches(spec(1));
    for (std::int64_t iterations : {0, 1, 2, 3, 6, 9}) {
      std::int64_t stop = batches.samples_after(iterations), end = batches.samples_after(10);
      for (std::int64_t before = 1; before <= 4; ++before) {
        for (std::int64_t after = 1; after <= 4; ++after) {
          std::vector<std::int32_t> seen = read_all(spec(before), 0, stop, {2, 2});
          std::vector<std::int32_t> rest = read_all(spec(after), stop, end, {1, 3});
          seen.insert(seen.end(), rest.begin(), rest.end());
          std::vector<std::int32_t> expected(static_cast<std::size_t>(end));
          std::iota(expected.begin(), expected.end(), 0);
          ASSERT_EQ(seen, expected) << before << " ranks, stop at " << stop << ", " << after;
        }
      }
    }
  }
}

// Also from between the iterations of the previous run, whose batch size was different.
TEST(SampleReader, BeginsAnywhere) {
  for (std::int64_t from = 0; from < 40; ++from) {
    BatchSpec spec{.micro_batch_size = 2, .data_parallel_size = 3, .global_batch_size = 12};
    std::vector<std::int32_t> seen = read_all(spec, from, from + 24, {3, 1});
    std::vector<std::int32_t> expected(24);
    std::iota(expected.begin(), expected.end(), static_cast<std::int32_t>(from));
    EXPECT_EQ(seen, expected) << from;
  }
}

TEST(SampleReader, GivesTheSameWhateverTheThreads) {
  for (OrderKind kind : {OrderKind::kSingle, OrderKind::kCyclic}) {
    BatchSpec spec{.micro_batch_size = 3,
                   .data_parallel_size = 2,
                   .global_batch_size = 24,
                   .rampup = {6, 6, 40}};
    std::int64_t end = kind == OrderKind::kSingle ? 960 : 3000;  // several epochs
    std::vector<std::int32_t> expected = read_all(spec, 0, end, {0, 1}, kind);
    for (std::int64_t threads : {1, 2, 7}) {
      for (std::int64_t factor : {1, 2, 40}) {
        EXPECT_EQ(read_all(spec, 0, end, {threads, factor}, kind), expected)
            << threads << " threads, " << factor;
      }
    }
  }
}

TEST(SampleReader, ReadsOnlyTheSamplesOfItsRank) {
  BatchSpec spec{.micro_batch_size = 2, .data_parallel_size = 3, .global_batch_size = 12};
  auto data = std::make_shared<Numbers>(1000);
  SampleReader reader(source_of(data, spec, 1), 0, {0, 1});
  EXPECT_EQ(reader.next()[0].tokens[0], 2);
  EXPECT_EQ(reader.next()[1].tokens[0], 9);
  EXPECT_EQ(data->reads, 4);
}

TEST(SampleReader, ReadsAheadNoFurtherThanItMay) {
  BatchSpec spec{.micro_batch_size = 5, .data_parallel_size = 1, .global_batch_size = 10};
  auto data = std::make_shared<Numbers>(100000);
  SampleReader reader(source_of(data, spec, 0), 0, {3, 2});
  for (std::int64_t taken = 0; taken < 50; ++taken) {
    // Waits until six micro-batches are buffered.
    while (data->reads < 5 * (taken + 6)) std::this_thread::yield();
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    EXPECT_EQ(data->reads, 5 * (taken + 6));
    EXPECT_EQ(reader.next().size(), 5u);
  }
}

TEST(SampleReader, ThrowsWhatWentWrongWhenItsTurnComes) {
  BatchSpec spec{.micro_batch_size = 2, .data_parallel_size = 1, .global_batch_size = 4};
  for (std::int64_t threads : {0, 1, 3}) {
    SampleReader reader(source_of(std::make_shared<Numbers>(7), spec, 0), 0, {threads, 4});
    for (std::int32_t i = 0; i < 3; ++i) EXPECT_EQ(reader.next()[0].tokens[0], 2 * i);
    for (int again = 0; again < 3; ++again) {
      expect_error(ErrorKind::kInput, {"numbers.bin: sample 7 is damaged"}, [&] { reader.next(); });
    }
  }
}

// The batch size of a later iteration is not divisible among the ranks.
TEST(SampleReader, ThrowsWhenTheScheduleDoes) {
  BatchSpec spec{
      .micro_batch_size = 1, .data_parallel_size = 2, .global_batch_size = 5, .rampup = {4, 1, 8}};
  for (std::int64_t threads : {0, 2}) {
    SampleReader reader(source_of(std::make_shared<Numbers>(100), spec, 0), 0, {threads, 2});
    std::int64_t steps = 0;
    expect_error(ErrorKind::kConfig, {"5 is not divisible by", "data-parallel size 2"}, [&] {
      for (; steps < 100; ++steps) reader.next();
    });
    EXPECT_LE(steps, 4);
  }
}

TEST(SampleReader, StopsAtAnyMoment) {
  BatchSpec spec{.micro_batch_size = 1, .data_parallel_size = 1, .global_batch_size = 2};
  for (int taken = 0; taken < 40; ++taken) {
    SampleReader reader(source_of(std::make_shared<Numbers>(20), spec, 0), 0, {4, 3});
    for (int i = 0; i < std::min(taken, 20); ++i) EXPECT_EQ(reader.next()[0].tokens[0], i);
  }
}

}  // namespace
}  // namespace bev
