// Many products with few rows each, as experts have. A piece of one is packed, summed and finished
// by one thread in memory of its own: what it packs stays in its second cache, and threads wait for
// each other once. How products are cut does not change their bits.
#pragma once

#include <span>

#include "backend/cpu/blocked_product.h"

namespace bev::cpu {

// Deeper products are for blocked_product(): their panels would leave the second cache.
constexpr std::int64_t kGroupDepth = 4096;

using FinishOfGroup = void (*)(const void* body, std::size_t number, const Area& area,
                               const float* sums, std::int64_t stride);
void product_group(ThreadPool& pool, const TileEngine& engine,
                   std::span<const BlockedProduct> products, const void* body,
                   FinishOfGroup finish);

// finish(number of the product, area, sums, stride) as that of blocked_product(). No product may
// have packed_b.
template <class Finish>
void product_group(ThreadPool& pool, const TileEngine& engine,
                   std::span<const BlockedProduct> products, const Finish& finish) {
  product_group(
      pool, engine, products, &finish,
      [](const void* body, std::size_t number, const Area& area, const float* sums,
         std::int64_t stride) { (*static_cast<const Finish*>(body))(number, area, sums, stride); });
}

}  // namespace bev::cpu
