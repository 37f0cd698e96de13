// Panel packing of GEMM operands, and the macrokernel over packed panels.
#include "backend/cpu/operand_block.h"

namespace bev::cpu {

namespace {
// K extent of the panels that are multiplied at a time.
std::int64_t depth_of(const TileEngine& engine) { return engine.block_steps * kDepthStep; }
std::int64_t panel_bytes(const TileEngine& engine) {
  return engine.block_steps * engine.step_bytes;
}

std::byte* panel(const TileEngine& engine, const OperandBlock& block, std::int64_t depth_block,
                 std::int64_t number) {
  const std::int64_t panels = ceil_div(block.block_items, kPanelItems);
  return block.packed + (depth_block * panels + number) * panel_bytes(engine);
}
}  // namespace

OperandBlock rows_of_a(const TileEngine& engine, const GemmDims& dims, const void* a,
                       std::int64_t element_bytes) {
  return {.data = static_cast<const std::byte*>(a),
          .item_step = dims.transpose_a ? 1 : dims.lda,
          .depth_step = dims.transpose_a ? dims.lda : 1,
          .element_bytes = element_bytes,
          .pack = engine.pack_a};
}

OperandBlock columns_of_b(const TileEngine& engine, const GemmDims& dims, const void* b,
                          std::int64_t element_bytes) {
  return {.data = static_cast<const std::byte*>(b),
          .item_step = dims.transpose_b ? dims.ldb : 1,
          .depth_step = dims.transpose_b ? 1 : dims.ldb,
          .element_bytes = element_bytes,
          .pack = engine.pack_b};
}

std::int64_t block_bytes(const TileEngine& engine, std::int64_t items, std::int64_t depth) {
  return ceil_div(depth, depth_of(engine)) * ceil_div(items, kPanelItems) * panel_bytes(engine);
}

// If items are contiguous, all panels take one step from the same rows before the next rows are
// read, so that memory is read in order.
void pack_panels(const TileEngine& engine, const OperandBlock& block, std::int64_t first,
                 std::int64_t count) {
  const std::int64_t panels = ceil_div(block.items.count, kPanelItems);
  const std::int64_t last = std::min(panels, first + count);
  const std::int64_t depth = block.depth_step == 1 ? depth_of(engine) : kDepthStep;
  for (std::int64_t k = 0; k < block.depth.count; k += depth) {
    const std::int64_t step = k % depth_of(engine) / kDepthStep;
    for (std::int64_t number = first; number < last; ++number) {
      const std::int64_t item = number * kPanelItems;
      const std::int64_t at =
          (block.items.begin + item) * block.item_step + (block.depth.begin + k) * block.depth_step;
      block.pack({.data = block.data + at * block.element_bytes,
                  .item_step = block.item_step,
                  .depth_step = block.depth_step,
                  .items = std::min(kPanelItems, block.items.count - item),
                  .depth = std::min(depth, block.depth.count - k)},
                 panel(engine, block, k / depth_of(engine), number) + step * engine.step_bytes);
    }
  }
}

// Macrokernel: panels of b stay in the L1 cache while all rows of the area are processed.
void sum_area(const TileEngine& engine, const OperandBlock& a, const OperandBlock& b,
              const Area& area, float* sums, std::int64_t stride) {
  const std::int64_t row_panel = area.row / kPanelItems, column_panel = area.column / kPanelItems;
  const std::int64_t down = ceil_div(area.rows, kPanelItems);
  const std::int64_t across = ceil_div(area.columns, kPanelItems);
  engine.begin();
  for (std::int64_t k = 0; k < a.depth.count; k += depth_of(engine)) {
    const std::int64_t number = k / depth_of(engine);
    const std::int64_t steps = ceil_div(std::min(depth_of(engine), a.depth.count - k), kDepthStep);
    for (std::int64_t j = 0; j < across; j += engine.b_panels) {
      for (std::int64_t i = 0; i < down; i += engine.a_panels) {
        const std::int64_t last = std::min(i + engine.a_panels, down) - 1;
        engine.multiply({.a = panel(engine, a, number, row_panel + i),
                         .b = panel(engine, b, number, column_panel + j),
                         .a_panels = std::min(engine.a_panels, down - i),
                         .b_panels = std::min(engine.b_panels, across - j),
                         .rows = std::min(kPanelItems, area.rows - last * kPanelItems),
                         .panel_bytes = panel_bytes(engine),
                         .steps = steps,
                         .sums = sums + i * kPanelItems * stride + j * kPanelItems,
                         .stride = stride,
                         .add = a.depth.begin + k > 0});
      }
    }
  }
  engine.end();
}

}  // namespace bev::cpu
