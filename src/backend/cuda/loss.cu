#include "backend/cuda/grid.cuh"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/tables.h"
#include "backend/cuda/values.cuh"
#include "kernels/loss.h"

namespace bev {

namespace cuda {
namespace {

// Threads of the block that takes a row.
constexpr int kRowThreads = 512;

constexpr float kBinary = 1.44269504088896341f;  // 1 / log(2): z kBinary is z as a power of two

// exp2 as the hardware has it.
__device__ float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// Logits of -infinity mark padding of the vocabulary; they stay -infinity under a softcap and get
// no gradient.
template <class T>
struct Chunk {
  T* logits;
  const std::int32_t* targets;
  std::int64_t columns, first_row;
  float scale, inner, cap;  // cap 0: none, then logits are multiplied by scale

  __device__ T* row() const { return logits + blockIdx.x * columns; }
  __device__ float capped(float x) const {
    if (cap == 0) return scale * x;
    return isinf(x) && x < 0 ? x : cap * tanhf(inner * x);
  }
  // The same as a power of two.
  template <bool kCapped>
  __device__ float power(float x) const {
    return kCapped ? capped(x) * kBinary : x * (scale * kBinary);
  }
  // The target's column in this part of the vocabulary, or -1.
  __device__ std::int64_t target() const {
    const std::int64_t target = targets[blockIdx.x], local = target - first_row;
    return target >= 0 && local >= 0 && local < columns ? local : -1;
  }
};

// Logits read once, and written where they are scaled or capped.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads) row_max_kernel(Chunk<T> chunk, float* row_max) {
  __shared__ float shared[kRowThreads / kWarp];
  T* z = chunk.row();
  float most = Max::kNothing;
  if (chunk.cap == 0 && chunk.scale == 1) {
#pragma unroll 4
    for (std::int64_t at = threadIdx.x * N; at < chunk.columns; at += kRowThreads * N) {
      Pack<T, N> values;
      values.load(z + at);
#pragma unroll
      for (int i = 0; i < N; ++i) most = Max::join(most, values[i]);
    }
  } else {
    for (std::int64_t at = threadIdx.x * N; at < chunk.columns; at += kRowThreads * N) {
      Pack<T, N> values;
      values.load(z + at);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        values.set(i, chunk.capped(values[i]));
        most = Max::join(most, values[i]);
      }
      values.store(z + at);
    }
  }
  most = reduce_row<Max>(most, shared);
  if (threadIdx.x == 0) row_max[blockIdx.x] = most;
}

// Logits read once.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    row_sum_kernel(Chunk<T> chunk, const float* row_max, float* stats) {
  __shared__ float shared[kRowThreads / kWarp];
  const T* z = chunk.row();
  const float most = row_max[blockIdx.x];
  float sum = 0;
#pragma unroll 4
  for (std::int64_t at = threadIdx.x * N; at < chunk.columns; at += kRowThreads * N) {
    Pack<T, N> values;
    values.load(z + at);
#pragma unroll
    for (int i = 0; i < N; ++i) sum += __expf(values[i] - most);
  }
  sum = reduce_row<Sum>(sum, shared);
  if (threadIdx.x != 0) return;
  const std::int64_t target = chunk.target();
  stats[blockIdx.x] = sum;
  stats[gridDim.x + blockIdx.x] = target >= 0 ? widen(z[target]) : 0.0f;
}

__global__ void __launch_bounds__(kThreads)
    token_loss_kernel(const std::int32_t* targets, const float* row_max, const float* stats,
                      std::int64_t rows, float* token_loss) {
  const std::int64_t row = own_pack();
  if (row >= rows) return;
  token_loss[row] = targets[row] < 0 ? 0.0f : logf(stats[row]) + row_max[row] - stats[rows + row];
}

// p = exp(z - most) / sum; the gradient is factor * (p - [target]), under a softcap times its
// slope 1 - (z / cap)^2. It works on z as powers of two.
template <class T>
struct LogitGradient {
  float shift, factor, inverse;
  std::int64_t target;
  bool is_zero;  // a row that is ignored or weighs nothing

