// Fused cross entropy, forward and gradient, for logits of the whole vocabulary: persistent blocks
// with an online softmax, keeping rows in shared memory.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/loss/loss_chunk.cuh"

namespace bev::cuda {

namespace {

// Online softmax state: the maximum of z so far, and the sum of 2^(z - most).
struct Running {
  float most = Max::kNothing, sum = 0;

  // power(x) converts an element to z, and is monotonic.
  template <class T, int N, class Power>
  __device__ void add(const Pack<T, N>& values, const Power& power) {
    const float largest = power(largest_of(values));
    if (largest > most) {
      sum *= power_of_two(most - largest);
      most = largest;
    }
    const float base = isinf(most) ? 0.0f : most;  // if all are -infinity, the sum stays 0
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
  std::int64_t rows;
  int kept_packs;  // of a row, kept in shared memory between the two passes
  bool with_gradient;
};

// Starts a copy to shared memory (cp.async if the size allows).
template <class T, int N>
__device__ void start_copy(const T* from, Pack<T, N>* to) {
  if constexpr (sizeof(Pack<T, N>) == 16) {
    const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  } else {
    to->load(from);
  }
}
// Waits for the copies of this thread.
__device__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Packs of a thread that are loaded together.
constexpr int kInFlight = 4;

// A row of a block: thread x has packs x, x + kLanes, ... The first kept_packs are in shared
// memory; threads only access their own packs.
template <class T, int N, int kLanes>
struct RowInBlock {
  const Whole<T>& args;
  Pack<T, N>* kept;
  T* row;
  int packs;

  __device__ RowInBlock(const Whole<T>& whole, Pack<T, N>* memory, std::int64_t index)
      : args(whole),
        kept(memory),
        row(whole.chunk.row(index)),
        packs(static_cast<int>(whole.chunk.columns / N)) {}

  __device__ void start_copy_of(int pack) const {
    if (pack < args.kept_packs) start_copy<T, N>(row + std::int64_t{pack} * N, kept + pack);
  }
  __device__ void start_copies() const {
    for (int pack = threadIdx.x; pack < args.kept_packs; pack += kLanes) start_copy_of(pack);
  }
  // Calls body(pack index, values) for the packs of this thread.
  template <class Body>
  __device__ void each(const Body& body) const {
    for (int first = threadIdx.x; first < packs; first += kInFlight * kLanes) {
      Pack<T, N> values[kInFlight];
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const int pack = first + k * kLanes;
        if (pack >= packs) break;
        if (pack < args.kept_packs) {
          values[k] = kept[pack];
        } else {
          values[k].load(row + std::int64_t{pack} * N);
        }
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const int pack = first + k * kLanes;
        if (pack < packs) body(pack, values[k]);
      }
    }
  }
};

// A block loops over rows. It reads each once, keeping as much as fits in shared memory for the
// gradient, which overwrites the logits; as a part of the gradient is stored, the same part of the
// next row is prefetched. The rest of a long row is read again from the L2 cache.
template <class T, int N, int kLanes, bool kCapped>
__global__ void __launch_bounds__(kLanes, 1024 / kLanes) whole_kernel(const Whole<T> args) {
  extern __shared__ uint4 memory[];
  __shared__ float shared[2][kLanes / kWarp];
  using Row = RowInBlock<T, N, kLanes>;
  auto* kept = reinterpret_cast<Pack<T, N>*>(memory);
  const Chunk<T>& chunk = args.chunk;
  const auto power = [&](float x) { return chunk.template power<kCapped>(x); };
  const double loss_factor = args.with_gradient ? value_of(args.loss_factor) : 0.0;
  Row(args, kept, blockIdx.x).start_copies();
  for (std::int64_t index = blockIdx.x; index < args.rows; index += gridDim.x) {
    const Row row(args, kept, index);
    RowLoss loss{.target = chunk.targets[index],
                 .weight = args.with_gradient ? args.weights[index] : 0.0f};
    const std::int64_t column = chunk.column_of(loss.target);
    const float reached = column >= 0 ? chunk.capped(widen(row.row[column])) : 0.0f;
    Running running;
    wait_for_copies();
    row.each([&](int, const Pack<T, N>& values) { running.add(values, power); });
    loss.most = reduce_row<Max>(running.most, shared[0]);
    // A thread that saw only -infinity contributes 0; a NaN shows in the sum of its thread.
    const float scaled = running.sum * power_of_two(running.most - loss.most);
    loss.sum = reduce_row<Sum>(running.sum == 0 ? 0.0f : scaled, shared[1]);
    if (threadIdx.x == 0) {
      const float all = logf(loss.sum) + loss.most / kBinary;
      args.token_loss[index] = loss.target < 0 ? 0.0f : all - reached;
    }
    if (!args.with_gradient) continue;
    const LogitGradient<T> gradient(chunk, loss, loss_factor);
    const std::int64_t next = index + gridDim.x;
    const Row next_row(args, kept, next < args.rows ? next : index);
    row.each([&](int pack, Pack<T, N>& values) {
      if (gradient.is_zero) {
        values = {};
      } else {
        gradient.apply(std::int64_t{pack} * N, values, power);
      }
      values.store(row.row + std::int64_t{pack} * N);
      if (next < args.rows) next_row.start_copy_of(pack);
    });
  }
}

template <class T, int N, int kLanes>
void launch_whole(CudaQueue& queue, Whole<T> args) {
  const auto room = static_cast<std::int64_t>(queue.shared_memory());
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
  const std::int64_t resident = std::int64_t{queue.multiprocessors()} * (1024 / kLanes);
  kernel<<<static_cast<unsigned>(std::min(args.rows, resident)), kLanes,
           static_cast<std::size_t>(bytes), queue.stream()>>>(args);
  check_launch("loss");
}

}  // namespace

void whole_loss(const Stream& stream, const LossWholeArgs& view) {
  check_chunk(view.chunk, view.token_loss);
  mark_padding(stream, view.chunk);
  visit_chunk(view.chunk, [&](auto chunk, auto count, unsigned blocks) {
    using T = std::remove_pointer_t<decltype(chunk.logits)>;
    constexpr int kCount = decltype(count)::value;
    const Whole<T> args{.chunk = chunk,
                        .weights = address<float>(view.weights),
                        .loss_factor = view.loss_factor,
                        .token_loss = address<float>(view.token_loss),
                        .rows = blocks,
                        .kept_packs = 0,
                        .with_gradient = view.with_gradient};
    // Two blocks per SM, if their rows fit, hide each other's latency.
    constexpr std::int64_t kHalfRoom = 100 << 10;
    if (chunk.columns * static_cast<std::int64_t>(sizeof(T)) <= kHalfRoom) {
      launch_whole<T, kCount, 512>(queue_of(stream), args);
    } else {
      launch_whole<T, kCount, 1024>(queue_of(stream), args);
    }
  });
}

}  // namespace bev::cuda
