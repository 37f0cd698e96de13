// Attention sinks: a logit per head in the softmax denominator, and the terms of its gradient.
#include "backend/cuda/device/amax.cuh"
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/tables.h"
#include "kernels/attention.h"

namespace bev {

namespace cuda {
namespace {

// Sink logits of the heads in the dtype of weights; null: all 0.
struct Sinks {
  const void* data;
  Dtype dtype;

  __device__ float operator[](std::int64_t head) const {
    if (data == nullptr) return 0;
    if (dtype == Dtype::kBf16) return widen(static_cast<const Bfloat*>(data)[head]);
    if (dtype == Dtype::kF16) return widen(static_cast<const Half*>(data)[head]);
    return static_cast<const float*>(data)[head];
  }
};

struct Pairs {
  std::int64_t count, heads, size;  // (row, head) pairs; elements per head
};

// One warp per pair.
__device__ std::int64_t own_pair() { return own_pack() / kWarp; }

// Memory bound: reads and writes out once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_sinks_kernel(Sinks sinks, Pairs pairs, T* out, float* lse) {
  const std::int64_t pair = own_pair();
  if (pair >= pairs.count) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float before = lse[pair], sink = sinks[pair % pairs.heads], most = fmaxf(before, sink);
  const float with = most + logf(expf(before - most) + expf(sink - most));
  const float factor = expf(before - with);
  T* at = out + pair * pairs.size;
  for (std::int64_t d = lane; d < pairs.size; d += kWarp) {
    at[d] = narrow<T>(widen(at[d]) * factor);
  }
  __syncwarp();  // all lanes have read lse
  if (lane == 0) lse[pair] = with;
}

// Memory bound: reads out and dout once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sink_terms_kernel(Sinks sinks, Pairs pairs, const T* out, const T* dout, const float* lse,
                      float* terms, std::int64_t stride) {
  const std::int64_t pair = own_pair();
  if (pair >= pairs.count) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const T *a = out + pair * pairs.size, *b = dout + pair * pairs.size;
  float delta = 0;
  for (std::int64_t d = lane; d < pairs.size; d += kWarp) {
    delta = fmaf(widen(a[d]), widen(b[d]), delta);
  }
  delta = reduce_warp<Sum>(delta);
  if (lane != 0) return;
  const std::int64_t row = pair / pairs.heads, head = pair % pairs.heads;
  terms[row * stride + head] = -expf(sinks[head] - lse[pair]) * delta;
}

// Memory bound: reads lse once. max_logits is not below 0.
__global__ void __launch_bounds__(kThreads)
    bound_logits_kernel(const float* lse, std::int64_t rows, std::int64_t heads,
                        float* max_logits) {
  const std::int64_t head = own_pack();
  if (head >= heads) return;
  float most = 0;
  for (std::int64_t row = first_row(); row < rows; row += row_step()) {
    most = fmaxf(most, lse[row * heads + head]);
  }
  raise_amax(max_logits + head, most);
}

Pairs pairs_of(const View& out, const View& lse) {
  return {lse.numel(), lse.shape[1], out.shape[1] / lse.shape[1]};
}
unsigned blocks_of(const Pairs& pairs) {
  return static_cast<unsigned>(ceil_div(pairs.count * kWarp, kThreads));
}

}  // namespace
}  // namespace cuda

void cuda_add_sinks(const Stream& stream, const AttentionSinkArgs& args) {
  if (args.lse.numel() == 0) return;
  const cuda::Pairs pairs = cuda::pairs_of(args.out, args.lse);
  cuda::visit_value(args.out.dtype, [&](auto type) {
    using T = decltype(type);
    cuda::add_sinks_kernel<T>
        <<<cuda::blocks_of(pairs), cuda::kThreads, 0, queue_of(stream).stream()>>>(
            {args.sinks.data, args.sinks.dtype}, pairs, cuda::address<T>(args.out),
            cuda::address<float>(args.lse));
    check_launch("attention: add sinks");
  });
}

void cuda_sink_terms(const Stream& stream, const SinkTermsArgs& args) {
  if (args.lse.numel() == 0) return;
  const cuda::Pairs pairs = cuda::pairs_of(args.out, args.lse);
  cuda::visit_value(args.out.dtype, [&](auto type) {
    using T = decltype(type);
    cuda::sink_terms_kernel<T>
        <<<cuda::blocks_of(pairs), cuda::kThreads, 0, queue_of(stream).stream()>>>(
            {args.sinks.data, args.sinks.dtype}, pairs, cuda::address<T>(args.out),
            cuda::address<T>(args.dout), cuda::address<float>(args.lse),
            cuda::address<float>(args.terms) + args.first, args.terms.shape[1]);
    check_launch("attention: gradient of sinks");
  });
}

void cuda_bound_logits(const Stream& stream, const View& lse, const View& max_logits) {
  constexpr std::int64_t kRowsOfThread = 16;
  const std::int64_t rows = lse.shape[0], heads = lse.shape[1];
  if (lse.numel() == 0) return;
  cuda::RowGrid grid = cuda::row_grid(rows, heads);
  grid.blocks.y = static_cast<unsigned>(ceil_div(grid.blocks.y, kRowsOfThread));
  cuda::bound_logits_kernel<<<grid.blocks, grid.threads, 0, queue_of(stream).stream()>>>(
      cuda::address<float>(lse), rows, heads, cuda::address<float>(max_logits));
  check_launch("attention: largest logits");
}

}  // namespace bev
