// Stands in for CUDA's header of half.
#pragma once

#include <cmath>

#include "tensor/dtype.h"
#include "tests/cuda_emulation/include/cuda_runtime.h"

struct __half_raw {
  std::uint16_t x;
};
struct alignas(2) __half {
  std::uint16_t bits;
  __half() = default;
  __half(__half_raw raw) : bits(raw.x) {}
  operator float() const {
    bev::F16 wide;
    wide.bits = bits;
    return wide;
  }
};
struct alignas(4) __half2 {
  __half x, y;
};
inline float __half2float(__half x) { return x; }
inline __half __float2half_rn(float x) {
  return __half_raw{std::isnan(x) ? std::uint16_t{0x7fff} : bev::F16(x).bits};
}
inline __half __hmax(__half a, __half b) {
  if (std::isnan(float{a})) return b;
  return float{b} > float{a} ? b : a;
}
inline __half2 __hmax2(__half2 a, __half2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }
