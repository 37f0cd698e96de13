// Multi-tensor apply: many flat ranges as one sequence of tiles, processed by one launch. It is
// passed as a kernel parameter.
#pragma once

#include <cstdint>

namespace bev::cuda {

// Item describes a range; at most kMost fit.
template <class Item, int kMost>
struct TileBatch {
  Item items[kMost];
  std::uint32_t ends[kMost];  // prefix sums of tile counts
  int count = 0;

  std::int64_t tiles() const { return count == 0 ? 0 : ends[count - 1]; }
  bool full() const { return count == kMost; }
  void add(const Item& item, std::int64_t item_tiles) {
    items[count] = item;
    ends[count] = static_cast<std::uint32_t>(tiles() + item_tiles);
    ++count;
  }

  // Calls body(index of the range, tile in it) for the tiles of this block (grid-stride).
  template <class Body>
  __device__ void each_tile(const Body& body) const {
    int at = 0;
    const std::uint32_t last = ends[count - 1];
    for (std::uint32_t tile = blockIdx.x; tile < last; tile += gridDim.x) {
      while (tile >= ends[at]) ++at;
      body(at, tile - (at > 0 ? ends[at - 1] : 0));
    }
  }
};

}  // namespace bev::cuda
