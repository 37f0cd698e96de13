#include "data/random/numpy_random.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace bev {

double random_double(RandomState& random) {
  constexpr double kLowRange = 1 << 26, kRange = 9007199254740992.0;  // 2^53
  double high = random.next() >> 5;
  double low = random.next() >> 6;
  return (high * kLowRange + low) / kRange;
}

std::int64_t random_integer(RandomState& random, std::int64_t low, std::int64_t high) {
  return low +
         static_cast<std::int64_t>(random.interval(static_cast<std::uint64_t>(high - low) - 1));
}

std::int64_t random_geometric(RandomState& random, double p) {
  return static_cast<std::int64_t>(std::ceil(std::log1p(-random_double(random)) / std::log(1 - p)));
}

RandomChoice::RandomChoice(std::span<const double> probabilities) : sums_(probabilities.size()) {
  std::partial_sum(probabilities.begin(), probabilities.end(), sums_.begin());
  double total = sums_.back();
  for (double& sum : sums_) sum /= total;
}

std::size_t RandomChoice::draw(RandomState& random) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(sums_, random_double(random)) -
                                  sums_.begin());
}

}  // namespace bev
