// Many products with few rows each, as experts have. A piece of one is packed, summed and finished
// by one thread in memory of its own: what it packs stays in its second cache, and threads wait for
// each other once. How products are cut does not change their bits.
#pragma once

#include "backend/cpu/blocked_product.h"

namespace bev::cpu {

// Deeper products are for blocked_product(): their panels would leave the second cache.
constexpr std::int64_t kGroupDepth = 2048;

// The products of a group and what becomes of their sums. Called on any thread; must not throw.
class ProductGroup {
 public:
  // Without packed_b. Those of m 0 are left out.
  virtual BlockedProduct product(std::int64_t number) const = 0;
  // As that of blocked_product().
  virtual void finish(std::int64_t number, const Area& area, const float* sums,
                      std::int64_t stride) const = 0;

 protected:
  ~ProductGroup() = default;
};

void multiply_group(ThreadPool& pool, const TileEngine& engine, std::int64_t count,
                    const ProductGroup& group);

}  // namespace bev::cpu
