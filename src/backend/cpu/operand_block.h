// Packed blocks of GEMM operands and sums over them: building blocks of the GEMM drivers.
#pragma once

#include <algorithm>

#include "backend/cpu/gemm_dims.h"
#include "backend/cpu/tile_engine.h"
#include "base/divide.h"

namespace bev::cpu {

// A range of items or of depth (K).
struct Range {
  std::int64_t begin = 0, count = 0;
  bool operator==(const Range&) const = default;
};

inline Range part_of(std::int64_t total, std::int64_t size, std::int64_t begin) {
  return {begin, std::min(size, total - begin)};
}

// Size of equal parts of at most `most`, a multiple of `unit`.
inline std::int64_t even_part(std::int64_t total, std::int64_t most, std::int64_t unit) {
  return round_up(ceil_div(total, ceil_div(total, most)), unit);
}

// An operand and the packed form of one of its blocks: [engine block of depth][panel][step].
struct OperandBlock {
  const std::byte* data = nullptr;
  std::int64_t item_step = 0, depth_step = 0;  // elements
  std::int64_t element_bytes = 0;
  std::int64_t block_items = 0;  // most items in a block
  void (*pack)(const PanelSource&, std::byte*) = nullptr;
  std::byte* packed = nullptr;
  Range items = {}, depth = {};  // what is packed

  bool holds(const Range& some_items, const Range& some_depth) const {
    return items == some_items && depth == some_depth;
  }
};

// The rows of op(a) and the columns of op(b), with nothing packed yet.
OperandBlock rows_of_a(const TileEngine& engine, const GemmDims& dims, const void* a,
                       std::int64_t element_bytes);
OperandBlock columns_of_b(const TileEngine& engine, const GemmDims& dims, const void* b,
                          std::int64_t element_bytes);

// Size of the packed form.
std::int64_t block_bytes(const TileEngine& engine, std::int64_t items, std::int64_t depth);

// Packs panels [first, first + count), as far as they exist, of the block's items and depth.
void pack_panels(const TileEngine& engine, const OperandBlock& block, std::int64_t first,
                 std::int64_t count);

// Sums of an area, relative to the first packed row and column, over a packed range of depth.
// Accumulates unless the range is the first (depth.begin 0).
void sum_area(const TileEngine& engine, const OperandBlock& a, const OperandBlock& b,
              const Area& area, float* sums, std::int64_t stride);

}  // namespace bev::cpu
