#include "data/random/shuffle.h"

#include <bit>

#include "base/divide.h"
#include "base/philox.h"

namespace bev {

std::int64_t permute_index(std::int64_t index, std::int64_t count, std::uint64_t key) {
  constexpr std::uint64_t kRounds = 8;
  auto size = static_cast<std::uint64_t>(count);
  int half_bits = ceil_div(std::bit_width(size - 1), 2);
  std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half_bits, right = value & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      std::uint64_t next = left ^ (mix_bits(key + round, right) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= size);  // cycle walking: the cycle of `index` < size comes back inside
  return static_cast<std::int64_t>(value);
}

}  // namespace bev
