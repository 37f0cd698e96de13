// Embedding lookup, and its gradient as a sorted segmented sum without atomics (deterministic).
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/moe/sort_positions.h"
#include "backend/cuda/tables.h"
#include "kernels/embedding.h"

namespace bev {

namespace cuda {
namespace {

template <class T>
struct Forward {
  const std::int32_t* index;
  const T* weight;
  T* out;
  std::int64_t tokens, packs, first_row, rows;
  float scale;
  bool accumulate;
};

// Memory bound: reads a row of the table, writes a row of out (and reads it when accumulating).
template <class T, int N>
__global__ void __launch_bounds__(kThreads) forward_kernel(Forward<T> args) {
  const std::int64_t pack = own_pack();
  if (pack >= args.packs) return;
  for (std::int64_t t = first_row(); t < args.tokens; t += row_step()) {
    const std::int64_t row = args.index[t] - args.first_row;
    const bool here = row >= 0 && row < args.rows;
    if (!here && args.accumulate) continue;
    T* to = args.out + (t * args.packs + pack) * N;
    Pack<T, N> from, values;
    if (here) from.load(args.weight + (row * args.packs + pack) * N);
    if (args.accumulate) values.load(to);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float scaled = here ? args.scale * from[i] : 0.0f;
      values.set(i, args.accumulate ? values[i] + scaled : scaled);
    }
    values.store(to);
  }
}

void forward(const Stream& stream, const EmbeddingForwardArgs& args) {
  const View &weight = args.weight, &out = args.out;
  BEV_CHECK(weight.shape.ndim() == 2 && out.shape.ndim() == 2 && weight.shape[1] == out.shape[1],
            "embedding: weight ", weight.shape, ", output ", out.shape);
  if (out.numel() == 0) return;
  const std::int64_t tokens = out.shape[0], columns = out.shape[1];
  visit_value(out.dtype, [&](auto type) {
    using T = decltype(type);
    by_pack<T>(aligned(weight.data, out.data), columns, [&](auto count) {
      constexpr int kCount = decltype(count)::value;
      const RowGrid grid = row_grid(tokens, columns / kCount);
      forward_kernel<T, kCount><<<grid.blocks, grid.threads, 0, queue_of(stream).stream()>>>(
          {args.index, address<T>(weight), address<T>(out), tokens, columns / kCount,
           args.first_row, weight.shape[0], static_cast<float>(args.scale), args.accumulate});
      check_launch("embedding forward");
    });
  });
}

// Keys are rows of the table; `rows` marks a token that contributes to none.
__global__ void __launch_bounds__(kThreads)
    keys_kernel(const std::int32_t* index, int tokens, std::int64_t first_row, std::int64_t rows,
                std::int32_t skip_index, KeyedPositions out) {
  const int t = static_cast<int>(own_pack());
  if (t >= tokens) return;
  const std::int64_t row = index[t] - first_row;
  const bool counts = row >= 0 && row < rows && index[t] != skip_index;
  out.keys[t] = static_cast<std::uint32_t>(counts ? row : rows);
  out.positions[t] = t;
}

template <class T, class G>
struct Backward {
  KeyedPositions sorted;
  const T* dy;
  G* dweight;
  std::uint8_t* touched;  // [rows], initially zero
  std::int64_t packs, rows, tiles;
  int tokens;
  float scale, beta;
};

// Threads per block, each with a pack of columns of one table row.
constexpr int kRowThreads = 128;

// One block per position in the sorted list and column tile; the block at the first position of a
// table row adds the gradients of its tokens, in token order. Reads dy once; touched rows are read
// and written once.
template <class T, class G, int N>
__global__ void __launch_bounds__(kRowThreads) rows_kernel(Backward<T, G> args) {
  constexpr int kInFlight = 8;
  const int first = static_cast<int>(blockIdx.x / args.tiles);
  const std::int64_t pack = blockIdx.x % args.tiles * kRowThreads + threadIdx.x;
  const std::uint32_t row = args.sorted.keys[first];
  if (row >= args.rows || (first > 0 && args.sorted.keys[first - 1] == row)) return;
  if (pack == 0) args.touched[row] = 1;
  if (pack >= args.packs) return;
  G* const to = args.dweight + (static_cast<std::int64_t>(row) * args.packs + pack) * N;
  Pack<G, N> old;
  if (args.beta != 0) old.load(to);
  float sums[N];
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i] = args.beta != 0 ? args.beta * old[i] : 0.0f;
  for (int place = first, more = 1; more;) {
    Pack<T, N> grads[kInFlight];
    bool ours[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      ours[k] = place + k < args.tokens && args.sorted.keys[place + k] == row;
      if (!ours[k]) continue;
      const std::int64_t token = args.sorted.positions[place + k];
      grads[k].load(args.dy + (token * args.packs + pack) * N);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
#pragma unroll
      for (int i = 0; ours[k] && i < N; ++i) sums[i] += args.scale * grads[k][i];
    }
    more = ours[kInFlight - 1];
    place += kInFlight;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) old.set(i, sums[i]);
  old.store(to);
}

// dweight *= beta in the rows that no token touched.
template <class T, class G, int N>
__global__ void __launch_bounds__(kThreads) others_kernel(Backward<T, G> args) {
  const std::int64_t pack = own_pack();
  if (pack >= args.packs) return;
  for (std::int64_t row = first_row(); row < args.rows; row += row_step()) {
    if (args.touched[row] != 0) continue;
    G* const at = args.dweight + (row * args.packs + pack) * N;
    Pack<G, N> values;
    if (args.beta != 0) values.load(at);
#pragma unroll
    for (int i = 0; i < N; ++i) values.set(i, args.beta != 0 ? args.beta * values[i] : 0.0f);
    values.store(at);
  }
}

// Layout of the scratch memory.
struct Room {
  KeyedPositions data, other;
  std::uint32_t* counts;
  std::uint8_t* touched;
};
Room make_room(CudaQueue& queue, std::int64_t tokens, std::int64_t rows) {
  const std::int64_t words = 4 * tokens + sort_counts(tokens);
  auto* memory =
      static_cast<std::uint32_t*>(queue.scratch(static_cast<std::size_t>(4 * words + rows)));
  auto part = [&](std::int64_t i) { return memory + i * tokens; };
  return {{part(0), reinterpret_cast<std::int32_t*>(part(1))},
          {part(2), reinterpret_cast<std::int32_t*>(part(3))},
          part(4),
          reinterpret_cast<std::uint8_t*>(memory + words)};
}

template <class T, class G, int N>
void launch_backward(CudaQueue& queue, const EmbeddingBackwardArgs& args) {
  const std::int64_t tokens = args.dy.shape[0], packs = args.dy.shape[1] / N;
  const std::int64_t rows = args.dweight.shape[0];
  const Room room = make_room(queue, tokens, rows);
  check_cuda(cudaMemsetAsync(room.touched, 0, static_cast<std::size_t>(rows), queue.stream()),
             "embedding backward");
  Backward<T, G> work{.sorted = room.data,
                      .dy = address<T>(args.dy),
                      .dweight = address<G>(args.dweight),
                      .touched = room.touched,
                      .packs = packs,
                      .rows = rows,
                      .tiles = ceil_div(packs, kRowThreads),
                      .tokens = static_cast<int>(tokens),
                      .scale = static_cast<float>(args.scale),
                      .beta = static_cast<float>(args.beta)};
  if (tokens > 0) {
    keys_kernel<<<static_cast<unsigned>(ceil_div(tokens, kThreads)), kThreads, 0, queue.stream()>>>(
        args.index, work.tokens, args.first_row, rows, args.skip_index, room.data);
    work.sorted = sort_positions(queue, room.data, room.other, tokens, rows, room.counts);
    rows_kernel<T, G, N>
        <<<static_cast<unsigned>(tokens * work.tiles), kRowThreads, 0, queue.stream()>>>(work);
    check_launch("embedding backward");
  }
  if (args.beta == 1) return;
  const RowGrid grid = row_grid(rows, packs);
  others_kernel<T, G, N><<<grid.blocks, grid.threads, 0, queue.stream()>>>(work);
  check_launch("embedding backward");
}

void backward(const Stream& stream, const EmbeddingBackwardArgs& args) {
  const View &dy = args.dy, &dweight = args.dweight;
  BEV_CHECK(dy.shape.ndim() == 2 && dweight.shape.ndim() == 2 && dy.shape[1] == dweight.shape[1],
            "embedding backward: dy ", dy.shape, ", dweight ", dweight.shape);
  BEV_CHECK(dweight.dtype == Dtype::kF32 || dweight.dtype == Dtype::kBf16, ErrorKind::kDevice,
            "CUDA: embedding backward: dweight must be f32 or bf16, is ", name_of(dweight.dtype));
  if (dweight.numel() == 0) return;
  visit_value(dy.dtype, [&](auto type) {
    using T = decltype(type);
    by_pack<T>(aligned(dy.data, dweight.data), dy.shape[1], [&](auto count) {
      constexpr int kCount = decltype(count)::value;
      if (dweight.dtype == Dtype::kF32) {
        launch_backward<T, float, kCount>(queue_of(stream), args);
      } else {
        launch_backward<T, Bfloat, kCount>(queue_of(stream), args);
      }
    });
  });
}

}  // namespace
}  // namespace cuda

EmbeddingKernels cuda_table(Family<EmbeddingKernels>) {
  return {.forward = cuda::forward, .backward = cuda::backward};
}

}  // namespace bev
