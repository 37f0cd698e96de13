// GEMM on the CPU: selects between skinny, blocked (16-bit), oneDNN (f32) and f64 kernels. Tiles of
// c are cut by shape only, and each is computed by one thread.
#include "kernels/gemm.h"

#include <atomic>
#include <type_traits>
#include <vector>

#include "backend/cpu/bf16_engines.h"
#include "backend/cpu/blocked_gemm.h"
#include "backend/cpu/grouped_gemm.h"
#include "backend/cpu/kernels/gemm_problem.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/plain_engine.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
// Large tiles amortise packing (measured: 256 x 768 within 2 % of the whole GEMM, 256 x 384 within
// 5 %, 64 x 192 within 15 %); GEMMs with fewer than kTiles of them are cut finer, so that they
// still occupy several threads.
constexpr std::int64_t kTileRows = 256, kTileColumns = 768, kTiles = 8;

// Results too large to stay in a cache until they are read, such as the wgrads of many experts.
constexpr std::size_t kStreamedBytes = std::size_t{16} << 20;

struct Cut {
  std::int64_t rows = 0, columns = 0;
};

Cut cut_tiles(std::int64_t m, std::int64_t n) {
  std::int64_t down = ceil_div(m, kTileRows), across = ceil_div(n, kTileColumns);
  if (down * across < 2 * kTiles) across = ceil_div(n, kTileColumns / 2);
  while (down * across < kTiles) {
    const std::int64_t rows = ceil_div(m, down), columns = ceil_div(n, across);
    if (rows <= 64 && columns <= 192) break;
    if (3 * rows >= columns) {
      down *= 2;
    } else {
      across *= 2;
    }
  }
  // Whole register tiles of the oneDNN kernels.
  return {.rows = ceil_div(ceil_div(m, down), 8) * 8,
          .columns = ceil_div(ceil_div(n, across), 48) * 48};
}

// Calls body(tile) for all tiles; tiles that share the larger operand are consecutive. body returns
// false on failure.
template <class Body>
void for_tiles(const Stream& stream, const Gemm& gemm, const Body& body) {
  const std::int64_t m = gemm.dims.m, n = gemm.dims.n;
  const Cut cut = cut_tiles(m, n);
  const std::int64_t down = ceil_div(m, cut.rows), across = ceil_div(n, cut.columns);
  std::atomic<bool> failed = false;
  stream.pool->run(down * across, [&](std::int64_t piece) {
    const std::int64_t i = n >= m ? piece % down : piece / across;
    const std::int64_t j = n >= m ? piece / down : piece % across;
    Area tile{.row = i * cut.rows, .column = j * cut.columns};
    tile.rows = std::min(cut.rows, m - tile.row);
    tile.columns = std::min(cut.columns, n - tile.column);
    if (!body(tile)) failed.store(true, std::memory_order_relaxed);
  });
  BEV_CHECK(!failed.load(), ErrorKind::kInternal, "gemm: oneDNN refused ", m, " x ", n, " x ",
            gemm.dims.k);
}

GemmDims tile_dims(const Gemm& gemm, const Area& tile) {
  GemmDims dims = gemm.dims;
  dims.m = tile.rows;
  dims.n = tile.columns;
  return dims;
}

bool tile_f32(const Gemm& gemm, const Area& tile) {
  const std::int64_t ldc = gemm.dims.ldc;
  float* c = static_cast<float*>(gemm.c) + tile.row * ldc + tile.column;
  if (!onednn_gemm(tile_dims(gemm, tile), static_cast<float>(gemm.alpha),
                   a_at<float>(gemm, tile.row, 0), b_at<float>(gemm, 0, tile.column),
                   static_cast<float>(gemm.beta), c)) {
    return false;
  }
  if (gemm.bias == nullptr) return true;
  const float* bias = static_cast<const float*>(gemm.bias) + tile.column;
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    float* to = c + row * ldc;
#pragma GCC ivdep
    for (std::int64_t j = 0; j < tile.columns; ++j) to[j] += bias[j];
  }
  return true;
}

// Best engine for 16-bit operands.
template <class T>
const TileEngine& engine_of() {
#if defined(__AVX512F__)
  if constexpr (DtypeOf<T>::value == Dtype::kBf16) {
    if (const TileEngine* engine = bf16_engine()) return *engine;
  }
#endif
  return plain_engine<T>();
}

template <class T>
BlockedGemm blocked(const Gemm& gemm) {
  return {.dims = gemm.dims,
          .a = gemm.a,
          .b = gemm.b,
          .element_bytes = sizeof(T),
          .packed_b = gemm.packed_b};
}

