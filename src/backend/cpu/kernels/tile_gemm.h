// GEMM of small tiles in the cache, the building block of attention. Vectors are the compiler's
// generic ones, as wide as the level allows, without intrinsics.
#pragma once

#include <cstdint>

#include "backend/cpu/kernels/math.h"

namespace bev::cpu::BEV_CPU_LEVEL {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kTileRows = 8;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
constexpr int kTileRows = 4;
#else
constexpr int kVectorBytes = 16;
constexpr int kTileRows = 4;
#endif

// A Vector may be at any address of an A (unaligned).
template <class A>
struct VectorOf {
  typedef A type __attribute__((vector_size(kVectorBytes), aligned(alignof(A)), may_alias));
};
template <class A>
using Vector = typename VectorOf<A>::type;
template <class A>
constexpr int kVectorLanes = kVectorBytes / static_cast<int>(sizeof(A));

template <class A>
BEV_INLINE const Vector<A>& vector_at(const A* address) {
  return *reinterpret_cast<const Vector<A>*>(address);
}
template <class A>
BEV_INLINE Vector<A>& vector_at(A* address) {
  return *reinterpret_cast<Vector<A>*>(address);
}

// Row-major matrix: address and row stride in elements.
template <class A>
struct Tile {
  A* data;
  std::int64_t stride;
};

// c [rows, columns] = op(a) [rows, inner] b [inner, columns], added to c if kAdd. op transposes if
// kTransposeA. rows is rounded up to kTileRows and columns to a vector: a and b must be readable, c
// writable that far.
template <class A, bool kTransposeA, bool kAdd>
void tile_gemm(int rows, int columns, int inner, Tile<const A> a, Tile<const A> b, Tile<A> c);

}  // namespace bev::cpu::BEV_CPU_LEVEL
