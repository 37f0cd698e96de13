// Router input jitter, and Sinkhorn balancing.
#include "backend/cuda/device/random.cuh"
#include "backend/cuda/moe/moe_launchers.h"
#include "backend/cuda/moe/moe_router.cuh"
#include "base/divide.h"
#include "tensor/random_rows.h"

namespace bev::cuda {

namespace {

// A thread draws one Philox block, for four columns of a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    jitter_kernel(const T* x, T* y, std::int64_t rows, std::int64_t columns, float epsilon,
                  RandomRows random) {
  const std::int64_t blocks = ceil_div(columns, 4), block = own_pack();
  if (block >= rows * blocks) return;
  const std::int64_t row = block / blocks, first = block % blocks * 4;
  const uint4 words = philox(
      {static_cast<std::uint32_t>(first / 4), static_cast<std::uint32_t>(random.position[row]),
       static_cast<std::uint32_t>(random.sample[row]), random.stream},
      *random.random_key);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i >= columns) return;
    const std::int64_t at = row * columns + first + i;
    const float factor = 1 + epsilon * (2 * uniform_of(word_of(words, i)) - 1);
    y[at] = narrow<T>(widen(x[at]) * factor);
  }
}

constexpr int kSinkhornWarps = 32;
constexpr std::size_t kSinkhornBytes = kSharedBytes - 16;  // minus static shared memory
constexpr float kTolerance = 1e-4f, kSmall = 1e-8f;

// Single block: rounds depend on each other, and their number is only known at the end. Shared
// memory holds the column factors, then the column sums of each warp.
__global__ void __launch_bounds__(kSinkhornWarps* kWarp)
    sinkhorn_kernel(const float* logits, std::int64_t tokens, int experts, float* bias) {
  extern __shared__ float shared[];
  __shared__ float change;
  const int warps = static_cast<int>(blockDim.x / kWarp),
            warp = static_cast<int>(threadIdx.x / kWarp);
  float *factors = shared, *sums = shared + (1 + warp) * experts;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    factors[e] = 1;
  }
  __syncthreads();
  int round = 0;
  do {
    for (int e = lane_of(); e < experts; e += kWarp) sums[e] = 0;
    for (std::int64_t t = warp; t < tokens; t += warps) {
      const float* row = logits + t * experts;
      float sum = 0;
      for (int e = lane_of(); e < experts; e += kWarp) sum += factors[e] * expf(row[e]);
      sum = reduce_warp<Sum>(sum);
      const float own = 1 / (static_cast<float>(tokens) * (sum + kSmall));
      for (int e = lane_of(); e < experts; e += kWarp) sums[e] += own * expf(row[e]);
    }
    __syncthreads();
    // The first warp adds the sums in warp order; each lane has its own columns.
    if (warp == 0) {
      float moved = 0;
      for (int e = lane_of(); e < experts; e += kWarp) {
        float sum = 0;
        for (int w = 0; w < warps; ++w) sum += shared[(1 + w) * experts + e];
        const float next = 1 / (static_cast<float>(experts) * (sum + kSmall));
        moved += fabsf(next - factors[e]);
        factors[e] = next;
      }
      moved = reduce_warp<Sum>(moved);
      if (lane_of() == 0) change = moved / static_cast<float>(experts);
    }
    __syncthreads();
    // A NaN change ends the loop too.
  } while (change > kTolerance && ++round < kSinkhornRounds);
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += static_cast<int>(blockDim.x)) {
    bias[e] = logf(factors[e]);
  }
}

}  // namespace

void jitter(const Stream& stream, const JitterArgs& args) {
  BEV_CHECK(args.x.shape == args.y.shape && args.x.shape.ndim() == 2, ErrorKind::kInternal,
            "jitter: ", args.x.shape, " to ", args.y.shape);
  const std::int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  if (rows * columns == 0) return;
  const std::int64_t blocks = rows * ceil_div(columns, 4);
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    jitter_kernel<T><<<static_cast<unsigned>(ceil_div(blocks, kThreads)), kThreads, 0,
                       queue_of(stream).stream()>>>(address<T>(args.x), address<T>(args.y), rows,
                                                    columns, static_cast<float>(args.epsilon),
                                                    args.random);
  });
  check_launch("jitter");
}

void sinkhorn(const Stream& stream, const SinkhornArgs& args) {
  const std::int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  const std::size_t row = static_cast<std::size_t>(experts) * sizeof(float);
  BEV_CHECK(2 * row <= kSinkhornBytes, ErrorKind::kDevice, "CUDA: sinkhorn: ", experts,
            " experts are too many; at most ", kSinkhornBytes / sizeof(float) / 2);
  const auto warps =
      static_cast<unsigned>(std::min<std::size_t>(kSinkhornWarps, kSinkhornBytes / row - 1));
  CudaQueue& queue = queue_of(stream);
  if (tokens == 0) {
    check_cuda(cudaMemsetAsync(args.bias.data, 0, row, queue.stream()), "sinkhorn");
    return;
  }
  sinkhorn_kernel<<<1, warps * kWarp, (1 + warps) * row, queue.stream()>>>(
      address<float>(args.logits), tokens, static_cast<int>(experts), address<float>(args.bias));
  check_launch("sinkhorn");
}

}  // namespace bev::cuda
