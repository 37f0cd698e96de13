#include "data/mock_dataset.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace bev {
namespace {

using Tokens = std::vector<std::int32_t>;

TEST(MockDataset, IsALearnableChainWithinTheVocabulary) {
  for (std::int64_t vocab_size :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{97}, std::int64_t{1} << 31}) {
    MockDataset dataset({.vocab_size = vocab_size, .seq_length = 4000, .seed = 5});
    Tokens tokens(4001);
    dataset.window(3, tokens);
    int follows = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_TRUE(tokens[i] >= 0 && tokens[i] < vocab_size);
      if (i > 0) follows += tokens[i] == (5 * std::int64_t{tokens[i - 1]} + 3) % vocab_size;
    }
    EXPECT_GT(follows, 2850);
    if (vocab_size > 90) {
      EXPECT_LT(follows, 3150);
    }
  }
}

TEST(MockDataset, SamplesDifferAndRepeatByEpoch) {
  MockDataset dataset({.vocab_size = 1000, .seq_length = 30, .seed = 5, .num_samples = 4});
  MockDataset other({.vocab_size = 1000, .seq_length = 30, .seed = 6, .num_samples = 4});
  Tokens a(31), b(31);
  dataset.window(1, a);
  dataset.window(5, b);
  EXPECT_EQ(a, b);
  dataset.window(2, b);
  EXPECT_NE(a, b);
  other.window(1, b);
  EXPECT_NE(a, b);
  expect_error(ErrorKind::kConfig, {"vocabulary 0"},
               [] { MockDataset({.vocab_size = 0, .seq_length = 1}); });
}

}  // namespace
}  // namespace bev
