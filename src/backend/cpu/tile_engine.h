// Tile engine: the panel packing and microkernel of a GEMM with f32 sums. blocked_gemm() drives
// any engine.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bev::cpu {

// Both operands are items times depth (K): the rows of op(a), the columns of op(b). A panel holds
// kPanelItems items; its depth is padded with zeros to whole steps.
constexpr std::int64_t kPanelItems = 16, kDepthStep = 32;

// Part of an operand that goes into a panel. Element (item, k) is at item * item_step + k *
// depth_step, in elements; one of the two steps is 1. Missing items are packed as zeros.
struct PanelSource {
  const void* data = nullptr;
  std::int64_t item_step = 0, depth_step = 0;
  std::int64_t items = 0, depth = 0;  // items <= kPanelItems
};

// sums [a_panels x 16, b_panels x 16] = panels of a times panels of b, accumulating if `add`.
struct TileGemm {
  const std::byte *a = nullptr, *b = nullptr;
  std::int64_t a_panels = 0, b_panels = 0;
  std::int64_t rows = kPanelItems;  // of the last panel of a: an engine may leave out the others
  std::int64_t panel_bytes = 0;     // from one panel to the next
  std::int64_t steps = 0;           // of depth
  float* sums = nullptr;
  std::int64_t stride = 0;  // floats from row to row of sums
  bool add = false;
};

struct TileEngine {
  std::int64_t a_panels, b_panels;  // maximum in a tile
  std::int64_t block_steps;         // depth of the panels that stay in the L1 cache
  std::int64_t step_bytes;          // of a panel, per step of depth
  void (*pack_a)(const PanelSource& from, std::byte* to);
  void (*pack_b)(const PanelSource& from, std::byte* to);
  void (*multiply)(const TileGemm& tile);
  // Called before and after multiply, on the same thread.
  void (*begin)();
  void (*end)();
};

}  // namespace bev::cpu
