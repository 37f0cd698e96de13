// Matrix products of one thread through oneDNN. The library's own threading is off inside a call,
// so results depend on the shape only.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace bev::cpu {

// Row-major, leading dims in elements. op(a) is [m, k], op(b) [k, n], c [m, n].
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
};

// c = alpha op(a) op(b) + beta c; beta 0 does not read c. False when oneDNN refuses.
bool onednn_product(const Product& product, float alpha, const float* a, const float* b, float beta,
                    float* c);

// Whether this CPU multiplies bf16 (AVX512_BF16; AMX is never used, it crashes on some machines).
bool onednn_has_bf16();

// c = op(a) op(b), or c += it; sums in f32. False when oneDNN refuses.
bool onednn_product(const Product& product, const Bf16* a, const Bf16* b, bool accumulate,
                    float* c);

}  // namespace bev::cpu
