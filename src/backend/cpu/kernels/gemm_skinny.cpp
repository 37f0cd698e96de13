// Skinny GEMM for decoding: every element of b is read once and used for all rows, so that the GEMM
// is bound by the memory bandwidth of b.
#include <cstring>
#include <type_traits>

#include "backend/cpu/bf16_engines.h"
#include "backend/cpu/kernels/gemm_problem.h"
#include "backend/cpu/kernels/lanes.h"
#include "backend/cpu/kernels/pieces.h"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
// Rows computed together: their sums with several columns must fit in the registers.
#if defined(__AVX512F__)
constexpr int kMostRows = 8;
#else
constexpr int kMostRows = 2;
#endif

template <class A>
struct LaneNumbers;
template <>
struct LaneNumbers<float> {
  typedef std::int32_t type __attribute__((vector_size(64)));
};
template <>
struct LaneNumbers<double> {
  typedef std::int64_t type __attribute__((vector_size(64)));
};

// x = sums of adjacent lanes, of x and then of y.
template <class A>
BEV_INLINE void add_neighbours(typename Lanes<A>::type& x, const typename Lanes<A>::type& y) {
  typename LaneNumbers<A>::type even = {}, odd = {};
#pragma GCC unroll 16
  for (int i = 0; i < Lanes<A>::kCount; ++i) {
    even[i] = 2 * i;
    odd[i] = 2 * i + 1;
  }
  x = __builtin_shuffle(x, y, even) + __builtin_shuffle(x, y, odd);
}

// sums[i] = sum of all lanes of x[i], in an order that does not depend on kVectors.
template <class A, int kVectors>
BEV_INLINE void add_all_lanes(typename Lanes<A>::type (&x)[kVectors], A* sums) {
  constexpr int kCount = static_cast<int>(Lanes<A>::kCount);
  if constexpr (kVectors == kCount) {
#pragma GCC unroll 4
    for (int left = kVectors / 2; left > 0; left /= 2) {
#pragma GCC unroll 8
      for (int i = 0; i < left; ++i) {
        x[i] = x[2 * i];
        add_neighbours<A>(x[i], x[2 * i + 1]);
      }
    }
    std::memcpy(sums, &x[0], sizeof x[0]);
  } else {
    for (int i = 0; i < kVectors; ++i) {
#pragma GCC unroll 4
      for (int width = kCount; width > 1; width /= 2) add_neighbours<A>(x[i], x[i]);
      sums[i] = x[i][0];
    }
  }
}

// Short 16-bit rows end before the hardware prefetcher detects the next one.
template <class T>
BEV_INLINE void prefetch_columns(const T* from, std::int64_t elements) {
  if constexpr (sizeof(T) == 2) __builtin_prefetch(from + elements);
}

// Dot products of widened elements: sums[r][c] = dot(a[r], b[c]) for kRows rows of a, depth apart,
// and kColumns rows of b, stride apart. The register tile loads each vector of a and b once for
// several products and hides the latency of the additions.
template <class T>
struct WideDots {
  using Left = accumulate_t<T>;

  template <int kRows, int kColumns>
  static void tile(const Left* a, const T* b, std::int64_t stride, std::int64_t depth,
                   Left (&sums)[kRows][kColumns]) {
    using Vector = typename Lanes<Left>::type;
    constexpr std::int64_t kCount = Lanes<Left>::kCount;
    Vector lanes[kRows * kColumns] = {};
    std::int64_t i = 0;
    for (; i + kCount <= depth; i += kCount) {
      Vector left[kRows];
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) load_lanes(a + row * depth + i, left[row]);
#pragma GCC unroll 4
      for (int column = 0; column < kColumns; ++column) {
        Vector right;
        const T* from = b + column * stride + i;
        prefetch_columns(from, kColumns * stride);
        load_lanes(from, right);
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) lanes[row * kColumns + column] += left[row] * right;
      }
    }
    add_all_lanes<Left>(lanes, &sums[0][0]);
    for (int row = 0; row < kRows; ++row) {
      for (int column = 0; column < kColumns; ++column) {
        for (std::int64_t j = i; j < depth; ++j) {
          sums[row][column] += a[row * depth + j] * widen(b[column * stride + j]);
        }
      }
    }
  }
};

#if defined(__AVX512F__)
// Same on pairs of bf16, which the CPU multiplies without widening (AVX512_BF16).
struct PairDots {
  using Left = Bf16;

