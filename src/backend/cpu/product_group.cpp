#include "backend/cpu/product_group.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "backend/cpu/operand_block.h"

namespace bev::cpu {

namespace {
// A piece's rows of op(a) are packed once, its columns of op(b) a strip at a time.
constexpr std::int64_t kPieceRows = 512, kStripColumns = 128;
// Pieces for each thread, so that all end at about the same time: columns are cut until there are
// as many, but each piece packs its rows again.
constexpr std::int64_t kPiecesPerThread = 8, kLeastColumns = 256;

struct Piece {
  std::size_t number = 0;  // of the product
  Range rows, columns;
};

class Group {
 public:
  Group(ThreadPool& pool, const TileEngine& engine, std::span<const BlockedProduct> products,
        const void* body, FinishOfGroup finish);
  void run();

 private:
  void cut(std::size_t number, std::int64_t parts);
  void run_piece(const Piece& piece, std::byte* memory) const;

  ThreadPool& pool_;
  const TileEngine& engine_;
  std::span<const BlockedProduct> products_;
  const void* body_;
  FinishOfGroup finish_;
  std::vector<Piece> pieces_;
  // Of a thread's memory: packed rows, packed columns, sums.
  std::int64_t a_bytes_ = 0, b_bytes_ = 0, sums_bytes_ = 0;
};

Group::Group(ThreadPool& pool, const TileEngine& engine, std::span<const BlockedProduct> products,
             const void* body, FinishOfGroup finish)
    : pool_(pool), engine_(engine), products_(products), body_(body), finish_(finish) {
  std::int64_t blocks = 0;
  for (const BlockedProduct& one : products) blocks += ceil_div(one.product.m, kPieceRows);
  const std::int64_t wanted = kPiecesPerThread * pool.threads();
  for (std::size_t i = 0; i < products.size(); ++i) cut(i, ceil_div(wanted, blocks));
}

void Group::cut(std::size_t number, std::int64_t parts) {
  const Product& p = products_[number].product;
  const std::int64_t row_unit = engine_.a_panels * kPanelItems;
  const std::int64_t column_unit = engine_.b_panels * kPanelItems;
  const std::int64_t high = even_part(p.m, kPieceRows, row_unit);
  const std::int64_t wide =
      even_part(p.n, std::max(kLeastColumns, ceil_div(p.n, parts)), column_unit);
  for (std::int64_t row = 0; row < p.m; row += high) {
    for (std::int64_t column = 0; column < p.n; column += wide) {
      pieces_.push_back({number, part_of(p.m, high, row), part_of(p.n, wide, column)});
    }
  }
  const std::int64_t strip = even_part(wide, kStripColumns, column_unit);
  a_bytes_ = std::max(a_bytes_, block_bytes(engine_, high, p.k));
  b_bytes_ = std::max(b_bytes_, block_bytes(engine_, strip, p.k));
  sums_bytes_ = std::max(sums_bytes_, 4 * high * (strip + kPanelItems));
}

// Every lane of work has memory of its own, whichever thread it runs on.
void Group::run() {
  const std::int64_t lane_bytes = a_bytes_ + b_bytes_ + sums_bytes_;
  const std::int64_t lanes = pool_.threads();
  std::byte* memory = pool_.scratch(static_cast<std::size_t>(lanes * lane_bytes));
  std::atomic<std::size_t> next = 0;
  pool_.run(lanes, [&](std::int64_t lane) {
    for (std::size_t i = next.fetch_add(1); i < pieces_.size(); i = next.fetch_add(1)) {
      run_piece(pieces_[i], memory + lane * lane_bytes);
    }
  });
}

void Group::run_piece(const Piece& piece, std::byte* memory) const {
  const BlockedProduct& args = products_[piece.number];
  const Product& p = args.product;
  OperandBlock a = rows_of_a(engine_, p, args.a, args.element_bytes);
  OperandBlock b = columns_of_b(engine_, p, args.b, args.element_bytes);
  const std::int64_t strip =
      even_part(piece.columns.count, kStripColumns, engine_.b_panels * kPanelItems);
  a.packed = memory;
  a.block_items = piece.rows.count;
  a.items = piece.rows;
  a.depth = b.depth = {0, p.k};
  pack_panels(engine_, a, 0, ceil_div(piece.rows.count, kPanelItems));
  b.packed = memory + a_bytes_;
  b.block_items = strip;
  auto* sums = reinterpret_cast<float*>(b.packed + b_bytes_);
  // Rows that are no power of two apart do not fall on each other in the caches.
  const std::int64_t stride = strip + kPanelItems;
  for (std::int64_t column = 0; column < piece.columns.count; column += strip) {
    b.items = part_of(piece.columns.count, strip, column);
    b.items.begin += piece.columns.begin;
    pack_panels(engine_, b, 0, ceil_div(strip, kPanelItems));
    sum_area(engine_, a, b, {0, 0, piece.rows.count, b.items.count}, sums, stride);
    finish_(body_, piece.number, {piece.rows.begin, b.items.begin, piece.rows.count, b.items.count},
            sums, stride);
  }
}
}  // namespace

void product_group(ThreadPool& pool, const TileEngine& engine,
                   std::span<const BlockedProduct> products, const void* body,
                   FinishOfGroup finish) {
  if (!products.empty()) Group(pool, engine, products, body, finish).run();
}

}  // namespace bev::cpu