// Non-temporal stores of unscaled f32 sums in whole cache lines: bypasses the caches and does not
// read the old contents.
#if defined(__AVX512F__)
constexpr std::int64_t kLine = 16;
bool may_stream(const Gemm& gemm, const Area& area) {
  return gemm.streams && gemm.alpha == 1 && gemm.beta == 0 && gemm.bias == nullptr &&
         reinterpret_cast<std::uintptr_t>(gemm.c) % 64 == 0 && gemm.dims.ldc % kLine == 0 &&
         area.column % kLine == 0 && area.columns % kLine == 0;
}
void stream_area(const Gemm& gemm, const Area& area, const float* sums, std::int64_t stride) {
  float* c = static_cast<float*>(gemm.c) + area.row * gemm.dims.ldc + area.column;
  for (std::int64_t row = 0; row < area.rows; ++row) {
    for (std::int64_t j = 0; j < area.columns; j += kLine) {
      _mm512_stream_ps(c + row * gemm.dims.ldc + j, _mm512_loadu_ps(sums + row * stride + j));
    }
  }
  _mm_sfence();
}
#endif

template <class T, class C>
void finish_area(const Gemm& gemm, const Area& area, const float* sums, std::int64_t stride) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<C, float>) {
    if (may_stream(gemm, area)) return stream_area(gemm, area, sums, stride);
  }
#endif
  C* c = static_cast<C*>(gemm.c) + area.row * gemm.dims.ldc + area.column;
  for (std::int64_t row = 0; row < area.rows; ++row) {
    finish_row<T, C>(gemm, area.column, area.columns, sums + row * stride, c + row * gemm.dims.ldc);
  }
}

template <class T, class C>
void gemm_blocked(const Stream& stream, const Gemm& gemm) {
  blocked_gemm(*stream.pool, engine_of<T>(), blocked<T>(gemm),
               [&](const Area& area, const float* sums, std::int64_t stride) {
                 finish_area<T, C>(gemm, area, sums, stride);
               });
}

// K = 0: only beta and the bias remain.
template <class T, class C>
void gemm_empty(const Stream& stream, const Gemm& gemm) {
  const GemmDims& p = gemm.dims;
  const std::vector<accumulate_t<T>> zeros(static_cast<std::size_t>(p.n));
  for_ranges(stream, p.m, rows_per_piece(p.n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      finish_row<T, C>(gemm, 0, p.n, zeros.data(), static_cast<C*>(gemm.c) + row * p.ldc);
    }
  });
}

bool is_skinny(const Gemm& gemm) {
  return gemm.dims.m <= kSkinnyRows && gemm.dims.transpose_b && !gemm.exact_linear();
}

// Tile engines multiply 16-bit operands and, in a fixed order, f32; f64 has its own kernels.
template <class T>
bool uses_engine(const Gemm& gemm) {
  return sizeof(T) == 2 || (sizeof(T) == 4 && gemm.exact_linear());
}

// An exact GEMM with few rows as a group of one: b is packed by strips that stay in the L2 cache.
template <class T, class C>
class OneGemm final : public GemmGroup {
 public:
  explicit OneGemm(const Gemm& gemm) : gemm_(gemm) {}
  static bool takes(const Gemm& gemm) {
    constexpr std::int64_t kFewRows = 64;
    return gemm.exact_linear() && gemm.packed_b == nullptr && gemm.dims.m <= kFewRows;
  }
  BlockedGemm member(std::int64_t) const override { return blocked<T>(gemm_); }
  void finish(std::int64_t, const Area& area, const float* sums,
              std::int64_t stride) const override {
    finish_area<T, C>(gemm_, area, sums, stride);
  }

 private:
  const Gemm& gemm_;
};

template <class T, class C>
void gemm_typed(const Stream& stream, const Gemm& gemm) {
  const GemmDims& p = gemm.dims;
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) return gemm_empty<T, C>(stream, gemm);
  if (is_skinny(gemm)) return gemm_skinny<T, C>(stream, gemm);
  if constexpr (!std::is_same_v<T, double>) {
    if (uses_engine<T>(gemm)) {
      if (!OneGemm<T, C>::takes(gemm)) return gemm_blocked<T, C>(stream, gemm);
      return multiply_group(*stream.pool, engine_of<T>(), 1, OneGemm<T, C>(gemm));
    }
  }
  if constexpr (sizeof(T) != 2) {
    for_tiles(stream, gemm, [&](const Area& tile) {
      if constexpr (std::is_same_v<T, double>) {
        gemm_tile_f64(gemm, tile);
        return true;
      } else {
        return tile_f32(gemm, tile);
      }
    });
  }
}