  template <int kRows, int kColumns>
  [[gnu::target("avx512bf16")]] static void tile(const Bf16* a, const Bf16* b, std::int64_t stride,
                                                 std::int64_t depth,
                                                 float (&sums)[kRows][kColumns]) {
    constexpr std::int64_t kCount = 32;
    typename Lanes<float>::type lanes[kRows * kColumns] = {};
    for (std::int64_t i = 0; i < depth; i += kCount) {
      const __mmask32 mask = depth - i >= kCount ? ~0u : (1u << (depth - i)) - 1;
      __m512i left[kRows];
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        left[row] = _mm512_maskz_loadu_epi16(mask, a + row * depth + i);
      }
#pragma GCC unroll 4
      for (int column = 0; column < kColumns; ++column) {
        const Bf16* from = b + column * stride + i;
        prefetch_columns(from, kColumns * stride);
        const auto right = reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(mask, from));
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) {
          auto& sum = lanes[row * kColumns + column];
          sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(left[row]), right);
        }
      }
    }
    add_all_lanes<float>(lanes, &sums[0][0]);
  }
};
#endif

// kRows x kColumns elements of c at (row, column).
template <class Dots, int kRows, int kColumns, class T, class C>
void dot_tile(const Gemm& gemm, const typename Dots::Left* a, std::int64_t row,
              std::int64_t column) {
  const GemmDims& p = gemm.dims;
  accumulate_t<T> sums[kRows][kColumns];
  Dots::template tile<kRows, kColumns>(a + row * p.k, b_at<T>(gemm, 0, column), p.ldb, p.k, sums);
  for (int r = 0; r < kRows; ++r) {
    finish_row<T, C>(gemm, column, kColumns, sums[r],
                     static_cast<C*>(gemm.c) + (row + r) * p.ldc + column);
  }
}

// Rows from `row` on for a range of columns, whose part of b stays in the cache.
template <class Dots, int kRows, class T, class C>
void dot_columns(const Gemm& gemm, const typename Dots::Left* a, std::int64_t row,
                 std::int64_t begin, std::int64_t end) {
  constexpr int kColumns = kRows == 8 ? 2 : 4;
  for (; row + kRows <= gemm.dims.m; row += kRows) {
    std::int64_t column = begin;
    for (; column + kColumns <= end; column += kColumns) {
      dot_tile<Dots, kRows, kColumns, T, C>(gemm, a, row, column);
    }
    for (; column < end; ++column) dot_tile<Dots, kRows, 1, T, C>(gemm, a, row, column);
  }
  if constexpr (kRows > 1) dot_columns<Dots, kRows / 2, T, C>(gemm, a, row, begin, end);
}

template <class Dots, class T, class C>
void multiply_skinny(const Stream& stream, const Gemm& gemm) {
  using Left = typename Dots::Left;
  const GemmDims& p = gemm.dims;
  auto* a = reinterpret_cast<Left*>(
      stream.pool->scratch(static_cast<std::size_t>(p.m * p.k) * sizeof(Left)));
  for (std::int64_t row = 0; row < p.m; ++row) {
    for (std::int64_t i = 0; i < p.k; ++i) {
      if constexpr (std::is_same_v<Left, T>) {
        a[row * p.k + i] = *a_at<T>(gemm, row, i);
      } else {
        a[row * p.k + i] = widen(*a_at<T>(gemm, row, i));
      }
    }
  }
  const std::int64_t columns = std::max<std::int64_t>(8, 2 * kFlatPiece / p.k);
  for_ranges(stream, p.n, columns, [&](std::int64_t begin, std::int64_t end) {
    dot_columns<Dots, kMostRows, T, C>(gemm, a, 0, begin, end);
  });
}
}  // namespace

template <class T, class C>
void gemm_skinny(const Stream& stream, const Gemm& gemm) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, Bf16>) {
    if (avx512_bf16_engine() != nullptr) return multiply_skinny<PairDots, T, C>(stream, gemm);
  }
#endif
  multiply_skinny<WideDots<T>, T, C>(stream, gemm);
}

template void gemm_skinny<double, double>(const Stream&, const Gemm&);
template void gemm_skinny<float, float>(const Stream&, const Gemm&);
template void gemm_skinny<Bf16, Bf16>(const Stream&, const Gemm&);
template void gemm_skinny<Bf16, float>(const Stream&, const Gemm&);
template void gemm_skinny<F16, F16>(const Stream&, const Gemm&);
template void gemm_skinny<F16, float>(const Stream&, const Gemm&);

}  // namespace bev::cpu::BEV_CPU_LEVEL
