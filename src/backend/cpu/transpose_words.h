// Transpose of 16 x 16 words of 32 bits in registers, with AVX-512: for packing GEMM operands.
#pragma once

#if defined(__x86_64__)
// g++ 12 warns about the deliberately undefined values inside its own intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#define BEV_AVX512 gnu::target("avx512f,avx512bw,avx512vl"), gnu::always_inline

namespace bev::cpu {

// Row i becomes column i: first within 4 x 4 words, then the 4 x 4 of these.
[[BEV_AVX512]] inline void transpose_words(__m512i (&x)[16]) {
  __m512i y[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    const __m512i a = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    const __m512i b = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    const __m512i c = _mm512_unpacklo_epi32(x[i + 2], x[i + 3]);
    const __m512i d = _mm512_unpackhi_epi32(x[i + 2], x[i + 3]);
    y[i] = _mm512_unpacklo_epi64(a, c);
    y[i + 1] = _mm512_unpackhi_epi64(a, c);
    y[i + 2] = _mm512_unpacklo_epi64(b, d);
    y[i + 3] = _mm512_unpackhi_epi64(b, d);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(y[i], y[i + 4], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(y[i], y[i + 4], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(y[i + 8], y[i + 12], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(y[i + 8], y[i + 12], 0xdd);
    x[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
    x[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
    x[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

}  // namespace bev::cpu
#endif
