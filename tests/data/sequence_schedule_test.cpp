#include "data/sequence_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/philox.h"

namespace bev {
namespace {

using Lengths = std::vector<std::int64_t>;

// Every sequence is in one pack, no rank of a pack holds too much, and larger blocks come first.
void expect_sound(const SequenceSchedule& schedule, const Lengths& lengths,
                  const SequenceLimits& limits) {
  std::set<std::size_t> seen;
  int last = 63;
  for (const SequencePack& pack : schedule.packs) {
    EXPECT_LE(pack.power, last);
    last = pack.power;
    const std::int64_t ranks = std::int64_t{1} << pack.power;
    EXPECT_LT(pack.block, limits.ranks / ranks);
    std::int64_t tokens = 0;
    for (std::size_t i : pack.sequences) {
      EXPECT_TRUE(seen.insert(i).second);
      tokens += lengths[i];
    }
    EXPECT_LE(tokens, limits.max_tokens * ranks);
    EXPECT_FALSE(pack.sequences.empty());
  }
  EXPECT_EQ(seen.size(), lengths.size());
}

// Sizes that double while halves are still too long.
TEST(SequenceSchedule, LongSequencesTakeAPowerOfTwoOfRanks) {
  const std::vector<std::pair<std::int64_t, int>> rows = {
      {1, 0},     {1024, 0},  {8192, 0},  {8193, 1},  {16384, 1},
      {16385, 2}, {20000, 2}, {32768, 2}, {40000, 3}, {65536, 3}};
  for (const auto& [length, power] : rows) EXPECT_EQ(least_power(length, 8192), power) << length;
}

TEST(SequenceSchedule, OfOneLengthIsPlainDataParallelism) {
  const Lengths lengths(8, 512);
  const SequenceSchedule schedule = schedule_sequences(lengths, {4, 1024});
  expect_sound(schedule, lengths, {4, 1024});
  EXPECT_EQ(schedule.packs.size(), 4u);
  EXPECT_EQ(schedule.micro_batches, 1);
  for (const SequencePack& pack : schedule.packs) EXPECT_EQ(pack.power, 0);
  EXPECT_EQ(imbalance(attention_pairs(schedule, lengths, 4)), 1);
}

TEST(SequenceSchedule, CountsThePairsOfAllTokens) {
  const Lengths lengths = {1, 2, 37, 1001};
  double all = 0;
  for (std::int64_t length : lengths) all += 0.5 * static_cast<double>(length * (length + 1));
  for (std::int64_t ranks : {1, 2, 8}) {
    const std::vector<double> shared =
        attention_pairs(schedule_sequences(lengths, {ranks, 2000}), lengths, ranks);
    const std::vector<double> fixed = fixed_attention_pairs(lengths, ranks, 2);
    EXPECT_EQ(std::accumulate(shared.begin(), shared.end(), 0.0), all);
    EXPECT_EQ(std::accumulate(fixed.begin(), fixed.end(), 0.0), all);
  }
}

TEST(SequenceSchedule, BalancesAttentionWhereFixedContextParallelismDoesNot) {
  const Lengths one_long = {65536, 700, 800, 8192, 300, 1200, 4096, 16000, 2500, 900, 600, 512};
  const Lengths few = {30000, 1000, 1000, 1000};
  Lengths many;
  for (std::uint32_t i = 0; i < 300; ++i) {
    const std::uint32_t bits = philox({i, 0, 0, 0}, 7)[0];
    // From 64 to 32768, long ones rare.
    many.push_back((64 << bits % 10) - static_cast<std::int64_t>(bits / 16 % 32));
  }
  for (const Lengths& lengths : {one_long, few, many}) {
    for (std::int64_t ranks : {2, 4, 8, 16}) {
      const SequenceLimits limits{ranks, std::max<std::int64_t>(8192, 65536 / ranks)};
      const SequenceSchedule schedule = schedule_sequences(lengths, limits);
      expect_sound(schedule, lengths, limits);
      const double now = imbalance(attention_pairs(schedule, lengths, ranks));
      const double fixed = imbalance(fixed_attention_pairs(lengths, 1, ranks));
      EXPECT_LE(now, 1.1) << ranks << " ranks";
      EXPECT_LT(now, fixed);
    }
  }
  EXPECT_GT(imbalance(fixed_attention_pairs(one_long, 2, 4)), 2);
}

TEST(SequenceSchedule, SharedPacksComeInOneOrder) {
  const Lengths lengths = {4000, 100, 3000, 2000, 50, 900, 1500, 70};
  const SequenceSchedule schedule = schedule_sequences(lengths, {8, 600});
  // The packs before a shared one are the same for all its ranks.
  for (std::size_t at = 0; at < schedule.packs.size(); ++at) {
    std::set<std::vector<std::size_t>> before;
    for (std::int64_t rank = 0; rank < 8; ++rank) {
      if (!schedule.packs[at].holds(rank)) continue;
      std::vector<std::size_t> held;
      for (std::size_t i = 0; i < at; ++i) {
        if (schedule.packs[i].holds(rank)) held.push_back(i);
      }
      before.insert(held);
    }
    EXPECT_EQ(before.size(), 1u);
  }
}

TEST(SequenceSchedule, RefusesWhatNoRanksHold) {
  try {
    schedule_sequences(Lengths{100, 4001}, {4, 1000});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a sequence of 4001 tokens does not fit 4 ranks"),
              std::string::npos);
  }
  EXPECT_TRUE(schedule_sequences({}, {4, 1000}).packs.empty());
}

}  // namespace
}  // namespace bev
