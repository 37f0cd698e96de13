// Stable radix sort of (key, position) pairs.
#pragma once

#include <cstdint>

namespace bev {

class CudaQueue;

namespace cuda {

struct KeyedPositions {
  std::uint32_t* keys;
  std::int32_t* positions;
};

// Words of scratch memory needed to sort `count` pairs.
std::int64_t sort_counts(std::int64_t count);

// Sorts `data` by key; keys are at most `most`, and equal keys keep their order. `other` has the
// same size, `counts` has sort_counts(count) words. Returns the buffer with the result, `data` or
// `other`.
KeyedPositions sort_positions(CudaQueue& queue, KeyedPositions data, KeyedPositions other,
                              std::int64_t count, std::int64_t most, std::uint32_t* counts);

}  // namespace cuda
}  // namespace bev
