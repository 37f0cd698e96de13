// Panel packing of bf16 operands in pairs, with AVX-512.
#include "backend/cpu/bf16_panels.h"

#if defined(__x86_64__)
#include <algorithm>

#include "backend/cpu/transpose_words.h"

namespace bev::cpu {

namespace {
constexpr int kPairs = static_cast<int>(kDepthStep) / 2;

// One block of pairs, in the order of the source.
struct PairBlock {
  __m512i rows[kPairs];
};

// The lowest `count` bits, or all 32.
std::uint32_t low_bits(std::int64_t count) {
  return count >= 32 ? ~0u : (1u << std::max<std::int64_t>(count, 0)) - 1;
}

// Depth is contiguous: a row is an item.
[[BEV_AVX512]] inline void load_items(const std::uint16_t* from, std::int64_t step,
                                      std::int64_t items, std::int64_t depth, PairBlock& block) {
  const __mmask32 mask = low_bits(depth);
#pragma GCC unroll 16
  for (int i = 0; i < kPairs; ++i) {
    block.rows[i] =
        i < items ? _mm512_maskz_loadu_epi16(mask, from + i * step) : _mm512_setzero_si512();
  }
}

// Items are contiguous: a row is a pair, whose halves are adjacent rows of the source.
[[BEV_AVX512]] inline void load_pairs(const std::uint16_t* from, std::int64_t step,
                                      std::int64_t items, std::int64_t depth, PairBlock& block) {
  const auto mask = static_cast<__mmask16>(low_bits(items));
#pragma GCC unroll 16
  for (int i = 0; i < kPairs; ++i) {
    const std::uint16_t* even = from + 2 * i * step;
    const __m256i low =
        2 * i < depth ? _mm256_maskz_loadu_epi16(mask, even) : _mm256_setzero_si256();
    const __m256i high =
        2 * i + 1 < depth ? _mm256_maskz_loadu_epi16(mask, even + step) : _mm256_setzero_si256();
    block.rows[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(low),
                                    _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
  }
}

[[BEV_AVX512]] inline void pack(const PanelSource& from, bool item_rows, std::byte* to) {
  const auto* source = static_cast<const std::uint16_t*>(from.data);
  const bool by_item = from.depth_step == 1;
  for (std::int64_t k = 0; k < from.depth; k += kDepthStep, to += kPairBlockBytes) {
    PairBlock block;
    if (by_item) {
      load_items(source + k, from.item_step, from.items, from.depth - k, block);
    } else {
      load_pairs(source + k * from.depth_step, from.depth_step, from.items, from.depth - k, block);
    }
    if (by_item != item_rows) transpose_words(block.rows);
#pragma GCC unroll 16
    for (int i = 0; i < kPairs; ++i) _mm512_store_si512(to + 64 * i, block.rows[i]);
  }
}
}  // namespace

[[gnu::target("avx512f,avx512bw,avx512vl")]] void pack_pair_columns(const PanelSource& from,
                                                                    std::byte* to) {
  pack(from, false, to);
}

[[gnu::target("avx512f,avx512bw,avx512vl")]] void pack_pair_rows(const PanelSource& from,
                                                                 std::byte* to) {
  pack(from, true, to);
}

}  // namespace bev::cpu
#endif
