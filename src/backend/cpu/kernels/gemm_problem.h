// Shared by the CPU GEMM kernels: the arguments, and the epilogue.
#pragma once

#include <cstdint>

#include "backend/cpu/gemm_dims.h"
#include "backend/cpu/kernels/math.h"
#include "backend/cpu/onednn.h"
#include "base/function_ref.h"
#include "kernels/gemm.h"
#include "tensor/stream.h"

namespace bev::cpu::BEV_CPU_LEVEL {

// c = alpha op(a) op(b) + beta c + bias, undivided.
struct Gemm {
  GemmDims dims;
  double alpha = 1, beta = 0;
  const void *a = nullptr, *b = nullptr, *bias = nullptr;
  void* c = nullptr;
  PackedOperand* packed_b = nullptr;
  bool streams = false;  // c is written with non-temporal stores
  // A row of a linear forward has the same bits whatever m is: the order of its sums depends on K.
  bool exact = false;

  bool exact_linear() const { return exact && dims.transpose_b && !dims.transpose_a; }
};

// Address of op(a)[row, k] and op(b)[k, column].
template <class T>
const T* a_at(const Gemm& gemm, std::int64_t row, std::int64_t k) {
  const GemmDims& p = gemm.dims;
  return static_cast<const T*>(gemm.a) + (p.transpose_a ? k * p.lda + row : row * p.lda + k);
}
template <class T>
const T* b_at(const Gemm& gemm, std::int64_t k, std::int64_t column) {
  const GemmDims& p = gemm.dims;
  return static_cast<const T*>(gemm.b) + (p.transpose_b ? column * p.ldb + k : k * p.ldb + column);
}

// Epilogue of one row: to[j] = alpha from[j] + beta to[j] + bias[j]; beta 0 does not read `to`.
template <class T, class C>
BEV_INLINE void finish_row(const Gemm& gemm, std::int64_t column, std::int64_t columns,
                           const accumulate_t<T>* from, C* to) {
  using A = accumulate_t<T>;
  const A alpha = static_cast<A>(gemm.alpha), beta = static_cast<A>(gemm.beta);
  const T* bias = static_cast<const T*>(gemm.bias);
  if (beta != 0) {
#pragma GCC ivdep
    for (std::int64_t j = 0; j < columns; ++j) {
      A value = alpha * from[j] + beta * static_cast<A>(widen(to[j]));
      if (bias != nullptr) value += widen(bias[column + j]);
      to[j] = narrow<C>(value);
    }
  } else if (bias != nullptr) {
#pragma GCC ivdep
    for (std::int64_t j = 0; j < columns; ++j) {
      to[j] = narrow<C>(alpha * from[j] + widen(bias[column + j]));
    }
  } else {
#pragma GCC ivdep
    for (std::int64_t j = 0; j < columns; ++j) to[j] = narrow<C>(alpha * from[j]);
  }
}

// Skinny GEMM for at most kSkinnyRows rows of op(a) and b transposed (decoding): bound by reading b
// once. With more rows, packing b pays.
#if defined(__AVX512F__)
constexpr std::int64_t kSkinnyRows = 16;
#else
constexpr std::int64_t kSkinnyRows = 4;
#endif
template <class T, class C>
void gemm_skinny(const Stream& stream, const Gemm& gemm);

// One tile of an f64 GEMM, bias included.
void gemm_tile_f64(const Gemm& gemm, const Area& tile);

// Grouped GEMM: independent GEMMs of the same dtypes; make(number) returns the arguments of one.
struct GemmList {
  std::int64_t count;
  bool exact;
  FunctionRef<GemmArgs(std::int64_t number)> make;
};
void gemm_group(const Stream& stream, const GemmList& list);

// GEMM with Gemm::exact.
void gemm_exact(const Stream& stream, const GemmArgs& args);

}  // namespace bev::cpu::BEV_CPU_LEVEL