Gemm checked(const GemmArgs& args) {
  const View &a = args.a, &b = args.b, &c = args.c;
  BEV_CHECK(a.shape.ndim() == 2 && b.shape.ndim() == 2 && c.shape.ndim() == 2,
            "gemm: 2-D views are needed, got ", a.shape, ", ", b.shape, ", ", c.shape);
  const std::int64_t a_columns = args.a_columns > 0 ? args.a_columns : a.shape[1];
  const std::int64_t c_columns = args.c_columns > 0 ? args.c_columns : c.shape[1];
  const std::int64_t m = args.transpose_a ? a_columns : a.shape[0];
  const std::int64_t k = args.transpose_a ? a.shape[0] : a_columns;
  const std::int64_t n = b.shape[args.transpose_b ? 0 : 1];
  BEV_CHECK(b.shape[args.transpose_b ? 1 : 0] == k && c.shape[0] == m && c_columns == n &&
                a_columns <= a.shape[1] && c_columns <= c.shape[1] &&
                (args.bias.empty() || args.bias.numel() == n),
            "gemm: a ", a.shape, args.transpose_a ? "^T" : "", ", b ", b.shape,
            args.transpose_b ? "^T" : "", ", c ", c.shape, ", bias ", args.bias.shape, ", columns ",
            a_columns, " and ", c_columns);
  const bool wide_c = c.dtype == Dtype::kF32 && size_of(a.dtype) == 2;
  BEV_CHECK(a.dtype == b.dtype && (c.dtype == a.dtype || wide_c) &&
                (args.bias.empty() || args.bias.dtype == a.dtype),
            ErrorKind::kInternal, "gemm: dtypes a ", name_of(a.dtype), ", b ", name_of(b.dtype),
            ", c ", name_of(c.dtype), ", bias ", name_of(args.bias.dtype));
  return {.dims = {.m = m,
                   .n = n,
                   .k = k,
                   .transpose_a = args.transpose_a,
                   .transpose_b = args.transpose_b,
                   .lda = a.shape[1],
                   .ldb = b.shape[1],
                   .ldc = c.shape[1]},
          .alpha = args.alpha,
          .beta = args.beta,
          .a = a.data,
          .b = b.data,
          .bias = args.bias.data,
          .c = c.data,
          .packed_b = args.packed_b};
}

// Calls f(T{}, C{}) with the types of the operands and the result.
template <class F>
void visit_types(const GemmArgs& args, const F& f) {
  visit_float(args.a.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (sizeof(T) == 2) {
      if (args.c.dtype == Dtype::kF32) return f(type, float{});
    }
    f(type, type);
  });
}

void run_gemm(const Stream& stream, const GemmArgs& args, bool exact) {
  Gemm gemm = checked(args);
  gemm.exact = exact;
  visit_types(args, [&]<class T, class C>(T, C) { gemm_typed<T, C>(stream, gemm); });
}

void gemm_any(const Stream& stream, const GemmArgs& args) { run_gemm(stream, args, false); }

// A grouped GEMM for a tile engine. The list is small, so its entries are recomputed wherever they
// are needed.
template <class T, class C>
class GroupOf final : public GemmGroup {
 public:
  explicit GroupOf(const GemmList& list) : list_(list) {
    std::size_t bytes = 0;
    for (std::int64_t i = 0; i < list.count; ++i) bytes += list.make(i).c.bytes();
    streams_ = bytes >= kStreamedBytes;
  }
  Gemm gemm(std::int64_t number) const {
    Gemm gemm = checked(list_.make(number));
    gemm.streams = streams_;
    gemm.exact = list_.exact;
    return gemm;
  }
  static bool takes(const Gemm& gemm) {
    const GemmDims& p = gemm.dims;
    return uses_engine<T>(gemm) && p.m > 0 && p.n > 0 && p.k > 0 && p.k <= kGroupDepth &&
           !is_skinny(gemm);
  }
  BlockedGemm member(std::int64_t number) const override {
    const Gemm one = gemm(number);
    return takes(one) ? blocked<T>(one) : BlockedGemm{};
  }
  void finish(std::int64_t number, const Area& area, const float* sums,
              std::int64_t stride) const override {
    if constexpr (!std::is_same_v<T, double>) finish_area<T, C>(gemm(number), area, sums, stride);
  }

 private:
  const GemmList& list_;
  bool streams_ = false;
};

std::size_t packed_bytes_any(const GemmArgs& args) {
  // With many rows packing is amortised anyway. Where bf16 is multiplied as f32 that holds for any
  // number of rows, and the packed form would be twice as large.
  constexpr std::int64_t kManyRows = 2048;
  const Gemm gemm = checked(args);
  const GemmDims& dims = gemm.dims;
  if (dims.k == 0 || is_skinny(gemm) || dims.m > kManyRows) return 0;
#if defined(__AVX512F__)
  const TileEngine* engine = args.b.dtype == Dtype::kBf16 ? bf16_engine() : nullptr;
  if (engine != nullptr) return packed_bytes(*engine, dims);
#endif
  return 0;
}
}  // namespace

void gemm_group(const Stream& stream, const GemmList& list) {
  if (list.count == 0) return;
  visit_types(list.make(0), [&]<class T, class C>(T, C) {
    const GroupOf<T, C> group(list);
    // These use the scratch memory that the group takes next.
    for (std::int64_t i = 0; i < list.count; ++i) {
      if (!group.takes(group.gemm(i))) gemm_typed<T, C>(stream, group.gemm(i));
    }
    if constexpr (!std::is_same_v<T, double>) {
      multiply_group(*stream.pool, engine_of<T>(), list.count, group);
    }
  });
}

void gemm_exact(const Stream& stream, const GemmArgs& args) { run_gemm(stream, args, true); }

GemmKernels kernel_table(Family<GemmKernels>) {
  return {.gemm = gemm_any, .packed_bytes = packed_bytes_any};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
