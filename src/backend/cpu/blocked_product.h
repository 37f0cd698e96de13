// Matrix products over a tile engine. Operands are packed a block at a time by all threads of the
// pool, then areas of c are summed, each by one thread; all of it is cut by shape only.
#pragma once

#include "backend/cpu/product.h"
#include "backend/cpu/tile_engine.h"
#include "base/thread_pool.h"
#include "tensor/packed_factor.h"

namespace bev::cpu {

struct BlockedProduct {
  Product product;  // k at least 1
  const void *a = nullptr, *b = nullptr;
  std::int64_t element_bytes = 0;
  PackedFactor* packed_b = nullptr;
};

// Of all panels of op(b).
std::size_t packed_bytes(const TileEngine& engine, const Product& product);

using FinishArea = void (*)(const void* body, const Area& area, const float* sums,
                            std::int64_t stride);
void blocked_product(ThreadPool& pool, const TileEngine& engine, const BlockedProduct& product,
                     const void* body, FinishArea finish);

// finish(area, sums, stride) gets the sums of every area of c once, on any thread: row-major, rows
// `stride` apart. It must not throw.
template <class Finish>
void blocked_product(ThreadPool& pool, const TileEngine& engine, const BlockedProduct& product,
                     const Finish& finish) {
  blocked_product(pool, engine, product, &finish,
                  [](const void* body, const Area& area, const float* sums, std::int64_t stride) {
                    (*static_cast<const Finish*>(body))(area, sums, stride);
                  });
}

}  // namespace bev::cpu
