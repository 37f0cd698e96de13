// Dequantises NF4 weights: eight elements for each thread, four bytes of codes.
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/quantize/nf4.cuh"
#include "backend/cuda/quantize/nf4_launchers.h"
#include "backend/cuda/runtime/queue.h"
#include "base/divide.h"

namespace bev::cuda {

namespace {

constexpr int kNf4Threads = 256, kElements = 8;

// Rounds to the dtype of the tensor that was quantised, then to T.
template <class From, class T>
__device__ T value_of(float value) {
  return narrow<T>(widen(narrow<From>(value)));
}

template <class From, class T>
__global__ void __launch_bounds__(kNf4Threads)
    dequantize_nf4_kernel(const __grid_constant__ Nf4Weight from, T* to) {
  __shared__ float table[16];
  load_nf4_table(table, from);
  __syncthreads();
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * kNf4Threads + threadIdx.x) * kElements;
  if (first >= from.elements) return;
  // In models of real sizes the elements are in one run.
  const bool one_run = from.run % kElements == 0;
  float absmax = one_run ? nf4_absmax(from, first) : 0;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const std::int64_t at = first + i;
    if (at >= from.elements) return;
    if (!one_run) absmax = nf4_absmax(from, at);
    const unsigned pair = from.codes[at / 2];
    to[at] = value_of<From, T>(table[i % 2 == 0 ? pair >> 4 : pair & 15] * absmax);
  }
}

template <class From, class T>
void run(CudaQueue& queue, const Nf4View& from, const View& to) {
  const std::int64_t threads = ceil_div<std::int64_t>(from.layout.elements, kElements);
  auto* kernel = dequantize_nf4_kernel<From, T>;
  kernel<<<static_cast<unsigned>(ceil_div<std::int64_t>(threads, kNf4Threads)), kNf4Threads, 0,
           queue.stream()>>>(nf4_weight(from), static_cast<T*>(to.data));
  check_launch("dequantize_nf4");
}

template <class T>
void run(CudaQueue& queue, const Nf4View& from, const View& to) {
  if (from.dtype == Dtype::kBf16) return run<Bfloat, T>(queue, from, to);
  if (from.dtype == Dtype::kF16) return run<Half, T>(queue, from, to);
  run<float, T>(queue, from, to);
}

}  // namespace

void dequantize_nf4(const Stream& stream, const Nf4View& from, const View& to) {
  if (from.layout.elements == 0) return;
  CudaQueue& queue = queue_of(stream);
  if (to.dtype == Dtype::kBf16) return run<Bfloat>(queue, from, to);
  if (to.dtype == Dtype::kF16) return run<Half>(queue, from, to);
  run<float>(queue, from, to);
}

}  // namespace bev::cuda
