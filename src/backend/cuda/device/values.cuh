// Element types on the device, packs for vectorised loads and stores, and the dtype switch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "base/error.h"
#include "tensor/view.h"

namespace bev::cuda {

using Bfloat = __nv_bfloat16;
using Half = __half;

// For the CUDA types and, in kernels that only need the bits, those of the host.
template <class T>
constexpr Dtype dtype_of() {
  if constexpr (std::is_same_v<T, float>) {
    return Dtype::kF32;
  } else if constexpr (std::is_same_v<T, Bfloat> || std::is_same_v<T, Bf16>) {
    return Dtype::kBf16;
  } else {
    static_assert(std::is_same_v<T, Half> || std::is_same_v<T, F16>);
    return Dtype::kF16;
  }
}
template <class T>
inline constexpr Dtype kDtypeOf = dtype_of<T>();

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(Bfloat x) { return __bfloat162float(x); }
__device__ inline float widen(Half x) { return __half2float(x); }

// Rounds to nearest even.
template <class T>
__device__ T narrow(float x) {
  if constexpr (sizeof(T) == 4) {
    return x;
  } else if constexpr (kDtypeOf<T> == Dtype::kBf16) {
    return __float2bfloat16_rn(x);
  } else {
    return __float2half_rn(x);
  }
}

// Elements of T in a 16-byte access.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <int kBytes>
struct WordOf {
  using type = uint4;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<4> {
  using type = std::uint32_t;
};
template <>
struct WordOf<2> {
  using type = std::uint16_t;
};
template <>
struct WordOf<1> {
  using type = std::uint8_t;
};

// N consecutive elements, loaded and stored in words of up to 16 bytes; the address must be aligned
// to such a word.
template <class T, int N>
struct Pack {
  static constexpr int kBytes = N * static_cast<int>(sizeof(T));
  using Word = typename WordOf<(kBytes < 16 ? kBytes : 16)>::type;
  static constexpr int kWords = kBytes / static_cast<int>(sizeof(Word));

  alignas(Word) T items[N];

  __device__ float operator[](int i) const { return widen(items[i]); }
  __device__ void set(int i, float value) { items[i] = narrow<T>(value); }
  __device__ void load(const T* from) {
    Word* words = reinterpret_cast<Word*>(items);
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = reinterpret_cast<const Word*>(from)[w];
  }
  __device__ void store(T* to) const {
    const Word* words = reinterpret_cast<const Word*>(items);
#pragma unroll
    for (int w = 0; w < kWords; ++w) reinterpret_cast<Word*>(to)[w] = words[w];
  }
};

// NaN is ignored unless all elements are NaN.
template <class T, int N>
__device__ float largest_of(const Pack<T, N>& pack) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    using Pair = std::conditional_t<kDtypeOf<T> == Dtype::kBf16, __nv_bfloat162, __half2>;
    const Pair* pairs = reinterpret_cast<const Pair*>(pack.items);
    Pair largest = pairs[0];
#pragma unroll
    for (int i = 1; i < N / 2; ++i) largest = __hmax2(largest, pairs[i]);
    return fmaxf(widen(largest.x), widen(largest.y));
  } else {
    float largest = pack[0];
#pragma unroll
    for (int i = 1; i < N; ++i) largest = fmaxf(largest, pack[i]);
    return largest;
  }
}

// Calls f(T{}) with the device type for dtype.
template <class F>
void visit_value(Dtype dtype, const F& f) {
  switch (dtype) {
    case Dtype::kF32:
      return f(float{});
    case Dtype::kBf16:
      return f(Bfloat{});
    case Dtype::kF16:
      return f(Half{});
    default:
      BEV_FAIL(ErrorKind::kDevice, "CUDA: tensors of ", name_of(dtype),
               " are not computed with; choose fp32, bf16 or fp16, or run on the CPU");
  }
}

// Typed address of a view, which must have that dtype; null for an empty view.
template <class T>
T* address(const View& view) {
  if (view.empty()) return nullptr;
  BEV_CHECK(view.dtype == kDtypeOf<T>, ErrorKind::kDevice, "CUDA: a tensor is ",
            name_of(view.dtype), " where ", name_of(kDtypeOf<T>), " is needed");
  return static_cast<T*>(view.data);
}

// True if all addresses are 16-byte aligned (null counts as aligned).
template <class... Pointers>
bool aligned(const Pointers*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) | ...) & 15u) == 0;
}

// Calls body(integral constant of elements per access) for a [rows, columns] matrix of T: a pack if
// all rows are aligned to it, else single elements.
template <class T, class Body>
void by_pack(bool is_aligned, std::int64_t columns, const Body& body) {
  if (is_aligned && columns % kPack<T> == 0) return body(std::integral_constant<int, kPack<T>>{});
  body(std::integral_constant<int, 1>{});
}

}  // namespace bev::cuda
