// GEMM microkernel with AVX512_BF16 (dot products of bf16 pairs), and the choice between it and
// AMX.
#include "backend/cpu/bf16_engines.h"
#include "backend/cpu/bf16_panels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bev::cpu {

#if defined(__x86_64__)
namespace {
// Rows of the register tile: 8 x 3 of the 32 vector registers hold sums. Few rows need fewer.
constexpr int kMostRows = 8, kFewRows = 4, kMostPanels = 3;

template <int kRows, int kPanels>
[[gnu::target("avx512f,avx512bf16"), gnu::always_inline]] inline void multiply_rows(
    const TileGemm& tile, const std::int32_t* a, float* sums) {
  __m512 c[kRows][kPanels];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 3
    for (int panel = 0; panel < kPanels; ++panel) {
      const float* at = sums + row * tile.stride + panel * kPanelItems;
      c[row][panel] = tile.add ? _mm512_loadu_ps(at) : _mm512_setzero_ps();
    }
  }
  const std::byte* b = tile.b;
  for (std::int64_t pair = tile.steps * kDepthStep / 2; pair > 0; --pair) {
    __m512i columns[kPanels];
#pragma GCC unroll 3
    for (int panel = 0; panel < kPanels; ++panel) {
      columns[panel] = _mm512_load_si512(b + panel * tile.panel_bytes);
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(a[row]));
#pragma GCC unroll 3
      for (int panel = 0; panel < kPanels; ++panel) {
        c[row][panel] =
            _mm512_dpbf16_ps(c[row][panel], factor, reinterpret_cast<__m512bh>(columns[panel]));
      }
    }
    a += kPanelItems;
    b += 4 * kPanelItems;
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 3
    for (int panel = 0; panel < kPanels; ++panel) {
      _mm512_storeu_ps(sums + row * tile.stride + panel * kPanelItems, c[row][panel]);
    }
  }
}

template <int kPanels>
[[gnu::target("avx512f,avx512bf16")]] void multiply_panels(const TileGemm& tile) {
  const auto* a = reinterpret_cast<const std::int32_t*>(tile.a);
  std::int64_t row = 0;
  for (; row + kFewRows < tile.rows; row += kMostRows) {
    multiply_rows<kMostRows, kPanels>(tile, a + row, tile.sums + row * tile.stride);
  }
  if (row < tile.rows) {
    multiply_rows<kFewRows, kPanels>(tile, a + row, tile.sums + row * tile.stride);
  }
}

void multiply(const TileGemm& tile) {
  if (tile.b_panels == 3) return multiply_panels<3>(tile);
  if (tile.b_panels == 2) return multiply_panels<2>(tile);
  multiply_panels<1>(tile);
}

void nothing() {}

bool supported() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
}
}  // namespace

const TileEngine* avx512_bf16_engine() {
  static constexpr TileEngine kEngine = {.a_panels = 1,
                                         .b_panels = kMostPanels,
                                         .block_steps = 8,
                                         .step_bytes = kPairBlockBytes,
                                         .pack_a = pack_pair_columns,
                                         .pack_b = pack_pair_columns,
                                         .multiply = multiply,
                                         .begin = nothing,
                                         .end = nothing};
  static const bool available = supported();
  return available ? &kEngine : nullptr;
}
#else
const TileEngine* avx512_bf16_engine() { return nullptr; }
#endif

const TileEngine* bf16_engine() {
  const TileEngine* amx = amx_engine();
  return amx != nullptr ? amx : avx512_bf16_engine();
}

}  // namespace bev::cpu
