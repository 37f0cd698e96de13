// Stands in for CUDA's header of bfloat16.
#pragma once

#include <cmath>

#include "tensor/dtype.h"
#include "tests/cuda_emulation/include/cuda_runtime.h"

struct alignas(2) __nv_bfloat16 {
  std::uint16_t bits;
  operator float() const {
    bev::Bf16 wide;
    wide.bits = bits;
    return wide;
  }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {std::isnan(x) ? std::uint16_t{0x7fff} : bev::Bf16(x).bits};
}
// NaN is ignored unless both are NaN.
inline __nv_bfloat16 __hmax(__nv_bfloat16 a, __nv_bfloat16 b) {
  if (std::isnan(float{a})) return b;
  return float{b} > float{a} ? b : a;
}
inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b) {
  return {__hmax(a.x, b.x), __hmax(a.y, b.y)};
}
