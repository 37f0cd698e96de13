// GEMM of a linear layer's forward with mma.sync, by tiles of [128, 128]: one order of sums for any
// number of rows.
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/gemm/linear_gemm.h"
#include "backend/cuda/gemm/mma_tile.cuh"
#include "backend/cuda/runtime/queue.h"
#include "base/divide.h"

namespace bev::cuda {

namespace {

using namespace mma_tile;

template <class T, class C>
struct Linear {
  const T *a, *b, *bias;
  C* c;
  int rows, columns, depth;
  std::int64_t a_stride, c_stride;
  float alpha;
};

// Grid: row tiles, column tiles.
template <class T, class C>
__global__ void __launch_bounds__(kBlockThreads, 2) linear_kernel(const Linear<T, C> args) {
  const int row0 = static_cast<int>(blockIdx.x) * kSize,
            first = static_cast<int>(blockIdx.y) * kSize;
  const Operand<T> left{args.a + row0 * args.a_stride, args.a_stride, args.rows - row0};
  const Operand<T> right{args.b + static_cast<std::int64_t>(first) * args.depth, args.depth,
                         args.columns - first};
  Sums<kM, kN> sums;
  multiply_tile<false, false>(sums, left, right, args.depth);
  for_pairs(sums, [&](int row, int column, float x, float y) {
    const float pair[2] = {x, y};
    if (row0 + row >= args.rows) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = first + column + i;
      if (n >= args.columns) continue;
      float sum = args.alpha * pair[i];
      if (args.bias != nullptr) sum += cuda_attention::widen(args.bias[n]);
      args.c[(row0 + row) * args.c_stride + n] = cuda_attention::narrow<C>(sum);
    }
  });
}

template <class T, class C>
void run(const Stream& stream, const LinearGemm& gemm) {
  const Linear<T, C> args{static_cast<const T*>(gemm.a),
                          static_cast<const T*>(gemm.b),
                          static_cast<const T*>(gemm.bias),
                          static_cast<C*>(gemm.c),
                          static_cast<int>(gemm.m),
                          static_cast<int>(gemm.n),
                          static_cast<int>(gemm.k),
                          gemm.a_stride,
                          gemm.c_stride,
                          gemm.alpha};
  auto* kernel = linear_kernel<T, C>;
  constexpr int kBytes = kStages * kStageBytes<false, false>;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "linear: shared memory");
  const dim3 blocks(static_cast<unsigned>(ceil_div(gemm.m, kSize)),
                    static_cast<unsigned>(ceil_div(gemm.n, kSize)));
  kernel<<<blocks, kBlockThreads, kBytes, queue_of(stream).stream()>>>(args);
  check_launch("linear");
}

template <class T>
void run(const Stream& stream, const LinearGemm& gemm) {
  if (gemm.out == Dtype::kF32) return run<T, float>(stream, gemm);
  run<T, T>(stream, gemm);
}

}  // namespace

void linear_mma(const Stream& stream, const LinearGemm& gemm) {
  if (gemm.in == Dtype::kBf16) return run<Bf16>(stream, gemm);
  run<F16>(stream, gemm);
}

}  // namespace bev::cuda
