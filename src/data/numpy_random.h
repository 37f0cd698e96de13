// The draws of numpy's RandomState beside words and shuffles, number for number. Megatron's masked
// samples are made of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "data/mt19937.h"

namespace bev {

// random(): uniform in [0, 1), 53 bits of two words.
double random_double(RandomState& random);
// randint(low, high): uniform in [low, high), which must not be empty. No draw when there is but
// one number.
std::int64_t random_integer(RandomState& random, std::int64_t low, std::int64_t high);
// geometric(p) for p below 1/3, where numpy inverts the distribution: 1, 2, 3, ..., and, once in
// 2^53 draws, 0.
std::int64_t random_geometric(RandomState& random, double p);

// choice(n, p=...): which of n outcomes, drawn from the running sums of their probabilities.
class RandomChoice {
 public:
  explicit RandomChoice(std::span<const double> probabilities);
  std::size_t draw(RandomState& random) const;

 private:
  std::vector<double> sums_;
};

}  // namespace bev
