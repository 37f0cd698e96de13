#include "backend/cpu/blocked_product.h"

#include <algorithm>

namespace bev::cpu {

namespace {
// The largest block of c, and of depth, for which both operands are packed at a time: large enough
// that packing is little beside multiplying, small enough for the last cache.
constexpr std::int64_t kBlockRows = 1024, kBlockColumns = 1536, kBlockDepth = 2048;
// An area is one thread's: sums and packed rows stay in its second cache. Blocks too small for
// kAreas of them are cut finer, so that they still occupy several threads.
constexpr std::int64_t kAreaRows = 256, kAreaColumns = 384, kAreas = 16;
constexpr std::int64_t kLeastRows = 32, kLeastColumns = 96;
constexpr std::int64_t kPackedPanels = 4;  // that a thread packs at a time

// Equal parts of at most `most`, whole multiples of `unit`.
std::int64_t even_part(std::int64_t total, std::int64_t most, std::int64_t unit) {
  return round_up(ceil_div(total, ceil_div(total, most)), unit);
}

// How a block of c is cut into areas.
struct Cut {
  std::int64_t high = 0, wide = 0, down = 0, across = 0;

  // Floats from row to row of an area's sums. Rows that are no power of two apart do not fall on
  // each other in the caches.
  std::int64_t stride() const { return wide + kPanelItems; }
  std::int64_t area_floats() const { return high * stride(); }
};

Cut cut_block(std::int64_t rows, std::int64_t columns, const TileEngine& engine) {
  Cut cut{std::min(kAreaRows, rows), std::min(kAreaColumns, columns)};
  while (ceil_div(rows, cut.high) * ceil_div(columns, cut.wide) < kAreas) {
    if (cut.high > kLeastRows && (2 * cut.high >= cut.wide || cut.wide <= kLeastColumns)) {
      cut.high = ceil_div(cut.high, 2);
    } else if (cut.wide > kLeastColumns) {
      cut.wide = ceil_div(cut.wide, 2);
    } else {
      break;
    }
  }
  cut.high = round_up(cut.high, engine.a_panels * kPanelItems);
  cut.wide = round_up(cut.wide, engine.b_panels * kPanelItems);
  cut.down = ceil_div(rows, cut.high);
  cut.across = ceil_div(columns, cut.wide);
  return cut;
}

// A range of items or of depth.
struct Range {
  std::int64_t begin = 0, count = 0;
  bool operator==(const Range&) const = default;
};

Range part_of(std::int64_t total, std::int64_t size, std::int64_t begin) {
  return {begin, std::min(size, total - begin)};
}

// The block of op(b) that is packed at a time; it depends on b alone.
struct BlockOfB {
  std::int64_t items = 0, depth = 0;
};

BlockOfB block_of_b(const TileEngine& engine, const Product& p) {
  return {.items = even_part(p.n, kBlockColumns, engine.b_panels * kPanelItems),
          .depth = even_part(p.k, kBlockDepth, kDepthStep)};
}

// Bytes of the packed form of a block: [depth of an engine's block][panel][step].
std::int64_t block_bytes(const TileEngine& engine, std::int64_t items, std::int64_t depth) {
  return ceil_div(depth, engine.block_steps * kDepthStep) * ceil_div(items, kPanelItems) *
         engine.block_steps * engine.step_bytes;
}

// An operand and the packed form of one of its blocks.
struct Operand {
  const std::byte* data = nullptr;
  std::int64_t item_step = 0, depth_step = 0;  // bytes
  std::int64_t block_items = 0;
  void (*pack)(const PanelSource&, std::byte*) = nullptr;
  std::byte* packed = nullptr;
  Range items = {}, depth = {};  // what is packed

  bool holds(const Range& some_items, const Range& some_depth) const {
    return items == some_items && depth == some_depth;
  }
};

class Driver {
 public:
  Driver(ThreadPool& pool, const TileEngine& engine, const BlockedProduct& args, const void* body,
         FinishArea finish);
  void run();

 private:
  // Depth of the panels that are multiplied at a time.
  std::int64_t step_depth() const { return engine_.block_steps * kDepthStep; }
  std::int64_t panel_bytes() const { return engine_.block_steps * engine_.step_bytes; }
  std::byte* panel(const Operand& operand, std::int64_t depth_block, std::int64_t number) const {
    const std::int64_t panels = ceil_div(operand.block_items, kPanelItems);
    return operand.packed + (depth_block * panels + number) * panel_bytes();
  }

