// GEMM engines that use the CPU's bf16 instructions. AMX is emulated with tiles in memory, so that
// its packing and tiling are tested on any CPU with AVX-512.
#include <gtest/gtest.h>

#include <array>
#include <deque>

#include "backend/cpu/amx_gemm.h"
#include "backend/cpu/bf16_engines.h"
#include "backend/cpu/blocked_gemm.h"
#include "backend/cpu/grouped_gemm.h"
#include "tests/backend_cpu/kernel_fixture.h"

namespace bev::cpu {
namespace {
using namespace kernel_test;

float as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
// The AMX tile GEMM flushes denormal inputs and outputs to zero.
float flushed(float value) { return std::fabs(value) < 0x1p-126f ? 0.0f * value : value; }

// Emulates AMX's tile registers and the arithmetic of its instructions.
struct EmulatedTiles {
  using Words = std::array<std::array<std::uint32_t, 16>, 16>;
  std::array<Words, 8> tiles{};

  template <int kTile>
  void zero(TileName<kTile>) {
    tiles[kTile] = {};
  }
  template <int kTile>
  void load(TileName<kTile>, const void* at, std::int64_t row_bytes) {
    for (std::size_t row = 0; row < 16; ++row) {
      std::memcpy(tiles[kTile][row].data(),
                  static_cast<const char*>(at) + static_cast<std::int64_t>(row) * row_bytes, 64);
    }
  }
  template <int kTile>
  void store(TileName<kTile>, void* at, std::int64_t row_bytes) {
    for (std::size_t row = 0; row < 16; ++row) {
      std::memcpy(static_cast<char*>(at) + static_cast<std::int64_t>(row) * row_bytes,
                  tiles[kTile][row].data(), 64);
    }
  }
  template <int kSum, int kA, int kB>
  void multiply(TileName<kSum>, TileName<kA>, TileName<kB>) {
    for (std::size_t i = 0; i < 16; ++i) {
      for (std::size_t j = 0; j < 16; ++j) {
        float sum = as_float(tiles[kSum][i][j]);
        for (std::size_t pair = 0; pair < 16; ++pair) {
          const std::uint32_t a = tiles[kA][i][pair], b = tiles[kB][pair][j];
          sum = flushed(sum + flushed(as_float(a << 16)) * flushed(as_float(b << 16)));
          sum = flushed(sum +
                        flushed(as_float(a & 0xffff0000u)) * flushed(as_float(b & 0xffff0000u)));
        }
        tiles[kSum][i][j] = std::bit_cast<std::uint32_t>(sum);
      }
    }
  }
};

const TileEngine* emulated_amx_engine() {
  static constexpr TileEngine kEngine = amx_engine_over(
      [](const TileGemm& tile) {
        EmulatedTiles tiles;
        multiply_amx(tiles, tile);
      },
      [] {}, [] {});
  return best_cpu_level() == CpuLevel::kV4 ? &kEngine : nullptr;
}

struct Named {
  const char* name;
  const TileEngine* engine;
};

void copy_area(const Area& area, const float* sums, std::int64_t stride, std::int64_t ldc,
               Buffer& c) {
  auto* to = static_cast<float*>(c.view().data) + area.row * ldc + area.column;
  for (std::int64_t row = 0; row < area.rows; ++row) {
    std::memcpy(to + row * ldc, sums + row * stride, static_cast<std::size_t>(area.columns) * 4);
  }
}

class Bf16Engine : public testing::TestWithParam<Named> {
 protected:
  void SetUp() override {
    if (GetParam().engine == nullptr) GTEST_SKIP() << "this CPU has no " << GetParam().name;
  }
  // c = op(a) op(b) in f32, with 1, 2 and 3 threads, whose results must agree bitwise.
  std::vector<double> multiply(const GemmDims& dims, Buffer& a, Buffer& b) const {
    Buffer first(Dtype::kF32, {dims.m, dims.n});
    for (int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      // Stale scratch memory must not matter: NaN times zero is NaN.
      std::memset(pool.scratch(1 << 24), 0xff, 1 << 24);
      Buffer c(Dtype::kF32, {dims.m, dims.n});
      blocked_gemm(pool, *GetParam().engine,
                   {.dims = dims, .a = a.view().data, .b = b.view().data, .element_bytes = 2},
                   [&](const Area& area, const float* sums, std::int64_t stride) {
                     copy_area(area, sums, stride, dims.ldc, c);
                   });
      EXPECT_TRUE(c.guards_intact());
      if (threads == 1) first = c;
      EXPECT_EQ(c.bits(), first.bits()) << threads << " threads";
    }
    return first.values();
  }
};

GemmDims dims_of(std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb) {
  return {m, n, k, ta, tb, ta ? m : k, tb ? k : n, n};
}

std::vector<double> gemm_reference(const GemmDims& p, const std::vector<double>& a,
                                   const std::vector<double>& b) {
  std::vector<double> c(static_cast<std::size_t>(p.m * p.n));
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t k = 0; k < p.k; ++k) {
      const double left =
          a[static_cast<std::size_t>(p.transpose_a ? k * p.lda + i : i * p.lda + k)];
      for (std::int64_t j = 0; j < p.n; ++j) {
        c[static_cast<std::size_t>(i * p.n + j)] +=
            left * b[static_cast<std::size_t>(p.transpose_b ? j * p.ldb + k : k * p.ldb + j)];
      }
    }
  }
  return c;
}

