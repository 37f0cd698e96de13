#include "backend/cuda/grid.cuh"
#include "backend/cuda/loss_chunk.cuh"
#include "backend/cuda/reduce.cuh"

namespace bev::cuda {

namespace {

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

// Packs of a thread that are read together.
constexpr int kInFlight = 4;

// Reads a row, keeping what fits.
template <class T, int N, int kLanes, class Power>
__device__ Running read_row(const Whole<T>& args, Pack<T, N>* kept, const Power& power) {
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

// Writes the gradient of a row over it.
template <class T, int N, int kLanes, class Power>
__device__ void write_row(const Whole<T>& args, const Pack<T, N>* kept,
                          const LogitGradient<T>& gradient, const Power& power) {
  T* row = args.chunk.row();
  const int packs = static_cast<int>(args.chunk.columns / N);
  for (int first = threadIdx.x; first < packs; first += kInFlight * kLanes) {
    Pack<T, N> values[kInFlight] = {};
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int pack = first + k * kLanes;
      if (gradient.is_zero || pack >= packs) break;
      if (pack < args.kept_packs) {
        values[k] = kept[pack];
      } else {
        values[k].load(row + std::int64_t{pack} * N);
      }
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int pack = first + k * kLanes;
      if (pack >= packs) break;
      const std::int64_t at = std::int64_t{pack} * N;
      if (!gradient.is_zero) gradient.apply(at, values[k], power);
      values[k].store(row + at);
    }
  }
}

// A block takes a row: it reads it once, keeping what fits for the gradient, which is written over
// it. The rest of a long row is read again, while it is still in the cache.
template <class T, int N, int kLanes, bool kCapped>
__global__ void __launch_bounds__(kLanes, 1024 / kLanes) whole_kernel(const Whole<T> args) {
  extern __shared__ uint4 memory[];
  __shared__ float shared[2][kLanes / kWarp];
  auto* kept = reinterpret_cast<Pack<T, N>*>(memory);
  const Chunk<T>& chunk = args.chunk;
  // Nothing but the row is read between the two passes.
  const std::int32_t target = chunk.targets[blockIdx.x];
  const float weight = args.with_gradient ? args.weights[blockIdx.x] : 0.0f;
  const double loss_factor = args.with_gradient ? *args.loss_factor : 0.0;
  const std::int64_t column = chunk.target();
  const float reached = column >= 0 ? chunk.capped(widen(chunk.row()[column])) : 0.0f;
  const auto power = [&](float x) { return chunk.template power<kCapped>(x); };
  const Running running = target < 0 ? Running{} : read_row<T, N, kLanes>(args, kept, power);
  const float most = reduce_row<Max>(running.most, shared[0]);
  // A thread that met nothing but -infinity has no share; a NaN shows in its thread's sum.
  const float scaled = running.sum * power_of_two(running.most - most);
  const float sum = reduce_row<Sum>(running.sum == 0 ? 0.0f : scaled, shared[1]);
  if (threadIdx.x == 0) {
    args.token_loss[blockIdx.x] = target < 0 ? 0.0f : logf(sum) + most / kBinary - reached;
  }
  if (!args.with_gradient) return;
  write_row<T, N, kLanes>(args, kept, LogitGradient<T>(chunk, most, sum, weight, loss_factor),
                          power);
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

}  // namespace

void whole_loss(const Stream& stream, const LossWholeArgs& view) {
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

}  // namespace bev::cuda
