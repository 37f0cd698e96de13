// Panel packing of bf16 operands for engines that multiply pairs adjacent along K. A step of a
// panel is a block of 16 x 16 pairs, 1 KiB. Requires AVX-512 (F, BW, VL).
#pragma once

#include "backend/cpu/tile_engine.h"

namespace bev::cpu {

constexpr std::int64_t kPairBlockBytes = 1024;

// Blocks [pair, item]: the pairs of an item are a column.
void pack_pair_columns(const PanelSource& from, std::byte* to);
// Blocks [item, pair]: the pairs of an item are a row.
void pack_pair_rows(const PanelSource& from, std::byte* to);

}  // namespace bev::cpu
