// The GEMM of a linear layer's forward, c = alpha a b^T (+ bias), and the kernels for it whose sums
// have one order for any number of rows. Exact tables choose among them by what the weight and the
// layout are; then every row of c has the same bits whatever other rows are computed with it.
#pragma once

#include <cstdint>

#include "tensor/view.h"

namespace bev {
class CudaQueue;
struct GemmArgs;
struct Stream;
}  // namespace bev

namespace bev::cuda {

// a [m, k] with rows a_stride apart, b [n, k], c [m, n] with rows c_stride apart, bias [n] or null.
struct LinearGemm {
  const void *a, *b, *bias;
  void* c;
  Dtype in, out;  // out: in, or f32
  std::int64_t m, n, k, a_stride, c_stride;
  float alpha;

  // True for 16-bit operands with 16-byte aligned rows, as tensor cores and TMA require.
  bool has_whole_words() const;
};

// If args have that form, with at least one row, column and term.
bool is_linear(const GemmArgs& args);
LinearGemm linear_gemm(const GemmArgs& args);

// gemm_exact.cpp: the kernel that defines the bits for this weight and layout.
void run_reference(const Stream& stream, const LinearGemm& gemm);

// grouped_wgmma_bf16.cu, grouped_wgmma_f16.cu: Hopper, in 128 x 256 tiles; requires has_wgmma().
bool linear_wgmma_supports(const CudaQueue& queue, const LinearGemm& gemm);
void linear_wgmma_bf16(const Stream& stream, const LinearGemm& gemm);
void linear_wgmma_f16(const Stream& stream, const LinearGemm& gemm);
// linear_mma.cu: mma.sync; requires whole words.
void linear_mma(const Stream& stream, const LinearGemm& gemm);
// gemm_plain.cu: CUDA cores, any layout. Also c = alpha a b + beta c, with b not transposed.
void gemm_plain(const Stream& stream, const GemmArgs& args);
// gemm_ring.cu: few rows; requires whole words. If `exact`, its sums have the order of linear_mma.
bool gemm_ring_supports(const LinearGemm& gemm);
void gemm_ring(const Stream& stream, const LinearGemm& gemm, bool exact);

}  // namespace bev::cuda
