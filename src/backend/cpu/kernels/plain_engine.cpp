// GEMM microkernel in portable vector code, with panels of f32.
#include "backend/cpu/kernels/plain_engine.h"

#include "backend/cpu/gemm_dims.h"
#include "backend/cpu/kernels/tile_gemm.h"
#include "backend/cpu/transpose_words.h"
#include "base/divide.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
// Rows, and panels of b, in the register tile.
#if defined(__AVX512F__)
constexpr int kMostRows = 8, kMostPanels = 3;
#elif defined(__AVX__)
constexpr int kMostRows = 4, kMostPanels = 1;
#else
constexpr int kMostRows = 2, kMostPanels = 1;
#endif
constexpr int kFewRows = kMostRows / 2;
constexpr int kItems = static_cast<int>(kPanelItems);
constexpr int kLanes = kVectorLanes<float>, kPanelVectors = kItems / kLanes;

// Transposes kItems x kItems elements, item-major, to f32, depth-major.
template <class T>
BEV_INLINE void pack_square(const T* __restrict from, std::int64_t step, float* __restrict to) {
  constexpr int kSide = 8;
  for (int half = 0; half < kItems; half += kSide) {
    for (int k = 0; k < kItems; k += kSide) {
      float square[kSide][kSide];
      for (int i = 0; i < kSide; ++i) {
        for (int j = 0; j < kSide; ++j) square[i][j] = widen(from[(half + i) * step + k + j]);
      }
      for (int j = 0; j < kSide; ++j) {
#pragma GCC unroll 8
        for (int i = 0; i < kSide; ++i) to[(k + j) * kItems + half + i] = square[i][j];
      }
    }
  }
}

#if defined(__AVX512F__)
// f32 takes no widening: 16 x 16 words are transposed in registers.
BEV_INLINE void pack_square(const float* __restrict from, std::int64_t step, float* __restrict to) {
  __m512i rows[kItems];
#pragma GCC unroll 16
  for (int i = 0; i < kItems; ++i) rows[i] = _mm512_loadu_si512(from + i * step);
  transpose_words(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kItems; ++i) _mm512_storeu_si512(to + i * kItems, rows[i]);
}
#endif

// Packs a panel [depth, item] as f32; the depth is padded with zeros to whole steps.
template <class T>
void pack(const PanelSource& source, std::byte* target) {
  const T* __restrict from = static_cast<const T*>(source.data);
  float* __restrict to = reinterpret_cast<float*>(target);
  std::int64_t k = 0;
  if (source.items == kItems && source.depth_step == 1) {
    for (; k + kItems <= source.depth; k += kItems) {
      pack_square(from + k, source.item_step, to + k * kItems);
    }
  } else if (source.items == kItems) {
    for (; k < source.depth; ++k) {
      for (int i = 0; i < kItems; ++i) to[k * kItems + i] = widen(from[k * source.depth_step + i]);
    }
  }
  for (; k < round_up(source.depth, kDepthStep); ++k) {
    for (int i = 0; i < kItems; ++i) {
      const bool present = i < source.items && k < source.depth;
      to[k * kItems + i] =
          present ? widen(from[i * source.item_step + k * source.depth_step]) : 0.0f;
    }
  }
}

template <int kRows, int kPanels>
BEV_INLINE void multiply_rows(const TileGemm& tile, const float* __restrict a,
                              float* __restrict sums) {
  constexpr int kVectors = kPanels * kPanelVectors;
  const auto sums_at = [&](int row, int v) -> Vector<float>& {
    return vector_at(sums + row * tile.stride + v * kLanes);
  };
  Vector<float> c[kRows][kVectors] = {};
  if (tile.add) {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) c[row][v] = sums_at(row, v);
    }
  }
  const auto* b = reinterpret_cast<const float*>(tile.b);
  const std::int64_t panel = tile.panel_bytes / static_cast<std::int64_t>(sizeof(float));
  for (std::int64_t k = 0; k < tile.steps * kDepthStep; ++k) {
    Vector<float> columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      columns[v] =
          vector_at(b + v / kPanelVectors * panel + k * kItems + v % kPanelVectors * kLanes);
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) c[row][v] += a[k * kItems + row] * columns[v];
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums_at(row, v) = c[row][v];
  }
}

template <int kPanels>
void multiply_panels(const TileGemm& tile) {
  const auto* a = reinterpret_cast<const float*>(tile.a);
  std::int64_t row = 0;
  for (; row + kFewRows < tile.rows; row += kMostRows) {
    multiply_rows<kMostRows, kPanels>(tile, a + row, tile.sums + row * tile.stride);
  }
  if (row < tile.rows) {
    multiply_rows<kFewRows, kPanels>(tile, a + row, tile.sums + row * tile.stride);
  }
}

void multiply(const TileGemm& tile) {
  if constexpr (kMostPanels == 3) {
    if (tile.b_panels == 3) return multiply_panels<3>(tile);
    if (tile.b_panels == 2) return multiply_panels<2>(tile);
  }
  multiply_panels<1>(tile);
}

void nothing() {}
}  // namespace

template <class T>
const TileEngine& plain_engine() {
  static constexpr TileEngine kEngine = {
      .a_panels = 1,
      .b_panels = kMostPanels,
      .block_steps = 4,
      .step_bytes = kPanelItems * kDepthStep * static_cast<std::int64_t>(sizeof(float)),
      .pack_a = pack<T>,
      .pack_b = pack<T>,
      .multiply = multiply,
      .begin = nothing,
      .end = nothing};
  return kEngine;
}

template const TileEngine& plain_engine<float>();
template const TileEngine& plain_engine<Bf16>();
template const TileEngine& plain_engine<F16>();

}  // namespace bev::cpu::BEV_CPU_LEVEL