  __device__ LogitGradient(const Chunk<T>& chunk, float most, float sum, float weight,
                           double loss_factor)
      : shift(most + log2f(sum)),
        inverse(chunk.cap > 0 ? 1 / (chunk.cap * kBinary) : 0.0f),
        target(chunk.target()) {
    const double product =
        loss_factor * static_cast<double>(weight) * static_cast<double>(chunk.scale);
    factor = static_cast<float>(product);
    is_zero = chunk.targets[blockIdx.x] < 0 || product == 0;
  }
  // Turns a pack into its gradient: `at` is its first column, power(x) an element's z.
  template <int N, class Power>
  __device__ void apply(std::int64_t at, Pack<T, N>& values, const Power& power) const {
    float grad[N];
#pragma unroll
    for (int i = 0; i < N; ++i) grad[i] = power_of_two(power(values[i]) - shift) * factor;
    if (target >= at && target < at + N) {
#pragma unroll
      for (int i = 0; i < N; ++i) grad[i] -= at + i == target ? factor : 0.0f;
    }
    if (inverse > 0) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float z = power(values[i]), ratio = z * inverse;
        grad[i] = isinf(z) ? 0.0f : grad[i] * (1 - ratio * ratio);
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) values.set(i, grad[i]);
  }
};

// Logits, which are z here, read and written once.
template <class T, int N>
__global__ void __launch_bounds__(kRowThreads)
    gradient_kernel(Chunk<T> chunk, const float* row_max, const float* stats, const float* weights,
                    const double* loss_factor) {
  T* row = chunk.row();
  const LogitGradient<T> gradient(chunk, row_max[blockIdx.x] * kBinary, stats[blockIdx.x],
                                  weights[blockIdx.x], *loss_factor);
  for (std::int64_t at = threadIdx.x * N; at < chunk.columns; at += kRowThreads * N) {
    Pack<T, N> values{};
    if (!gradient.is_zero) {
      values.load(row + at);
      gradient.apply(at, values, [](float z) { return z * kBinary; });
    }
    values.store(row + at);
  }
}

// The largest z met so far, and the sum of 2^(z - most) over what was met.
struct Running {
  float most = Max::kNothing, sum = 0;

  // power(x) is an element's z, and grows with x.
  template <class T, int N, class Power>
  __device__ void add(const Pack<T, N>& values, const Power& power) {
    const float largest = power(largest_of(values));
    if (largest > most) {
      sum *= power_of_two(most - largest);
      most = largest;
    }
    const float base = isinf(most) ? 0.0f : most;  // where all was -infinity the sum stays 0
    float part = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) part += power_of_two(power(values[i]) - base);
    sum += part;
  }
};

template <class T>
struct Whole {
  Chunk<T> chunk;
  const float* weights;
  const double* loss_factor;
  float* token_loss;
  int kept_packs;  // of a row, in shared memory between the two passes
  bool with_gradient;
};

// Reads a row, keeping what fits.
template <class T, int N, int kLanes, class Power>
__device__ Running read_row(const Whole<T>& args, Pack<T, N>* kept, const Power& power) {
  constexpr int kInFlight = 4;
  const T* row = args.chunk.row();
  const int packs = static_cast<int>(args.chunk.columns / N);
  Running running;
  for (int first = threadIdx.x; first < packs; first += kInFlight * kLanes) {
    Pack<T, N> values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int pack = first + k * kLanes;
      if (pack < packs) values[k].load(row + std::int64_t{pack} * N);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int pack = first + k * kLanes;
      if (pack >= packs) break;
      if (pack < args.kept_packs) kept[pack] = values[k];
      running.add(values[k], power);
    }
  }
  return running;
}