  std::int64_t most_sums() const;
  void pack(const Range& rows, const Range& columns, const Range& depth);
  void seek_kept_b(const Range& columns, const Range& depth);
  void pack_panels(const Operand& operand, std::int64_t first) const;
  void multiply(const Range& rows, const Range& columns, const Range& depth);
  void sum_area(const Area& area, const Range& depth, float* sums, std::int64_t stride) const;

  ThreadPool& pool_;
  const TileEngine& engine_;
  const BlockedProduct& args_;
  const void* body_;
  FinishArea finish_;
  std::int64_t block_depth_ = 0, b_bytes_ = 0;
  Operand a_, b_;
  float* sums_ = nullptr;  // an area's lie together
};

Driver::Driver(ThreadPool& pool, const TileEngine& engine, const BlockedProduct& args,
               const void* body, FinishArea finish)
    : pool_(pool), engine_(engine), args_(args), body_(body), finish_(finish) {
  const Product& p = args.product;
  const std::int64_t bytes = args.element_bytes;
  a_ = {.data = static_cast<const std::byte*>(args.a),
        .item_step = (p.transpose_a ? 1 : p.lda) * bytes,
        .depth_step = (p.transpose_a ? p.lda : 1) * bytes,
        .block_items = even_part(p.m, kBlockRows, engine.a_panels * kPanelItems),
        .pack = engine.pack_a};
  b_ = {.data = static_cast<const std::byte*>(args.b),
        .item_step = (p.transpose_b ? p.ldb : 1) * bytes,
        .depth_step = (p.transpose_b ? 1 : p.ldb) * bytes,
        .block_items = block_of_b(engine, p).items,
        .pack = engine.pack_b};
  block_depth_ = block_of_b(engine, p).depth;
  const std::int64_t a_bytes = block_bytes(engine, a_.block_items, block_depth_);
  b_bytes_ = block_bytes(engine, b_.block_items, block_depth_);
  const std::int64_t here = args.packed_b == nullptr ? b_bytes_ : 0;
  a_.packed = pool.scratch(static_cast<std::size_t>(a_bytes + here + most_sums() * 4));
  b_.packed = a_.packed + a_bytes;
  sums_ = reinterpret_cast<float*>(b_.packed + here);
}

// Floats that the sums of any block need: of whole ones, and of what is left at the edges.
std::int64_t Driver::most_sums() const {
  const Product& p = args_.product;
  std::int64_t most = 0;
  for (std::int64_t rows : {std::min(p.m, a_.block_items), p.m % a_.block_items}) {
    for (std::int64_t columns : {std::min(p.n, b_.block_items), p.n % b_.block_items}) {
      if (rows == 0 || columns == 0) continue;
      const Cut cut = cut_block(rows, columns, engine_);
      most = std::max(most, cut.down * cut.across * cut.area_floats());
    }
  }
  return most;
}

void Driver::run() {
  const Product& p = args_.product;
  for (std::int64_t column = 0; column < p.n; column += b_.block_items) {
    const Range columns = part_of(p.n, b_.block_items, column);
    for (std::int64_t row = 0; row < p.m; row += a_.block_items) {
      const Range rows = part_of(p.m, a_.block_items, row);
      for (std::int64_t k = 0; k < p.k; k += block_depth_) {
        const Range depth = part_of(p.k, block_depth_, k);
        pack(rows, columns, depth);
        multiply(rows, columns, depth);
      }
    }
  }
  if (args_.packed_b != nullptr) args_.packed_b->made = true;
}

// Where all of op(b) is kept: goes to this block of it.
void Driver::seek_kept_b(const Range& columns, const Range& depth) {
  const std::int64_t depths = ceil_div(args_.product.k, block_depth_);
  const std::int64_t number = columns.begin / b_.block_items * depths + depth.begin / block_depth_;
  b_.packed = args_.packed_b->memory + number * b_bytes_;
}

// What is packed already stays.
void Driver::pack(const Range& rows, const Range& columns, const Range& depth) {
  const bool keeps = args_.packed_b != nullptr;
  if (keeps) seek_kept_b(columns, depth);
  // The first rows of op(a) pack it for those that follow.
  const bool has_b = keeps && (args_.packed_b->made || rows.begin > 0);
  const auto pieces = [&](Operand& operand, const Range& items) {
    if (operand.holds(items, depth)) return std::int64_t{0};
    operand.items = items;
    operand.depth = depth;
    return ceil_div(items.count, kPackedPanels * kPanelItems);
  };
  const std::int64_t of_a = pieces(a_, rows), of_b = has_b ? 0 : pieces(b_, columns);
  pool_.run(of_a + of_b, [&](std::int64_t piece) {
    if (piece < of_a) return pack_panels(a_, piece * kPackedPanels);
    pack_panels(b_, (piece - of_a) * kPackedPanels);
  });
}

void Driver::pack_panels(const Operand& operand, std::int64_t first) const {
  const std::int64_t panels = ceil_div(operand.items.count, kPanelItems);
  const std::int64_t last = std::min(panels, first + kPackedPanels);
  for (std::int64_t k = 0; k < operand.depth.count; k += step_depth()) {
    for (std::int64_t number = first; number < last; ++number) {
      const std::int64_t item = number * kPanelItems;
      operand.pack({.data = operand.data + (operand.items.begin + item) * operand.item_step +
                            (operand.depth.begin + k) * operand.depth_step,
                    .item_step = operand.item_step / args_.element_bytes,
                    .depth_step = operand.depth_step / args_.element_bytes,
                    .items = std::min(kPanelItems, operand.items.count - item),
                    .depth = std::min(step_depth(), operand.depth.count - k)},
                   panel(operand, k / step_depth(), number));
    }
  }
}

void Driver::multiply(const Range& rows, const Range& columns, const Range& depth) {
  const Cut cut = cut_block(rows.count, columns.count, engine_);
  pool_.run(cut.down * cut.across, [&](std::int64_t piece) {
    const Range some_rows = part_of(rows.count, cut.high, piece % cut.down * cut.high);
    const Range some_columns = part_of(columns.count, cut.wide, piece / cut.down * cut.wide);
    const Area area{some_rows.begin, some_columns.begin, some_rows.count, some_columns.count};
    float* sums = sums_ + piece * cut.area_floats();
    sum_area(area, depth, sums, cut.stride());
    if (depth.begin + depth.count < args_.product.k) return;
    finish_(body_, {rows.begin + area.row, columns.begin + area.column, area.rows, area.columns},
            sums, cut.stride());
  });
}

// Panels of b stay in the first cache while all rows of the area pass by.
void Driver::sum_area(const Area& area, const Range& depth, float* sums,
                      std::int64_t stride) const {
  const std::int64_t row_panel = area.row / kPanelItems, column_panel = area.column / kPanelItems;
  const std::int64_t down = ceil_div(area.rows, kPanelItems);
  const std::int64_t across = ceil_div(area.columns, kPanelItems);
  engine_.begin();
  for (std::int64_t k = 0; k < depth.count; k += step_depth()) {
    const std::int64_t steps = ceil_div(std::min(step_depth(), depth.count - k), kDepthStep);
    for (std::int64_t j = 0; j < across; j += engine_.b_panels) {
      for (std::int64_t i = 0; i < down; i += engine_.a_panels) {
        engine_.multiply({.a = panel(a_, k / step_depth(), row_panel + i),
                          .b = panel(b_, k / step_depth(), column_panel + j),
                          .a_panels = std::min(engine_.a_panels, down - i),
                          .b_panels = std::min(engine_.b_panels, across - j),
                          .panel_bytes = panel_bytes(),
                          .steps = steps,
                          .sums = sums + i * kPanelItems * stride + j * kPanelItems,
                          .stride = stride,
                          .add = depth.begin + k > 0});
      }
    }
  }
  engine_.end();
}
}  // namespace

std::size_t packed_bytes(const TileEngine& engine, const Product& product) {
  const BlockOfB block = block_of_b(engine, product);
  return static_cast<std::size_t>(ceil_div(product.n, block.items) *
                                  ceil_div(product.k, block.depth) *
                                  block_bytes(engine, block.items, block.depth));
}

void blocked_product(ThreadPool& pool, const TileEngine& engine, const BlockedProduct& product,
                     const void* body, FinishArea finish) {
  Driver(pool, engine, product, body, finish).run();
}

}  // namespace bev::cpu
