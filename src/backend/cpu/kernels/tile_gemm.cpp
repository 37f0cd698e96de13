// GEMM of small tiles in the cache: a register tile of kTileRows rows times one or two vectors.
#include "backend/cpu/kernels/tile_gemm.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// Register tile: kTileRows x (kVectors vectors) of c = (c +) op(a) b.
template <class A, bool kTransposeA, bool kAdd, int kVectors>
BEV_INLINE void product_block(std::int64_t inner, Tile<const A> a, Tile<const A> b, Tile<A> c) {
  constexpr int kLanes = kVectorLanes<A>;
  Vector<A> sums[kTileRows][kVectors] = {};
  for (std::int64_t k = 0; k < inner; ++k) {
    Vector<A> row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = vector_at(b.data + k * b.stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const A factor = kTransposeA ? a.data[k * a.stride + r] : a.data[r * a.stride + k];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] += factor * row[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Vector<A>& target = vector_at(c.data + r * c.stride + v * kLanes);
      target = kAdd ? target + sums[r][v] : sums[r][v];
    }
  }
}

}  // namespace

template <class A, bool kTransposeA, bool kAdd>
void tile_gemm(int rows, int columns, int inner, Tile<const A> a, Tile<const A> b, Tile<A> c) {
  constexpr int kLanes = kVectorLanes<A>;
  const std::int64_t row_step = kTransposeA ? 1 : a.stride;
  int column = 0;
  for (; column + kLanes < columns; column += 2 * kLanes) {
    for (int row = 0; row < rows; row += kTileRows) {
      product_block<A, kTransposeA, kAdd, 2>(inner, {a.data + row * row_step, a.stride},
                                             {b.data + column, b.stride},
                                             {c.data + row * c.stride + column, c.stride});
    }
  }
  for (; column < columns; column += kLanes) {
    for (int row = 0; row < rows; row += kTileRows) {
      product_block<A, kTransposeA, kAdd, 1>(inner, {a.data + row * row_step, a.stride},
                                             {b.data + column, b.stride},
                                             {c.data + row * c.stride + column, c.stride});
    }
  }
}

template void tile_gemm<float, false, false>(int, int, int, Tile<const float>, Tile<const float>,
                                             Tile<float>);
template void tile_gemm<float, false, true>(int, int, int, Tile<const float>, Tile<const float>,
                                            Tile<float>);
template void tile_gemm<float, true, true>(int, int, int, Tile<const float>, Tile<const float>,
                                           Tile<float>);
template void tile_gemm<double, false, false>(int, int, int, Tile<const double>, Tile<const double>,
                                              Tile<double>);
template void tile_gemm<double, false, true>(int, int, int, Tile<const double>, Tile<const double>,
                                             Tile<double>);
template void tile_gemm<double, true, true>(int, int, int, Tile<const double>, Tile<const double>,
                                            Tile<double>);

}  // namespace bev::cpu::BEV_CPU_LEVEL
