// f64 GEMM: panel packing and a register tile of kRows x kColumns.

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/kernels/gemm_problem.h"
#include "base/divide.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kRows = 8, kVectors = 3;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kRows = 4, kVectors = 3;
#else
constexpr int kVectorBytes = 16, kRows = 4, kVectors = 2;
#endif
typedef double Vector __attribute__((vector_size(kVectorBytes)));
constexpr int kLanes = kVectorBytes / 8;
constexpr std::int64_t kColumns = kLanes * kVectors;
constexpr std::int64_t kDepth = 256;

// Microkernel: tile [kRows, kColumns] = panel of a (k steps of kRows) times panel of b (k steps of
// kColumns).
void multiply_panels(std::int64_t depth, const double* a, const double* b, double* tile) {
  Vector sums[kRows][kVectors] = {};
  for (std::int64_t i = 0; i < depth; ++i) {
    Vector columns[kVectors];
    std::memcpy(columns, b + i * kColumns, sizeof columns);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[row][v] += a[i * kRows + row] * columns[v];
    }
  }
  std::memcpy(tile, sums, sizeof sums);
}

// Packs panels of `width` rows of a matrix whose element (row, k) is at row * row_step + k *
// k_step; missing rows are zero.
template <std::int64_t width>
void pack(const double* from, std::int64_t row_step, std::int64_t k_step, std::int64_t rows,
          std::int64_t depth, double* to) {
  for (std::int64_t first = 0; first < rows; first += width) {
    const std::int64_t count = std::min(width, rows - first);
    const double* panel = from + first * row_step;
    for (std::int64_t i = 0; i < depth; ++i, to += width) {
      for (std::int64_t row = 0; row < count; ++row) to[row] = panel[row * row_step + i * k_step];
      for (std::int64_t row = count; row < width; ++row) to[row] = 0;
    }
  }
}

// Adds a register tile to the sums of the whole tile.
void add_tile(const double* from, std::int64_t rows, std::int64_t columns, double* to,
              std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t j = 0; j < columns; ++j) to[row * stride + j] += from[row * kColumns + j];
  }
}
}  // namespace

void gemm_tile_f64(const Gemm& gemm, const Area& tile) {
  const GemmDims& p = gemm.dims;
  const std::int64_t rows = round_up(tile.rows, kRows), columns = round_up(tile.columns, kColumns);
  std::vector<double> a(static_cast<std::size_t>(rows * kDepth));
  std::vector<double> b(static_cast<std::size_t>(columns * kDepth));
  std::vector<double> sums(static_cast<std::size_t>(tile.rows * tile.columns));
  for (std::int64_t k = 0; k < p.k; k += kDepth) {
    const std::int64_t depth = std::min(kDepth, p.k - k);
    pack<kRows>(a_at<double>(gemm, tile.row, k), p.transpose_a ? 1 : p.lda,
                p.transpose_a ? p.lda : 1, tile.rows, depth, a.data());
    pack<kColumns>(b_at<double>(gemm, k, tile.column), p.transpose_b ? p.ldb : 1,
                   p.transpose_b ? 1 : p.ldb, tile.columns, depth, b.data());
    for (std::int64_t column = 0; column < tile.columns; column += kColumns) {
      for (std::int64_t row = 0; row < tile.rows; row += kRows) {
        double registers[kRows * kColumns];
        multiply_panels(depth, a.data() + row * depth, b.data() + column * depth, registers);
        add_tile(registers, std::min<std::int64_t>(kRows, tile.rows - row),
                 std::min(kColumns, tile.columns - column),
                 sums.data() + row * tile.columns + column, tile.columns);
      }
    }
  }
  double* c = static_cast<double*>(gemm.c) + tile.row * p.ldc + tile.column;
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    finish_row<double, double>(gemm, tile.column, tile.columns, sums.data() + row * tile.columns,
                               c + row * p.ldc);
  }
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
