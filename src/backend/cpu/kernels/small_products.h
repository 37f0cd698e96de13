// Matrix products of the size of a chunk of a recurrence, in the accumulate type: 4 rows by 2
// vectors at a time. Sums are over the inner dim in order.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/kernels/lanes.h"

namespace bev::cpu::BEV_CPU_LEVEL {

// Element (i, l) of an operand is at[i * row + l * column]; a transpose swaps the two.
template <class A>
struct MatrixOperand {
  const A* at;
  std::int64_t row, column = 1;
};

template <class A>
BEV_INLINE void multiply_tile(std::int64_t rows, std::int64_t inner, const MatrixOperand<A>& a,
                              const A* b, std::int64_t b_row, A* c, std::int64_t c_row) {
  using Vector = typename Lanes<A>::type;
  Vector sums[4][2] = {};
  for (std::int64_t l = 0; l < inner; ++l) {
    Vector right[2];
    std::memcpy(right, b + l * b_row, sizeof right);
    for (std::int64_t i = 0; i < 4; ++i) {
      const A left = i < rows ? a.at[i * a.row + l * a.column] : A(0);
      sums[i][0] += left * right[0];
      sums[i][1] += left * right[1];
    }
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    Vector old[2];
    std::memcpy(old, c + i * c_row, sizeof old);
    old[0] += sums[i][0];
    old[1] += sums[i][1];
    std::memcpy(c + i * c_row, old, sizeof old);
  }
}

// c [m, n] += a [m, k] b [k, n]; rows of b and c are b_row and c_row apart.
template <class A>
void add_product(std::int64_t m, std::int64_t n, std::int64_t k, const MatrixOperand<A>& a,
                 const A* b, std::int64_t b_row, A* c, std::int64_t c_row) {
  constexpr std::int64_t kColumns = 2 * Lanes<A>::kCount;
  const std::int64_t whole = n / kColumns * kColumns;
  for (std::int64_t i = 0; i < m; i += 4) {
    const std::int64_t rows = m - i < 4 ? m - i : 4;
    const MatrixOperand<A> left{a.at + i * a.row, a.row, a.column};
    for (std::int64_t j = 0; j < whole; j += kColumns) {
      multiply_tile(rows, k, left, b + j, b_row, c + i * c_row + j, c_row);
    }
    for (std::int64_t r = 0; r < rows && whole < n; ++r) {
      A* to = c + (i + r) * c_row;
      for (std::int64_t l = 0; l < k; ++l) {
        const A factor = left.at[r * a.row + l * a.column];
        for (std::int64_t j = whole; j < n; ++j) to[j] += factor * b[l * b_row + j];
      }
    }
  }
}

// to [n, m] = from [m, n]^T
template <class A>
void transpose(std::int64_t m, std::int64_t n, const A* from, A* to) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) to[j * m + i] = from[i * n + j];
  }
}

template <class A>
BEV_INLINE A dot(std::int64_t n, const A* a, const A* b) {
  return sum_of<A>(n, [&](std::int64_t i) { return a[i] * b[i]; });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
