// Many flat ranges as one run of tiles, so that one launch goes through all of them. It travels as
// a kernel parameter.
#pragma once

#include <cstdint>

namespace bev::cuda {

// Item says what a range is; at most kMost fit.
template <class Item, int kMost>
struct TileBatch {
  Item items[kMost];
  std::uint32_t ends[kMost];  // of each range's tiles
  int count = 0;

  std::int64_t tiles() const { return count == 0 ? 0 : ends[count - 1]; }
  bool full() const { return count == kMost; }
  void add(const Item& item, std::int64_t item_tiles) {
    items[count] = item;
    ends[count] = static_cast<std::uint32_t>(tiles() + item_tiles);
    ++count;
  }

  // Calls body(number of the range, tile in it) for this block's share of all tiles.
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
