#include <vector>

#include "backend/cpu/kernels/gemm_parts.h"
#include "backend/cpu/kernels/lanes.h"
#include "backend/cpu/kernels/pieces.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
// sums[r][s] = a[r] . b[s] for kRows rows of a, depth apart, and kColumns rows of b, stride apart.
// A tile of them reads each vector of a and b once for several products and hides the latency of a
// sum.
template <int kRows, int kColumns, class T>
BEV_INLINE void dot_tile(const accumulate_t<T>* a, const T* b, std::int64_t stride,
                         std::int64_t depth, accumulate_t<T> (&sums)[kRows][kColumns]) {
  using A = accumulate_t<T>;
  using Vector = typename Lanes<A>::type;
  constexpr std::int64_t kCount = Lanes<A>::kCount;
  Vector lanes[kRows][kColumns] = {};
  std::int64_t i = 0;
  for (; i + kCount <= depth; i += kCount) {
    Vector left[kRows];
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) load_lanes(a + row * depth + i, left[row]);
#pragma GCC unroll 4
    for (int column = 0; column < kColumns; ++column) {
      Vector right;
      const T* from = b + column * stride + i;
      // Short rows of 16 bits end before the hardware foresees the next.
      if constexpr (sizeof(T) == 2) __builtin_prefetch(from + kColumns * stride);
      load_lanes(from, right);
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row) lanes[row][column] += left[row] * right;
    }
  }
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      A rest = 0;
      for (std::int64_t j = i; j < depth; ++j) {
        rest += a[row * depth + j] * widen(b[column * stride + j]);
      }
      sums[row][column] = add_lanes<A>(lanes[row][column]) + rest;
    }
  }
}

// Columns [begin, begin + kColumns) of c.
template <int kRows, int kColumns, class T, class C>
void dot_columns(const Gemm& gemm, const accumulate_t<T>* a, std::int64_t begin) {
  const Product& p = gemm.product;
  accumulate_t<T> sums[kRows][kColumns];
  dot_tile<kRows, kColumns, T>(a, static_cast<const T*>(gemm.b) + begin * p.ldb, p.ldb, p.k, sums);
  for (int row = 0; row < kRows; ++row) {
    finish_row<T, C>(gemm, begin, kColumns, sums[row],
                     static_cast<C*>(gemm.c) + row * p.ldc + begin);
  }
}

template <int kRows, class T, class C>
void dot_range(const Gemm& gemm, const accumulate_t<T>* a, std::int64_t begin, std::int64_t end) {
  constexpr int kColumns = kRows <= 2 ? 4 : 2;
  for (; begin + kColumns <= end; begin += kColumns) {
    dot_columns<kRows, kColumns, T, C>(gemm, a, begin);
  }
  for (; begin < end; ++begin) dot_columns<kRows, 1, T, C>(gemm, a, begin);
}
}  // namespace

template <class T, class C>
void gemm_few_rows(const Stream& stream, const Gemm& gemm) {
  using A = accumulate_t<T>;
  const Product& p = gemm.product;
  std::vector<A> a(static_cast<std::size_t>(p.m * p.k));
  for (std::int64_t row = 0; row < p.m; ++row) {
    for (std::int64_t i = 0; i < p.k; ++i) {
      a[static_cast<std::size_t>(row * p.k + i)] = widen(*a_at<T>(gemm, row, i));
    }
  }
  const std::int64_t columns = std::max<std::int64_t>(8, 2 * kFlatPiece / p.k);
  for_ranges(stream, p.n, columns, [&](std::int64_t begin, std::int64_t end) {
    if (p.m == 1) return dot_range<1, T, C>(gemm, a.data(), begin, end);
    if constexpr (kFewRows<T> >= 2) {
      if (p.m == 2) return dot_range<2, T, C>(gemm, a.data(), begin, end);
    }
    if constexpr (kFewRows<T> >= 4) {
      if (p.m == 3) return dot_range<3, T, C>(gemm, a.data(), begin, end);
      if (p.m == 4) return dot_range<4, T, C>(gemm, a.data(), begin, end);
    }
  });
}

template void gemm_few_rows<double, double>(const Stream&, const Gemm&);
template void gemm_few_rows<float, float>(const Stream&, const Gemm&);
template void gemm_few_rows<Bf16, Bf16>(const Stream&, const Gemm&);
template void gemm_few_rows<Bf16, float>(const Stream&, const Gemm&);
template void gemm_few_rows<F16, F16>(const Stream&, const Gemm&);
template void gemm_few_rows<F16, float>(const Stream&, const Gemm&);

}  // namespace bev::cpu::BEV_CPU_LEVEL
