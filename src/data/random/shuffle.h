// Stateless shuffling: a keyed permutation of any length.
#pragma once

#include <cstdint>

namespace bev {

// Image of `index` in [0, count) under the permutation of `count` items selected by `key`. O(1)
// memory: cycle walking over a balanced Feistel network of eight rounds on the next power of four.
std::int64_t permute_index(std::int64_t index, std::int64_t count, std::uint64_t key);

}  // namespace bev
