// Samplers, also compared with Megatron-LM's.
#include "data/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "base/file.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using nlohmann::json;

std::vector<std::int64_t> micro_batch(const SampleOrder& order, const SampleOrderSpec& spec,
                                      std::int64_t consumed, std::int64_t rank) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(spec.micro_batch_size));
  order.micro_batch(consumed, rank, samples);
  return samples;
}

TEST(SampleOrder, IsThatOfMegatron) {
  json cases = json::parse(read_file(BEV_SOURCE_DIR "/tests/golden/data/orders.json"));
  ASSERT_GE(cases.size(), 15u);
  for (const json& entry : cases) {
    SampleOrderSpec spec{
        .kind = entry["kind"] == "cyclic" ? OrderKind::kCyclic : OrderKind::kSingle,
        .num_samples = entry["num_samples"],
        .micro_batch_size = entry["micro_batch_size"],
        .data_parallel_size = entry["data_parallel_size"],
        .data_sharding = entry.value("data_sharding", true)};
    SampleOrder order(spec);
    std::int64_t block = spec.micro_batch_size * spec.data_parallel_size;
    for (std::int64_t rank = 0; rank < spec.data_parallel_size; ++rank) {
      const json& expected = entry["micro_batches"][static_cast<std::size_t>(rank)];
      ASSERT_FALSE(expected.empty());
      std::int64_t consumed = entry["consumed_samples"];
      for (const json& batch : expected) {
        EXPECT_EQ(json(micro_batch(order, spec, consumed, rank)), batch)
            << "rank " << rank << " at " << consumed << " of " << entry.dump();
        consumed += block;
      }
    }
  }
}

TEST(SampleOrder, OfACyclicEpochHasEverySampleOnceButTheRest) {
  for (bool sharding : {false, true}) {
    SampleOrderSpec spec{OrderKind::kCyclic, 103, 3, 4, sharding};
    SampleOrder order(spec);
    std::vector<std::int64_t> first_epoch;
    for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
      std::vector<std::int64_t> seen;
      for (std::int64_t at = 0; at < 96; at += 12) {
        for (std::int64_t rank = 0; rank < 4; ++rank) {
          for (std::int64_t sample : micro_batch(order, spec, epoch * 96 + at, rank)) {
            seen.push_back(sample);
          }
        }
      }
      EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), 96u);
      EXPECT_GE(std::ranges::min(seen), 0);
      EXPECT_LT(std::ranges::max(seen), 103);
      if (epoch == 0) first_epoch = seen;
      EXPECT_EQ(seen == first_epoch, epoch == 0) << epoch;
    }
  }
}

// Readers may be in different epochs, even far apart.
TEST(SampleOrder, IsTheSameFromManyThreads) {
  SampleOrderSpec spec{OrderKind::kCyclic, 40, 2, 2, true};
  SampleOrder shared(spec);
  std::vector<std::vector<std::int64_t>> got(8);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < got.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t at = 0; at < 400; at += 4) {
        std::int64_t place = (at + static_cast<std::int64_t>(t) * 44) % 400;
        for (std::int64_t s : micro_batch(shared, spec, place, 1)) got[t].push_back(s);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  SampleOrder alone(spec);
  for (std::size_t t = 0; t < got.size(); ++t) {
    std::vector<std::int64_t> expected;
    for (std::int64_t at = 0; at < 400; at += 4) {
      std::int64_t place = (at + static_cast<std::int64_t>(t) * 44) % 400;
      for (std::int64_t s : micro_batch(alone, spec, place, 1)) expected.push_back(s);
    }
    EXPECT_EQ(got[t], expected) << t;
  }
}

TEST(SampleOrder, RefusesWhatItCannotDealOut) {
  expect_error(ErrorKind::kConfig, {"cyclic needs 12 samples", "the data has 11"}, [] {
    SampleOrder order({OrderKind::kCyclic, 11, 3, 4, true});
  });
  expect_error(ErrorKind::kConfig, {"cyclic shuffles 214748364 samples", "use single"}, [] {
    SampleOrder order({OrderKind::kCyclic, 214748364, 1, 1, false});
  });
  // A run on 2 ranks continues with 3: 8 is not a multiple of 6.
  SampleOrderSpec spec{OrderKind::kCyclic, 100, 2, 3, false};
  SampleOrder order(spec);
  expect_error(ErrorKind::kConfig, {"after 8 samples", "micro-batch size 2 x dp 3"},
               [&] { micro_batch(order, spec, 8, 0); });
  expect_error(ErrorKind::kInternal, {"rank 3 of 3"}, [&] { micro_batch(order, spec, 6, 3); });
}

}  // namespace
}  // namespace bev
