// Blocked GEMM driver: packs blocks of both operands into panels and computes areas of c in
// parallel.
#include "backend/cpu/blocked_gemm.h"

#include <algorithm>

#include "backend/cpu/operand_block.h"
#include "base/divide.h"

namespace bev::cpu {

namespace {
// Largest block of c, and of K, for which both operands are packed at a time: large enough to
// amortise packing, small enough for the last-level cache.
constexpr std::int64_t kBlockRows = 1024, kBlockColumns = 1536, kBlockDepth = 2048;
// An area is computed by one thread: its sums and packed rows stay in the L2 cache. Blocks with
// fewer than kAreas areas are cut finer, so that they still occupy several threads.
constexpr std::int64_t kAreaRows = 256, kAreaColumns = 384, kAreas = 16;
constexpr std::int64_t kLeastRows = 32, kLeastColumns = 96;
constexpr std::int64_t kPackedPanels = 4;  // per packing task

// Division of a block of c into areas.
struct Cut {
  std::int64_t high = 0, wide = 0, down = 0, across = 0;

  // Floats from row to row of an area's sums. A stride that is not a power of two avoids cache set
  // conflicts.
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

// The block of op(b) that is packed at a time; depends only on b.
struct BlockOfB {
  std::int64_t items = 0, depth = 0;
};

BlockOfB block_of_b(const TileEngine& engine, const GemmDims& p) {
  return {.items = even_part(p.n, kBlockColumns, engine.b_panels * kPanelItems),
          .depth = even_part(p.k, kBlockDepth, kDepthStep)};
}

class Driver {
 public:
  Driver(ThreadPool& pool, const TileEngine& engine, const BlockedGemm& args, FinishArea finish);
  void run();

 private:
  std::int64_t most_sums() const;
  void pack(const Range& rows, const Range& columns, const Range& depth);
  void seek_kept_b(const Range& columns, const Range& depth);
  void multiply(const Range& rows, const Range& columns, const Range& depth);

  ThreadPool& pool_;
  const TileEngine& engine_;
  const BlockedGemm& args_;
  FinishArea finish_;
  std::int64_t block_depth_ = 0, b_bytes_ = 0;
  OperandBlock a_, b_;
  float* sums_ = nullptr;  // contiguous per area
};

Driver::Driver(ThreadPool& pool, const TileEngine& engine, const BlockedGemm& args,
               FinishArea finish)
    : pool_(pool), engine_(engine), args_(args), finish_(finish) {
  const GemmDims& p = args.dims;
  a_ = rows_of_a(engine, p, args.a, args.element_bytes);
  a_.block_items = even_part(p.m, kBlockRows, engine.a_panels * kPanelItems);
  b_ = columns_of_b(engine, p, args.b, args.element_bytes);
  b_.block_items = block_of_b(engine, p).items;
  block_depth_ = block_of_b(engine, p).depth;
  const std::int64_t a_bytes = block_bytes(engine, a_.block_items, block_depth_);
  b_bytes_ = block_bytes(engine, b_.block_items, block_depth_);
  const std::int64_t here = args.packed_b == nullptr ? b_bytes_ : 0;
  a_.packed = pool.scratch(static_cast<std::size_t>(a_bytes + here + most_sums() * 4));
  b_.packed = a_.packed + a_bytes;
  sums_ = reinterpret_cast<float*>(b_.packed + here);
}

// Floats needed for the sums of any block: whole ones, and those at the edges.
std::int64_t Driver::most_sums() const {
  const GemmDims& p = args_.dims;
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
  const GemmDims& p = args_.dims;
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

// If all of op(b) is kept packed: moves to this block of it.
void Driver::seek_kept_b(const Range& columns, const Range& depth) {
  const std::int64_t depths = ceil_div(args_.dims.k, block_depth_);
  const std::int64_t number = columns.begin / b_.block_items * depths + depth.begin / block_depth_;
  b_.packed = args_.packed_b->memory + number * b_bytes_;
}

// Skips operands that are already packed.
void Driver::pack(const Range& rows, const Range& columns, const Range& depth) {
  const bool keeps = args_.packed_b != nullptr;
  if (keeps) seek_kept_b(columns, depth);
  // The first rows of op(a) pack op(b) for those that follow.
  const bool has_b = keeps && (args_.packed_b->made || rows.begin > 0);
  const auto pieces = [&](OperandBlock& operand, const Range& items) {
    if (operand.holds(items, depth)) return std::int64_t{0};
    operand.items = items;
    operand.depth = depth;
    return ceil_div(items.count, kPackedPanels * kPanelItems);
  };
  const std::int64_t of_a = pieces(a_, rows), of_b = has_b ? 0 : pieces(b_, columns);
  pool_.run(of_a + of_b, [&](std::int64_t piece) {
    if (piece < of_a) return pack_panels(engine_, a_, piece * kPackedPanels, kPackedPanels);
    pack_panels(engine_, b_, (piece - of_a) * kPackedPanels, kPackedPanels);
  });
}

void Driver::multiply(const Range& rows, const Range& columns, const Range& depth) {
  const Cut cut = cut_block(rows.count, columns.count, engine_);
  pool_.run(cut.down * cut.across, [&](std::int64_t piece) {
    const Range some_rows = part_of(rows.count, cut.high, piece % cut.down * cut.high);
    const Range some_columns = part_of(columns.count, cut.wide, piece / cut.down * cut.wide);
    const Area area{some_rows.begin, some_columns.begin, some_rows.count, some_columns.count};
    float* sums = sums_ + piece * cut.area_floats();
    sum_area(engine_, a_, b_, area, sums, cut.stride());
    if (depth.begin + depth.count < args_.dims.k) return;
    finish_({rows.begin + area.row, columns.begin + area.column, area.rows, area.columns}, sums,
            cut.stride());
  });
}
}  // namespace

std::size_t packed_bytes(const TileEngine& engine, const GemmDims& dims) {
  const BlockOfB block = block_of_b(engine, dims);
  return static_cast<std::size_t>(ceil_div(dims.n, block.items) * ceil_div(dims.k, block.depth) *
                                  block_bytes(engine, block.items, block.depth));
}

void blocked_gemm(ThreadPool& pool, const TileEngine& engine, const BlockedGemm& gemm,
                  FinishArea finish) {
  Driver(pool, engine, gemm, finish).run();
}

}  // namespace bev::cpu
