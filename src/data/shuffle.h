// Shuffling without state: a keyed permutation of any length.
#pragma once

#include <cstdint>

namespace bev {

// Where `index` in [0, count) goes under the permutation of `count` items that `key` selects. O(1)
// memory: a balanced Feistel network of eight rounds over the next power of four, walked until it
// lands inside.
std::int64_t permute_index(std::int64_t index, std::int64_t count, std::uint64_t key);

}  // namespace bev