TEST_P(Bf16Engine, AllLayoutsAndOddSizesMatchF64) {
  for (auto [m, n, k] : {std::array<std::int64_t, 3>{1, 1, 1},
                         {16, 16, 32},
                         {17, 33, 31},
                         {15, 47, 65},
                         {64, 97, 257},
                         {31, 1, 300},
                         {1, 130, 2},
                         {33, 50, 520}}) {
    for (int layout = 0; layout < 4; ++layout) {
      const GemmDims p = dims_of(m, n, k, (layout & 1) != 0, (layout & 2) != 0);
      SCOPED_TRACE(concat(m, " x ", n, " x ", k, " layout ", layout));
      Buffer a = random_buffer(Dtype::kBf16, {m, k}, 1), b = random_buffer(Dtype::kBf16, {k, n}, 2);
      expect_near(multiply(p, a, b), gemm_reference(p, a.values(), b.values()),
                  0x1p-24 * (16 + static_cast<double>(k)));
    }
  }
}

// More than one block of rows, columns and depth. Integers are exact, so the sums must be.
TEST_P(Bf16Engine, SumsOverSeveralBlocksAreExact) {
  for (auto [m, n, k] :
       {std::array<std::int64_t, 3>{1100, 40, 70}, {20, 1700, 33}, {40, 50, 4200}}) {
    for (bool transpose : {false, true}) {
      const GemmDims p = dims_of(m, n, k, transpose, !transpose);
      SCOPED_TRACE(concat(m, " x ", n, " x ", k, transpose ? " transposed a" : " transposed b"));
      std::vector<double> left(static_cast<std::size_t>(m * k));
      std::vector<double> right(static_cast<std::size_t>(k * n));
      for (std::size_t i = 0; i < left.size(); ++i) left[i] = static_cast<double>(i * 7 % 11) - 5;
      for (std::size_t i = 0; i < right.size(); ++i) right[i] = static_cast<double>(i * 5 % 13) - 6;
      Buffer a(Dtype::kBf16, {m, k}, left), b(Dtype::kBf16, {k, n}, right);
      expect_near(multiply(p, a, b), gemm_reference(p, left, right), 0);
    }
  }
}

class Results final : public GemmGroup {
 public:
  explicit Results(const std::vector<BlockedGemm>& gemms) : gemms_(gemms) {
    for (const BlockedGemm& one : gemms) {
      c.emplace_back(Dtype::kF32, Shape{one.dims.m, one.dims.n});
    }
  }
  BlockedGemm member(std::int64_t number) const override {
    return gemms_[static_cast<std::size_t>(number)];
  }
  void finish(std::int64_t number, const Area& area, const float* sums,
              std::int64_t stride) const override {
    copy_area(area, sums, stride, member(number).dims.ldc, c[static_cast<std::size_t>(number)]);
  }

  mutable std::deque<Buffer> c;

 private:
  const std::vector<BlockedGemm>& gemms_;
};

// GEMMs that are split by rows or by columns, and others that are not.
TEST_P(Bf16Engine, AGroupHasTheBitsOfItsProducts) {
  std::deque<Buffer> factors, wanted;
  std::vector<BlockedGemm> gemms;
  for (auto [m, n, k] : {std::array<std::int64_t, 3>{700, 40, 70}, {5, 600, 300}, {1, 1, 1}}) {
    for (bool transpose : {false, true}) {
      const GemmDims p = dims_of(m, n, k, transpose, !transpose);
      Buffer& a = factors.emplace_back(random_buffer(Dtype::kBf16, {m, k}, factors.size()));
      Buffer& b = factors.emplace_back(random_buffer(Dtype::kBf16, {k, n}, factors.size()));
      wanted.emplace_back(Dtype::kF32, Shape{m, n}, multiply(p, a, b));
      gemms.push_back({.dims = p, .a = a.view().data, .b = b.view().data, .element_bytes = 2});
    }
  }
  for (int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::memset(pool.scratch(1 << 24), 0xff, 1 << 24);
    Results results(gemms);
    multiply_group(pool, *GetParam().engine, static_cast<std::int64_t>(gemms.size()), results);
    for (std::size_t i = 0; i < gemms.size(); ++i) {
      EXPECT_TRUE(results.c[i].guards_intact());
      EXPECT_EQ(results.c[i].bits(), wanted[i].bits()) << "product " << i << ", " << threads;
    }
  }
}

TEST_P(Bf16Engine, NanInfinityAndDenormals) {
  const GemmDims p = dims_of(20, 35, 45, false, true);
  Buffer a = random_buffer(Dtype::kBf16, {20, 45}, 1), b = random_buffer(Dtype::kBf16, {35, 45}, 2);
  a.set(3 * 45 + 44, std::numeric_limits<double>::quiet_NaN());
  a.set(7 * 45 + 1, std::numeric_limits<double>::infinity());
  for (std::size_t k = 0; k < 45; ++k) a.set(9 * 45 + k, 0x1p-130);
  const std::vector<double> c = multiply(p, a, b);
  for (std::size_t j = 0; j < 35; ++j) {
    EXPECT_TRUE(std::isnan(c[3 * 35 + j]));
    EXPECT_TRUE(std::isinf(c[7 * 35 + j]));
    EXPECT_TRUE(std::isfinite(c[8 * 35 + j]));
    EXPECT_EQ(c[9 * 35 + j], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Bf16Engine,
                         testing::Values(Named{"Avx512", avx512_bf16_engine()},
                                         Named{"Amx", amx_engine()},
                                         Named{"EmulatedAmx", emulated_amx_engine()}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace bev::cpu
