// numpy's generators, against values from numpy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "data/random/mt19937.h"
#include "data/random/pcg64.h"
#include "data/token_sequences.h"
#include "tests/support/expect_error.h"

namespace bev {
namespace {

using testing::ElementsAre;

std::vector<int> shuffled(std::uint64_t seed, int count) {
  std::vector<int> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  RandomState(seed).shuffle(std::span(values));
  return values;
}

TEST(RandomState, GivesTheWordsOfMt19937) {
  RandomState random(1234);
  EXPECT_EQ(random.next(), 822569775u);
  EXPECT_EQ(random.next(), 2137449171u);
  EXPECT_EQ(random.next(), 2671936806u);
  EXPECT_EQ(random.next(), 3512589365u);
}

TEST(RandomState, ShufflesAsNumpy) {
  EXPECT_THAT(shuffled(1234, 10), ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
  EXPECT_THAT(shuffled(0, 10), ElementsAre(2, 8, 4, 9, 1, 6, 7, 3, 0, 5));
  EXPECT_THAT(shuffled(42, 10), ElementsAre(8, 1, 5, 0, 7, 2, 9, 4, 3, 6));
  EXPECT_THAT(shuffled(1, 1), ElementsAre(0));
  EXPECT_TRUE(shuffled(1, 0).empty());
}

// The prefetching shuffle equals the plain algorithm, for any length.
TEST(RandomState, ShufflesAsOneSwapAfterTheOther) {
  for (int count : {63, 64, 65, 66, 127, 128, 129, 1000, 5000}) {
    std::vector<int> expected(static_cast<std::size_t>(count));
    std::iota(expected.begin(), expected.end(), 0);
    RandomState random(5);
    for (std::size_t i = expected.size() - 1; i > 0; --i) {
      std::swap(expected[i], expected[random.interval(i)]);
    }
    EXPECT_EQ(shuffled(5, count), expected) << count;
  }
}

TEST(RandomState, DrawsBernoulliAsNumpysBinomial) {
  RandomState random(7);
  std::string drawn;
  for (double probability : {0.5, 0.3, 0.9, 0.0, 1.0}) {
    for (int i = 0; i < 12; ++i) drawn += random.bernoulli(probability) ? '1' : '0';
    drawn += ' ';
  }
  EXPECT_EQ(drawn, "010111100011 000100100100 011111111111 000000000000 111111111111 ");
  EXPECT_EQ(random.uniform(), 0.955468323002926);
}

TEST(RandomState, DrawsWideIntervalsFromTwoWords) {
  RandomState random(1234), words(1234);
  std::uint64_t most = (std::uint64_t{1} << 40) - 1;
  std::uint64_t high = words.next();
  EXPECT_EQ(random.interval(most), (high << 32 | words.next()) & most);
  EXPECT_EQ(random.interval(0), 0u);
}

TEST(RandomState, RefusesSeedsThatNumpyRefuses) {
  RandomState last(0xFFFFFFFFu);
  expect_error(ErrorKind::kConfig, {"--seed: 4294967296"},
               [] { RandomState random(std::uint64_t{1} << 32); });
}

TEST(Pcg64, DrawsIntegersAsDefaultRng) {
  Pcg64 random(0);
  std::vector<std::int32_t> values;
  for (int i = 0; i < 10; ++i) values.push_back(random.integer(0, 10));
  EXPECT_THAT(values, ElementsAre(8, 6, 5, 2, 3, 0, 0, 0, 1, 8));
}

TEST(MockSequences, HaveMegatronsLengthsAndTokens) {
  MockSequences mock(100, 99);
  PackedArray<std::int32_t> lengths = mock.lengths();
  std::vector<std::int32_t> first;
  for (std::size_t i = 0; i < 10; ++i) first.push_back(lengths[i]);
  EXPECT_THAT(first, ElementsAre(3484, 2609, 2094, 1105, 1261, 168, 309, 68, 718, 3331));
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) sum += lengths[i];
  EXPECT_EQ(lengths.size(), 100000u);
  EXPECT_EQ(sum, 204637097);
  std::vector<std::int32_t> tokens(5);
  mock.read(5, 163, tokens);  // the last five of 168
  EXPECT_THAT(tokens, ElementsAre(64, 65, 66, 67, 99));
}

}  // namespace
}  // namespace bev
