// Grouped GEMM driver: threads take pieces of all GEMMs from an atomic counter.
#include "backend/cpu/grouped_gemm.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <span>

#include "backend/cpu/operand_block.h"

namespace bev::cpu {

namespace {
// The rows of op(a) in a piece are packed once, its columns of op(b) one strip at a time.
constexpr std::int64_t kPieceRows = 512, kStripColumns = 128;
// Target number of pieces per thread, for load balance. Columns are cut until it is reached,
// although each piece packs its rows again.
constexpr std::int64_t kPiecesPerThread = 8, kLeastColumns = 256;

// Division of a GEMM into pieces.
struct Cut {
  std::int64_t high = 0, wide = 0, strip = 0, down = 0, across = 0;

  // Floats from row to row of sums. A stride that is not a power of two avoids cache set conflicts.
  std::int64_t stride() const { return strip + kPanelItems; }
};

Cut cut_gemm(const TileEngine& engine, const GemmDims& p, std::int64_t parts) {
  const std::int64_t unit = engine.b_panels * kPanelItems;
  Cut cut;
  cut.high = even_part(p.m, kPieceRows, engine.a_panels * kPanelItems);
  cut.wide = even_part(p.n, std::max(kLeastColumns, ceil_div(p.n, parts)), unit);
  cut.strip = even_part(cut.wide, kStripColumns, unit);
  cut.down = ceil_div(p.m, cut.high);
  cut.across = ceil_div(p.n, cut.wide);
  return cut;
}

struct Member {
  std::int64_t number = 0;
  BlockedGemm args;
  Cut cut;
  std::int64_t end = 0;  // index of the last piece + 1, over all members
};

// Scratch bytes of a lane: packed rows, packed columns and sums.
struct LaneBytes {
  std::int64_t a = 0, b = 0, sums = 0;

  void grow(const TileEngine& engine, const Cut& cut, std::int64_t depth) {
    a = std::max(a, block_bytes(engine, cut.high, depth));
    b = std::max(b, block_bytes(engine, cut.strip, depth));
    sums = std::max(sums, 4 * cut.high * cut.stride());
  }
  std::int64_t all() const { return a + b + sums; }
};

class Driver {
 public:
  Driver(ThreadPool& pool, const TileEngine& engine, std::int64_t count, const GemmGroup& group);
  void run();

 private:
  void run_piece(std::int64_t piece, std::byte* memory) const;

  ThreadPool& pool_;
  const TileEngine& engine_;
  const GemmGroup& group_;
  LaneBytes bytes_;
  std::span<Member> members_;
  std::byte* lanes_ = nullptr;
};

// Everything is in scratch memory, whose size is known after a first pass over the GEMMs.
Driver::Driver(ThreadPool& pool, const TileEngine& engine, std::int64_t count,
               const GemmGroup& group)
    : pool_(pool), engine_(engine), group_(group) {
  std::int64_t blocks = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    blocks += ceil_div(group.member(i).dims.m, kPieceRows);
  }
  if (blocks == 0) return;
  const std::int64_t parts = ceil_div(kPiecesPerThread * pool.threads(), blocks);
  std::size_t size = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const GemmDims p = group.member(i).dims;
    if (p.m == 0) continue;
    bytes_.grow(engine, cut_gemm(engine, p, parts), p.k);
    ++size;
  }
  lanes_ =
      pool.scratch(static_cast<std::size_t>(pool.threads() * bytes_.all()) + size * sizeof(Member));
  members_ = {reinterpret_cast<Member*>(lanes_ + pool.threads() * bytes_.all()), size};
  std::size_t at = 0;
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const BlockedGemm args = group.member(i);
    if (args.dims.m == 0) continue;
    const Cut cut = cut_gemm(engine, args.dims, parts);
    end += cut.down * cut.across;
    new (&members_[at++]) Member{i, args, cut, end};
  }
}

// Each lane has its own memory, whichever thread it runs on.
void Driver::run() {
  if (members_.empty()) return;
  const std::int64_t pieces = members_.back().end;
  std::atomic<std::int64_t> next = 0;
  pool_.run(pool_.threads(), [&](std::int64_t lane) {
    for (std::int64_t i = next.fetch_add(1); i < pieces; i = next.fetch_add(1)) {
      run_piece(i, lanes_ + lane * bytes_.all());
    }
  });
}

void Driver::run_piece(std::int64_t piece, std::byte* memory) const {
  const Member& member = *std::ranges::upper_bound(members_, piece, {}, &Member::end);
  const GemmDims& p = member.args.dims;
  const Cut& cut = member.cut;
  const std::int64_t own = piece - (member.end - cut.down * cut.across);
  const Range rows = part_of(p.m, cut.high, own / cut.across * cut.high);
  const Range columns = part_of(p.n, cut.wide, own % cut.across * cut.wide);
  OperandBlock a = rows_of_a(engine_, p, member.args.a, member.args.element_bytes);
  OperandBlock b = columns_of_b(engine_, p, member.args.b, member.args.element_bytes);
  a.packed = memory;
  b.packed = memory + bytes_.a;
  auto* sums = reinterpret_cast<float*>(b.packed + bytes_.b);
  a.block_items = rows.count;
  b.block_items = cut.strip;
  a.depth = b.depth = {0, p.k};
  a.items = rows;
  pack_panels(engine_, a, 0, ceil_div(rows.count, kPanelItems));
  for (std::int64_t column = 0; column < columns.count; column += cut.strip) {
    b.items = part_of(columns.count, cut.strip, column);
    b.items.begin += columns.begin;
    pack_panels(engine_, b, 0, ceil_div(cut.strip, kPanelItems));
    sum_area(engine_, a, b, {0, 0, rows.count, b.items.count}, sums, cut.stride());
    group_.finish(member.number, {rows.begin, b.items.begin, rows.count, b.items.count}, sums,
                  cut.stride());
  }
}
}  // namespace

void multiply_group(ThreadPool& pool, const TileEngine& engine, std::int64_t count,
                    const GemmGroup& group) {
  Driver(pool, engine, count, group).run();
}

}  // namespace bev::cpu
