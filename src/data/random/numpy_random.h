// Further distributions of numpy's RandomState, draw for draw; Megatron's masked samples use them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "data/random/mt19937.h"

namespace bev {

// random(): uniform in [0, 1), 53 bits from two words.
double random_double(RandomState& random);
// randint(low, high): uniform in the non-empty [low, high). Draws nothing if there is only one
// value.
std::int64_t random_integer(RandomState& random, std::int64_t low, std::int64_t high);
// geometric(p) for p < 1/3, where numpy uses inversion: 1, 2, 3, ..., and, once in 2^53 draws, 0.
std::int64_t random_geometric(RandomState& random, double p);

// choice(n, p=...): index of one of n outcomes, drawn from the cumulative probabilities.
class RandomChoice {
 public:
  explicit RandomChoice(std::span<const double> probabilities);
  std::size_t draw(RandomState& random) const;

 private:
  std::vector<double> sums_;
};

}  // namespace bev
