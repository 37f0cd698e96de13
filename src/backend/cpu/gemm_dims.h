// Dimensions of a GEMM, and areas of its result.
#pragma once

#include <cstdint>

namespace bev::cpu {

// Row-major, leading dimensions in elements. op(a) is [m, k], op(b) [k, n], c [m, n].
struct GemmDims {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
};

// Rows [row, row + rows) and columns [column, column + columns) of c.
struct Area {
  std::int64_t row = 0, column = 0, rows = 0, columns = 0;
};

}  // namespace bev::cpu
