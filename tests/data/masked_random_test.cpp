// numpy's distributions used for masking, against values from numpy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "data/gpt/blend.h"
#include "data/random/numpy_random.h"

namespace bev {
namespace {

using testing::ElementsAre;

TEST(NumpyRandom, DrawsDoublesAsNumpy) {
  RandomState random(1234);
  for (double expected :
       {0.1915194503788923, 0.6221087710398319, 0.4377277390071145, 0.7853585837137692}) {
    EXPECT_EQ(random_double(random), expected);
  }
}

TEST(NumpyRandom, DrawsIntegersAsNumpy) {
  RandomState random(42);
  std::vector<std::int64_t> small, wide;
  for (int i = 0; i < 12; ++i) small.push_back(random_integer(random, 1, 7));
  for (int i = 0; i < 3; ++i) wide.push_back(random_integer(random, -3, std::int64_t{1} << 33));
  EXPECT_THAT(small, ElementsAre(4, 5, 3, 5, 5, 2, 3, 3, 3, 5, 4, 3));
  EXPECT_THAT(wide, ElementsAre(4537253169, 7395928404, 4298312062));
  // A single value needs no draw.
  EXPECT_EQ(random_integer(random, 5, 6), 5);
  EXPECT_EQ(random_double(random), 0.18182496720710062);
}

TEST(NumpyRandom, DrawsGeometricNumbersAsNumpy) {
  auto draw = [](double p, int count) {
    RandomState random(7);
    std::vector<std::int64_t> out;
    for (int i = 0; i < count; ++i) out.push_back(random_geometric(random, p));
    return out;
  };
  EXPECT_THAT(draw(0.2, 24), ElementsAre(1, 7, 3, 6, 18, 4, 4, 1, 2, 4, 6, 8, 3, 1, 2, 11, 2, 3, 12,
                                         1, 5, 14, 2, 4));
  EXPECT_THAT(draw(0.05, 12), ElementsAre(2, 30, 12, 26, 75, 16, 14, 2, 7, 14, 23, 32));
}

TEST(NumpyRandom, ChoosesAsNumpy) {
  RandomState random(3);
  std::vector<double> weights;
  for (int n = 1; n <= 10; ++n) weights.push_back(1.0 / n);
  weights = normalize(weights);
  auto draw = [&](const std::vector<double>& probabilities, int count) {
    RandomChoice choice(probabilities);
    std::vector<std::size_t> out;
    for (int i = 0; i < count; ++i) out.push_back(choice.draw(random));
    return out;
  };
  EXPECT_THAT(draw(weights, 24),
              ElementsAre(2, 3, 0, 1, 7, 7, 0, 0, 0, 1, 0, 1, 3, 0, 3, 2, 0, 2, 0, 1, 0, 3, 1, 0));
  std::ranges::reverse(weights);
  EXPECT_THAT(draw(weights, 24),
              ElementsAre(8, 9, 6, 5, 7, 9, 9, 9, 9, 9, 7, 2, 8, 8, 6, 5, 7, 7, 5, 6, 7, 9, 8, 5));
  EXPECT_EQ(random_double(random), 0.2779775066236013);
}

TEST(NumpyRandom, NeverChoosesTheImpossible) {
  RandomState random(3);
  RandomChoice choice(std::vector<double>{0, 0.5, 0, 0.5});
  std::vector<std::size_t> drawn;
  for (int i = 0; i < 16; ++i) drawn.push_back(choice.draw(random));
  EXPECT_THAT(drawn, ElementsAre(3, 3, 1, 3, 3, 3, 1, 1, 1, 1, 1, 1, 3, 1, 3, 3));
}

}  // namespace
}  // namespace bev
