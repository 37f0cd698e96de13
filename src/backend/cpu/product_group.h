// Grouped GEMM: many GEMMs with few rows each (experts). A piece is packed, computed and finished
// by one thread in its own memory: packed panels stay in its L2 cache, and threads synchronise only
// once. The division into pieces does not change results.
#pragma once

#include "backend/cpu/blocked_product.h"

namespace bev::cpu {

// GEMMs with larger K use blocked_product(): their panels would exceed the L2 cache.
constexpr std::int64_t kGroupDepth = 2048;

// The GEMMs of a group and their epilogue. Called on any thread; must not throw.
class ProductGroup {
 public:
  // Without packed_b. GEMMs with m == 0 are skipped.
  virtual BlockedProduct product(std::int64_t number) const = 0;
  // Epilogue, as for blocked_product().
  virtual void finish(std::int64_t number, const Area& area, const float* sums,
                      std::int64_t stride) const = 0;

 protected:
  ~ProductGroup() = default;
};

void multiply_group(ThreadPool& pool, const TileEngine& engine, std::int64_t count,
                    const ProductGroup& group);

}  // namespace bev::cpu