// A block takes a row: it reads it once, keeping what fits for the gradient, which is written over
// it. The rest of a long row is read again, while it is still in the cache.
template <class T, int N, int kLanes, bool kCapped>
__global__ void __launch_bounds__(kLanes, 1024 / kLanes) whole_kernel(const Whole<T> args) {
  extern __shared__ uint4 memory[];
  __shared__ float shared[2][kLanes / kWarp];
  auto* kept = reinterpret_cast<Pack<T, N>*>(memory);
  const Chunk<T>& chunk = args.chunk;
  T* row = chunk.row();
  const bool ignored = chunk.targets[blockIdx.x] < 0;
  const auto power = [&](float x) { return chunk.template power<kCapped>(x); };
  const Running running = ignored ? Running{} : read_row<T, N, kLanes>(args, kept, power);
  const float most = reduce_row<Max>(running.most, shared[0]);
  // A thread that met nothing but -infinity has no share; a NaN shows in its thread's sum.
  const float scaled = running.sum * power_of_two(running.most - most);
  const float sum = reduce_row<Sum>(running.sum == 0 ? 0.0f : scaled, shared[1]);
  if (threadIdx.x == 0) {
    const std::int64_t target = chunk.target();
    const float reached = target >= 0 ? chunk.capped(widen(row[target])) : 0.0f;
    args.token_loss[blockIdx.x] = ignored ? 0.0f : logf(sum) + most / kBinary - reached;
  }
  if (!args.with_gradient) return;
  __syncthreads();  // the target's logit was read
  const LogitGradient<T> gradient(chunk, most, sum, args.weights[blockIdx.x], *args.loss_factor);
  const int packs = static_cast<int>(chunk.columns / N);
  for (int pack = threadIdx.x; pack < packs; pack += kLanes) {
    const std::int64_t at = std::int64_t{pack} * N;
    Pack<T, N> values{};
    if (!gradient.is_zero) {
      if (pack < args.kept_packs) {
        values = kept[pack];
      } else {
        values.load(row + at);
      }
      gradient.apply(at, values, power);
    }
    values.store(row + at);
  }
}

// One block: few numbers, and their order is fixed.
__global__ void __launch_bounds__(kRowThreads)
    total_kernel(const float* token_loss, const float* weights, std::int64_t rows, double* total) {
  __shared__ double shared[kRowThreads / kWarp];
  double sum = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kRowThreads) {
    sum += static_cast<double>(weights[row]) * static_cast<double>(token_loss[row]);
  }
  sum = reduce_row<Sum>(sum, shared);
  if (threadIdx.x == 0) *total += sum;
}

void check_chunk(const LossChunk& chunk, const View& row_max) {
  BEV_CHECK(chunk.logits.shape.ndim() == 2 && row_max.numel() == chunk.logits.shape[0],
            "loss: logits ", chunk.logits.shape, " with ", row_max.numel(), " rows of statistics");
}

// Calls body(chunk, integral constant of elements per access, blocks) for rows to compute.
template <class Body>
void visit_chunk(const LossChunk& view, const Body& body) {
  BEV_CHECK(view.logit_scale > 0, "loss: the factor of logits is ", view.logit_scale);
  if (view.logits.shape[0] == 0) return;
  visit_value(view.logits.dtype, [&](auto type) {
    using T = decltype(type);
    const Chunk<T> chunk{
        .logits = address<T>(view.logits),
        .targets = view.targets,
        .columns = view.logits.shape[1],
        .first_row = view.first_row,
        .scale = static_cast<float>(view.logit_scale),
        .inner = static_cast<float>(view.softcap > 0 ? view.logit_scale / view.softcap : 0),
        .cap = static_cast<float>(view.softcap)};
    const auto blocks = static_cast<unsigned>(view.logits.shape[0]);
    by_pack<T>(aligned(chunk.logits), chunk.columns,
               [&](auto count) { body(chunk, count, blocks); });
  });
}

void row_max(const Stream& stream, const LossMaxArgs& args) {
  check_chunk(args.chunk, args.row_max);
  visit_chunk(args.chunk, [&](auto chunk, auto count, unsigned blocks) {
    row_max_kernel<std::remove_pointer_t<decltype(chunk.logits)>, decltype(count)::value>
        <<<blocks, kRowThreads, 0, queue_of(stream).stream()>>>(chunk,
                                                                address<float>(args.row_max));
    check_launch("loss: maximum");
  });
}

