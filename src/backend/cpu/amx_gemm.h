// Instruction order of the AMX microkernel, independent of the registers, so that a test can run it
// on any CPU.
#pragma once

#include <algorithm>

#include "backend/cpu/bf16_panels.h"

namespace bev::cpu {

template <int kNumber>
struct TileName {};
// Accumulators of two panels of a times two panels of b, and those panels.
constexpr TileName<0> kSum00;
constexpr TileName<1> kSum01;
constexpr TileName<2> kSum10;
constexpr TileName<3> kSum11;
constexpr TileName<4> kA0;
constexpr TileName<5> kA1;
constexpr TileName<6> kB0;
constexpr TileName<7> kB1;

// Tiles provides zero(tile), load(tile, at, row stride in bytes) and store, each of 16 rows of 64
// bytes, and multiply(sum, a, b): sum[i, j] += dot(a[i, pair], b[pair, j]).
template <class Tiles, class Sum>
inline void start_sum(Tiles& tiles, Sum sum, const TileGemm& tile, const float* at) {
  if (tile.add) {
    tiles.load(sum, at, tile.stride * 4);
  } else {
    tiles.zero(sum);
  }
}

// One or two panels of a times one or two of b. An operand is reloaded right after its last use.
template <int kAPanels, int kBPanels, class Tiles>
void multiply_amx_tiles(Tiles& tiles, const TileGemm& tile) {
  constexpr bool kLower = kAPanels == 2, kRight = kBPanels == 2;
  float *upper = tile.sums, *lower = tile.sums + kPanelItems * tile.stride;
  const std::byte *a = tile.a, *b = tile.b;
  start_sum(tiles, kSum00, tile, upper);
  if constexpr (kRight) start_sum(tiles, kSum01, tile, upper + kPanelItems);
  if constexpr (kLower) start_sum(tiles, kSum10, tile, lower);
  if constexpr (kLower && kRight) start_sum(tiles, kSum11, tile, lower + kPanelItems);
  tiles.load(kA0, a, 64);
  tiles.load(kB0, b, 64);
  if constexpr (kLower) tiles.load(kA1, a + tile.panel_bytes, 64);
  if constexpr (kRight) tiles.load(kB1, b + tile.panel_bytes, 64);
  for (std::int64_t step = 1; step <= tile.steps; ++step) {
    // The last step is loaded twice, because nothing follows it in memory.
    const std::int64_t ahead = std::min(step, tile.steps - 1) * kPairBlockBytes;
    a = tile.a + ahead;
    b = tile.b + ahead;
    tiles.multiply(kSum00, kA0, kB0);
    if constexpr (kRight) tiles.multiply(kSum01, kA0, kB1);
    tiles.load(kA0, a, 64);
    if constexpr (kLower) tiles.multiply(kSum10, kA1, kB0);
    tiles.load(kB0, b, 64);
    if constexpr (kLower && kRight) tiles.multiply(kSum11, kA1, kB1);
    if constexpr (kLower) tiles.load(kA1, a + tile.panel_bytes, 64);
    if constexpr (kRight) tiles.load(kB1, b + tile.panel_bytes, 64);
  }
  tiles.store(kSum00, upper, tile.stride * 4);
  if constexpr (kRight) tiles.store(kSum01, upper + kPanelItems, tile.stride * 4);
  if constexpr (kLower) tiles.store(kSum10, lower, tile.stride * 4);
  if constexpr (kLower && kRight) tiles.store(kSum11, lower + kPanelItems, tile.stride * 4);
}

template <class Tiles>
void multiply_amx(Tiles& tiles, const TileGemm& tile) {
  if (tile.a_panels == 2) {
    if (tile.b_panels == 2) return multiply_amx_tiles<2, 2>(tiles, tile);
    return multiply_amx_tiles<2, 1>(tiles, tile);
  }
  if (tile.b_panels == 2) return multiply_amx_tiles<1, 2>(tiles, tile);
  multiply_amx_tiles<1, 1>(tiles, tile);
}

// The engine except for the registers.
constexpr TileEngine amx_engine_over(void (*multiply)(const TileGemm&), void (*begin)(),
                                     void (*end)()) {
  return {.a_panels = 2,
          .b_panels = 2,
          .block_steps = 8,
          .step_bytes = kPairBlockBytes,
          .pack_a = pack_pair_rows,
          .pack_b = pack_pair_columns,
          .multiply = multiply,
          .begin = begin,
          .end = end};
}

}  // namespace bev::cpu
