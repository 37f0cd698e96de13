// Lists of positions by key.
#pragma once

#include <cstdint>

namespace bev {

class CudaQueue;

namespace cuda {

struct KeyedPositions {
  std::uint32_t* keys;
  std::int32_t* positions;
};

// Words of scratch memory that a sort of so many needs.
std::int64_t sort_counts(std::int64_t count);

// Sorts `data` by keys, which are at most `most`; equal keys keep their order. `other` has room for
// as many, `counts` for sort_counts(count). Returns where the result is, one of the two.
KeyedPositions sort_positions(CudaQueue& queue, KeyedPositions data, KeyedPositions other,
                              std::int64_t count, std::int64_t most, std::uint32_t* counts);

}  // namespace cuda
}  // namespace bev