void row_sum(const Stream& stream, const LossSumArgs& args) {
  check_chunk(args.chunk, args.row_max);
  BEV_CHECK(args.stats.numel() == 2 * args.row_max.numel(), "loss: stats ", args.stats.shape);
  visit_chunk(args.chunk, [&](auto chunk, auto count, unsigned blocks) {
    row_sum_kernel<std::remove_pointer_t<decltype(chunk.logits)>, decltype(count)::value>
        <<<blocks, kRowThreads, 0, queue_of(stream).stream()>>>(chunk, address<float>(args.row_max),
                                                                address<float>(args.stats));
    check_launch("loss: sum");
  });
}

void gradient(const Stream& stream, const LossGradArgs& args) {
  check_chunk(args.chunk, args.row_max);
  BEV_CHECK(args.stats.numel() == 2 * args.row_max.numel(), "loss: stats ", args.stats.shape);
  const cudaStream_t queue = queue_of(stream).stream();
  const float *most = address<float>(args.row_max), *stats = address<float>(args.stats);
  const std::int64_t rows = args.row_max.numel();
  if (rows == 0) return;
  token_loss_kernel<<<static_cast<unsigned>(ceil_div(rows, kThreads)), kThreads, 0, queue>>>(
      args.chunk.targets, most, stats, rows, address<float>(args.token_loss));
  check_launch("token loss");
  if (!args.with_gradient) return;
  visit_chunk(args.chunk, [&](auto chunk, auto count, unsigned blocks) {
    gradient_kernel<std::remove_pointer_t<decltype(chunk.logits)>, decltype(count)::value>
        <<<blocks, kRowThreads, 0, queue>>>(chunk, most, stats, args.weights, args.loss_factor);
    check_launch("loss: gradient");
  });
}

template <class T, int N, int kLanes>
void launch_whole(CudaQueue& queue, Whole<T> args, unsigned blocks) {
  int device = 0, room = 0;
  check_cuda(cudaGetDevice(&device), "ask for the device");
  check_cuda(cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
             "ask for shared memory");
  constexpr int kPackBytes = N * static_cast<int>(sizeof(T)), kOwnBytes = 1024;
  const std::int64_t packs = args.chunk.columns / N;
  const std::int64_t most = args.with_gradient ? (room - kOwnBytes) / kPackBytes : 0;
  args.kept_packs = static_cast<int>(std::min(packs, most));
  const int bytes = args.kept_packs * kPackBytes;
  const auto kernel =
      args.chunk.cap > 0 ? whole_kernel<T, N, kLanes, true> : whole_kernel<T, N, kLanes, false>;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "loss: shared memory");
  kernel<<<blocks, kLanes, static_cast<std::size_t>(bytes), queue.stream()>>>(args);
  check_launch("loss");
}

void whole(const Stream& stream, const LossWholeArgs& view) {
  check_chunk(view.chunk, view.token_loss);
  visit_chunk(view.chunk, [&](auto chunk, auto count, unsigned blocks) {
    using T = std::remove_pointer_t<decltype(chunk.logits)>;
    constexpr int kCount = decltype(count)::value;
    const Whole<T> args{.chunk = chunk,
                        .weights = view.weights,
                        .loss_factor = view.loss_factor,
                        .token_loss = address<float>(view.token_loss),
                        .kept_packs = 0,
                        .with_gradient = view.with_gradient};
    // Two blocks on a multiprocessor, where their rows fit, fill each other's pauses.
    constexpr std::int64_t kHalfRoom = 100 << 10;
    if (chunk.columns * static_cast<std::int64_t>(sizeof(T)) <= kHalfRoom) {
      launch_whole<T, kCount, 512>(queue_of(stream), args, blocks);
    } else {
      launch_whole<T, kCount, 1024>(queue_of(stream), args, blocks);
    }
  });
}

void total(const Stream& stream, const LossTotalArgs& args) {
  total_kernel<<<1, kRowThreads, 0, queue_of(stream).stream()>>>(
      address<float>(args.token_loss), args.weights, args.token_loss.numel(), args.total);
  check_launch("loss: total");
}

}  // namespace
}  // namespace cuda

LossKernels cuda_loss_kernels() {
  return {.row_max = cuda::row_max,
          .row_sum = cuda::row_sum,
          .gradient = cuda::gradient,
          .whole = cuda::whole,
          .total = cuda::total,
          .logits = {.chunk_bytes = std::int64_t{4} << 30, .narrow = true}};
}

}  // namespace bev
