// Packing of bf16 panels for engines that multiply pairs of neighbours in depth. A step of a panel
// is a block of 16 x 16 pairs, 1 KiB. Needs AVX-512 (F, BW, VL).
#pragma once

#include "backend/cpu/tile_engine.h"

namespace bev::cpu {

constexpr std::int64_t kPairBlockBytes = 1024;

// Blocks [pair, item]: an item's pairs are a column.
void pack_pair_columns(const PanelSource& from, std::byte* to);
// Blocks [item, pair]: an item's pairs are a row.
void pack_pair_rows(const PanelSource& from, std::byte* to);

}  // namespace bev::cpu
