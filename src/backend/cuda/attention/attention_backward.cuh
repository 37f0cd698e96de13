// FlashAttention-2 backward in two kernels that recompute the scores and need neither atomics nor
// temporaries, so gradients are deterministic: one holds a tile of keys and loops over the queries
// of all heads in its group (dk, dv), the other holds a tile of queries and loops over keys (dq).
// cp.async double buffering: the next tile loads while the current one is used.
#pragma once

#include "backend/cuda/attention/attention_tiles.cuh"

namespace bev::cuda_attention {

// A warp owns 16 * kM rows of the block and one of kColumnParts parts of the columns of their
// gradients, since its sums must fit in registers. kOthers rows of the other side are loaded at a
// time.
template <int kHeadSize, int kTiles, int kWarpCount, int kColumnParts, int kOtherRows>
struct BackwardTiling {
  static constexpr int kHead = kHeadSize, kM = kTiles, kOthers = kOtherRows;
  static constexpr int kThreads = 32 * kWarpCount;
  static constexpr int kRowWarps = kWarpCount / kColumnParts;
  static constexpr int kRows = 16 * kM * kRowWarps;
  static constexpr int kColumns = kHead / kColumnParts;
  static constexpr int kHeldBytes = Tile<kHead>::bytes(kRows);
  static constexpr int kOtherBytes = Tile<kHead>::bytes(kOthers);
  static constexpr int kStatisticsBytes = kOthers * 4;
  static constexpr int kStageBytes = 2 * kOtherBytes + 2 * kStatisticsBytes;
  static constexpr int kSharedBytes = 2 * kHeldBytes + 2 * kStageBytes;

  using Scores = Sums<kM, kOthers / 8>;
  using Gradients = Sums<kM, kColumns / 8>;
  __device__ static int warp_row() {
    return static_cast<int>(threadIdx.x / 32) % kRowWarps * 16 * kM;
  }
  __device__ static int warp_column() {
    return static_cast<int>(threadIdx.x / 32) / kRowWarps * kColumns;
  }
};

// A query that sees no key has lse = -infinity, and all its scores are -infinity too.
__device__ inline float log2_sum(float lse) { return lse == -INFINITY ? 0 : lse * kLog2e; }

// Takes a score (after softcap and mask) and the gradient of its probability. On return `score` is
// the probability that multiplied the value (after dropout) and `gradient` that of q.k / scale.
template <bool kExtras>
__device__ void differentiate(const Shape& shape, float lse, float delta, float dropout,
                              float& score, float& gradient) {
  const float probability = fast_exp2(fmaf(score, shape.log2_factor, -lse));
  if (!kExtras) {
    gradient = probability * (gradient - delta);
    score = probability;
    return;
  }
  // A masked score is -infinity; the clamp keeps its gradient 0.
  const float slope = shape.softcap > 0 ? fmaxf(0.0f, 1 - score * score) : 1;
  gradient = probability * (gradient * dropout - delta) * slope;
  score = probability * dropout;
}

// dk and dv of keys [first, first + count) of a run.
template <class T, class Tiling, bool kExtras>
struct KeyBlock {
  static constexpr int kHead = Tiling::kHead, kM = Tiling::kM, kOthers = Tiling::kOthers;

  const BackwardParams& params;
  const AttentionRun& run;
  int kv_head, first, count;
  std::uint8_t* memory;
  typename Tiling::Gradients dkeys, dvalues;

  __device__ Tile<kHead> keys() const { return {memory}; }
  __device__ Tile<kHead> values() const { return {memory + Tiling::kHeldBytes}; }
  __device__ std::uint8_t* stage(int step) const {
    return memory + 2 * Tiling::kHeldBytes + step % 2 * Tiling::kStageBytes;
  }
  __device__ Tile<kHead> queries(int step) const { return {stage(step)}; }
  __device__ Tile<kHead> douts(int step) const { return {stage(step) + Tiling::kOtherBytes}; }
  __device__ float* lse(int step) const {
    return reinterpret_cast<float*>(stage(step) + 2 * Tiling::kOtherBytes);
  }
  __device__ float* delta(int step) const { return lse(step) + kOthers; }

  // Rows of k or v with `size` elements per head.
  __device__ void copy_held(Tile<kHead> tile, const void* from, std::int64_t stride, int size) {
    const T* source = static_cast<const T*>(from) + (run.k_begin + first) * stride + kv_head * size;
    copy_tile<Tiling::kRows, Tiling::kThreads>(tile, count, size,
                                               [&](int row) { return source + row * stride; });
  }
  __device__ void copy_step(int step, int head, int query) {
    const Shape& shape = params.shape;
    const std::int64_t row = run.q_begin + query;
    const int left = run.q_count - query;
    const T* q = static_cast<const T*>(params.q) + row * shape.q_stride + head * shape.head_size;
    const std::int64_t at = row * shape.q_heads + head;
    const T* dout = static_cast<const T*>(params.dout) + at * shape.v_head_size;
    const std::int64_t stride = std::int64_t{shape.q_heads} * shape.v_head_size;
    copy_tile<kOthers, Tiling::kThreads>(queries(step), left, shape.head_size,
                                         [&](int i) { return q + i * shape.q_stride; });
    copy_tile<kOthers, Tiling::kThreads>(douts(step), left, shape.v_head_size,
                                         [&](int i) { return dout + i * stride; });
    const int i = static_cast<int>(threadIdx.x);
    if (i < kOthers) {
      const bool valid = i < left;
      const std::int64_t from = at + (valid ? i : 0) * shape.q_heads;
      copy_4(shared_address(lse(step) + i), params.lse + from, valid);
      copy_4(shared_address(delta(step) + i), params.delta + from, valid);
    }
    commit_copies();
  }

  __device__ float dropout(int head, int query, int key) const {
    const Shape& shape = params.shape;
    if (!shape.dropped) return 1;
    const std::int64_t row = run.q_begin + min(query, run.q_count - 1);
    return dropout_factor(shape, *shape.random.random_key, query_draws(shape, row, head),
                          run.key_position + key);
  }

  // Rows of scores and gradients are keys, columns are queries.
  __device__ void add_step(int step, int head, int query) {
    const Shape& shape = params.shape;
    const int warp_key = first + Tiling::warp_row();
    typename Tiling::Scores scores, gradients;
    multiply_rows<T>(scores, keys(), Tiling::warp_row(), queries(step));
    multiply_rows<T>(gradients, values(), Tiling::warp_row(), douts(step));
    if (kExtras && shape.softcap > 0) cap_scores(shape, scores);
    if (!sees_all(shape, run, query, kOthers, first, Tiling::kRows)) {
      scores.for_each([&](float& x, int, int, int, int row, int column) {
        if (!sees(shape, run, query + column, warp_key + row)) x = -INFINITY;
      });
    }
    scores.for_each([&](float& x, int m, int n, int i, int row, int column) {
      const float factor = kExtras ? dropout(head, query + column, warp_key + row) : 1;
      differentiate<kExtras>(shape, log2_sum(lse(step)[column]), delta(step)[column], factor, x,
                             gradients.at[m][n][i]);
    });
    add_weighted_rows<T>(dvalues, scores, douts(step), Tiling::warp_column());
    add_weighted_rows<T>(dkeys, gradients, queries(step), Tiling::warp_column());
  }

  __device__ void sum() {
    const Shape& shape = params.shape;
    const Range range = visible_queries(shape, run, first, first + count - 1);
    const int tiles = ceil_div(max(0, range.end - range.begin), kOthers);
    const int steps = tiles * shape.group;
    const auto head = [&](int step) { return kv_head * shape.group + step / tiles; };
    const auto query = [&](int step) { return range.begin + step % tiles * kOthers; };
    dkeys.clear();
    dvalues.clear();
    copy_held(keys(), params.k, shape.k_stride, shape.head_size);
    copy_held(values(), params.v, shape.v_stride, shape.v_head_size);
    commit_copies();
    if (steps > 0) copy_step(0, head(0), query(0));
    for (int step = 0; step < steps; ++step) {
      if (step + 1 < steps) copy_step(step + 1, head(step + 1), query(step + 1));
      if (step + 1 < steps) {
        wait_copies<1>();
      } else {
        wait_copies<0>();
      }
      __syncthreads();  // the rows of this step have arrived
      add_step(step, head(step), query(step));
      __syncthreads();  // and may be overwritten
    }
    wait_copies<0>();
    __syncthreads();
  }

  __device__ void store(typename Tiling::Gradients& gradients, Tile<kHead> tile, float factor,
                        void* to, std::int64_t stride, int size) {
    T* target = static_cast<T*>(to) + (run.k_begin + first) * stride + kv_head * size;
    store_sums<T>(
        gradients, tile, Tiling::warp_row(), Tiling::warp_column(), size,
        [&](int, int) { return factor; },
        [&](int row) { return row < count ? target + row * stride : nullptr; });
  }
};

// Grid: kv heads, key tiles, runs. The first keys, which most queries see, are scheduled first.
template <class T, class Tiling, bool kExtras>
__global__ void __launch_bounds__(Tiling::kThreads, 256 / Tiling::kThreads)
    key_gradients_kernel(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  const Shape& shape = params.shape;
  const AttentionRun& run = params.runs.at[blockIdx.z];
  const int first = static_cast<int>(blockIdx.y) * Tiling::kRows;
  const int count = min(Tiling::kRows, run.k_count - first);
  if (count <= 0) return;
  KeyBlock<T, Tiling, kExtras> block{params, run,   static_cast<int>(blockIdx.x),
                                     first,  count, memory};
  block.sum();
  block.store(block.dkeys, block.keys(), shape.scale, params.dk, shape.k_stride, shape.head_size);
  block.store(block.dvalues, block.values(), 1, params.dv, shape.v_stride, shape.v_head_size);
}

// dq of queries [first, first + count) of a run, for one head.
template <class T, class Tiling, bool kExtras>
struct QueryBlock {
  static constexpr int kHead = Tiling::kHead, kM = Tiling::kM, kOthers = Tiling::kOthers;

  const BackwardParams& params;
  const AttentionRun& run;
  int head, first, count;
  std::uint8_t* memory;
  float lse[kM][2], delta[kM][2];  // of the rows of the lane
  typename Tiling::Gradients dqueries;

  __device__ Tile<kHead> queries() const { return {memory}; }
  __device__ Tile<kHead> douts() const { return {memory + Tiling::kHeldBytes}; }
  __device__ std::uint8_t* stage(int step) const {
    return memory + 2 * Tiling::kHeldBytes + step % 2 * Tiling::kStageBytes;
  }
  __device__ Tile<kHead> keys(int step) const { return {stage(step)}; }
  __device__ Tile<kHead> values(int step) const { return {stage(step) + Tiling::kOtherBytes}; }

  // Index of row `row` of the block in [T, N] tensors.
  __device__ std::int64_t index(int row) const {
    return (std::int64_t{run.q_begin} + first + row) * params.shape.q_heads + head;
  }
  __device__ void copy_held() {
    const Shape& shape = params.shape;
    const T* q = static_cast<const T*>(params.q) +
                 (std::int64_t{run.q_begin} + first) * shape.q_stride + head * shape.head_size;
    const T* dout = static_cast<const T*>(params.dout);
    copy_tile<Tiling::kRows, Tiling::kThreads>(queries(), count, shape.head_size,
                                               [&](int row) { return q + row * shape.q_stride; });
    copy_tile<Tiling::kRows, Tiling::kThreads>(douts(), count, shape.v_head_size, [&](int row) {
      return dout + index(row) * shape.v_head_size;
    });
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int row = Tiling::warp_row() + 8 * i + static_cast<int>(threadIdx.x % 32 / 4);
      lse[i / 2][i % 2] = row < count ? log2_sum(params.lse[index(row)]) : 0;
      delta[i / 2][i % 2] = row < count ? params.delta[index(row)] : 0;
    }
  }
  __device__ void copy_step(int step, int key) {
    const Shape& shape = params.shape;
    const int kv_head = head / shape.group, left = run.k_count - key;
    const std::int64_t row = run.k_begin + key;
    const T* k = static_cast<const T*>(params.k) + row * shape.k_stride + kv_head * shape.head_size;
    const T* v =
        static_cast<const T*>(params.v) + row * shape.v_stride + kv_head * shape.v_head_size;
    copy_tile<kOthers, Tiling::kThreads>(keys(step), left, shape.head_size,
                                         [&](int i) { return k + i * shape.k_stride; });
    copy_tile<kOthers, Tiling::kThreads>(values(step), left, shape.v_head_size,
                                         [&](int i) { return v + i * shape.v_stride; });
    commit_copies();
  }

  __device__ float dropout(int row, int key) const {
    const Shape& shape = params.shape;
    if (!shape.dropped) return 1;
    const std::int64_t query = std::int64_t{run.q_begin} + first + min(row, count - 1);
    return dropout_factor(shape, *shape.random.random_key, query_draws(shape, query, head),
                          run.key_position + key);
  }

  // Rows of scores and gradients are queries, columns are keys.
  __device__ void add_step(int step, int key) {
    const Shape& shape = params.shape;
    typename Tiling::Scores scores, gradients;
    multiply_rows<T>(scores, queries(), Tiling::warp_row(), keys(step));
    multiply_rows<T>(gradients, douts(), Tiling::warp_row(), values(step));
    if (kExtras && shape.softcap > 0) cap_scores(shape, scores);
    if (!sees_all(shape, run, first, count, key, kOthers)) {
      scores.for_each([&](float& x, int, int, int, int row, int column) {
        if (!sees(shape, run, first + Tiling::warp_row() + row, key + column)) x = -INFINITY;
      });
    }
    scores.for_each([&](float& x, int m, int n, int i, int row, int column) {
      const float factor = kExtras ? dropout(Tiling::warp_row() + row, key + column) : 1;
      differentiate<kExtras>(shape, lse[m][i / 2], delta[m][i / 2], factor, x,
                             gradients.at[m][n][i]);
    });
    add_weighted_rows<T>(dqueries, gradients, keys(step), 0);
  }

  __device__ void sum() {
    const Range range = visible_keys(params.shape, run, first, first + count - 1);
    const int steps = ceil_div(max(0, range.end - range.begin), kOthers);
    const auto key = [&](int step) { return range.begin + step * kOthers; };
    dqueries.clear();
    copy_held();
    commit_copies();
    if (steps > 0) copy_step(0, key(0));
    for (int step = 0; step < steps; ++step) {
      if (step + 1 < steps) copy_step(step + 1, key(step + 1));
      if (step + 1 < steps) {
        wait_copies<1>();
      } else {
        wait_copies<0>();
      }
      __syncthreads();  // the rows of this step have arrived
      add_step(step, key(step));
      __syncthreads();  // and may be overwritten
    }
    wait_copies<0>();
    __syncthreads();
  }
};

// Grid: q heads, query tiles, runs. The last queries, which see most keys, are scheduled first.
template <class T, class Tiling, bool kExtras>
__global__ void __launch_bounds__(Tiling::kThreads, 256 / Tiling::kThreads)
    query_gradients_kernel(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  const Shape& shape = params.shape;
  const AttentionRun& run = params.runs.at[blockIdx.z];
  const int head = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Tiling::kRows;
  const int count = min(Tiling::kRows, run.q_count - first);
  if (count <= 0) return;
  QueryBlock<T, Tiling, kExtras> block{params, run, head, first, count, memory};
  block.sum();
  T* dq = static_cast<T*>(params.dq) + (std::int64_t{run.q_begin} + first) * shape.q_stride +
          head * shape.head_size;
  store_sums<T>(
      block.dqueries, block.queries(), Tiling::warp_row(), 0, shape.head_size,
      [&](int, int) { return shape.scale; },
      [&](int row) { return row < count ? dq + row * shape.q_stride : nullptr; });
}

template <class T, class KeyTiling, class QueryTiling, bool kExtras>
void launch_backward(CudaQueue& queue, BackwardParams& params, const AttentionShape& shape) {
  for_run_chunks(shape.runs, params.runs, [&](const RunChunk& chunk) {
    launch<BackwardParams>(
        key_gradients_kernel<T, KeyTiling, kExtras>,
        dim3(blocks(shape.kv_heads), blocks(ceil_div(chunk.most_keys, KeyTiling::kRows)),
             blocks(chunk.count)),
        KeyTiling::kThreads, KeyTiling::kSharedBytes, queue, params);
    launch<BackwardParams>(
        query_gradients_kernel<T, QueryTiling, kExtras>,
        dim3(blocks(shape.q_heads), blocks(ceil_div(chunk.most_queries, QueryTiling::kRows)),
             blocks(chunk.count)),
        QueryTiling::kThreads, QueryTiling::kSharedBytes, queue, params);
  });
}

using Keys64 = BackwardTiling<64, 2, 4, 1, 32>;
using Keys96 = BackwardTiling<96, 1, 8, 1, 64>;
using Keys128 = BackwardTiling<128, 1, 8, 1, 64>;
using Keys192 = BackwardTiling<192, 1, 8, 2, 32>;
using Keys256 = BackwardTiling<256, 1, 8, 2, 32>;
using Queries64 = BackwardTiling<64, 2, 4, 1, 32>;
using Queries96 = BackwardTiling<96, 1, 8, 1, 64>;
using Queries128 = BackwardTiling<128, 1, 8, 1, 64>;
using Queries192 = BackwardTiling<192, 1, 4, 1, 32>;
using Queries256 = BackwardTiling<256, 1, 4, 1, 32>;

// For GPUs whose blocks have less shared memory.
using SmallKeys128 = BackwardTiling<128, 1, 4, 1, 32>;
using SmallKeys256 = BackwardTiling<256, 1, 4, 2, 16>;
using SmallQueries128 = BackwardTiling<128, 1, 4, 1, 32>;
using SmallQueries256 = BackwardTiling<256, 1, 2, 1, 16>;

// Softcap and dropout, and small tiles, are instantiated for fewer head sizes.
template <class T>
void tensor_backward(CudaQueue& queue, BackwardParams& params, const AttentionShape& shape) {
  const std::int64_t head = largest_head(shape);
  constexpr int kMostBytes = std::max(Keys128::kSharedBytes, Keys256::kSharedBytes);
  if (head > 64 && queue.shared_memory() < kMostBytes) {
    if (head <= 128) {
      return launch_backward<T, SmallKeys128, SmallQueries128, true>(queue, params, shape);
    }
    return launch_backward<T, SmallKeys256, SmallQueries256, true>(queue, params, shape);
  }
  if (params.shape.softcap > 0 || params.shape.dropped) {
    if (head <= 64) return launch_backward<T, Keys64, Queries64, true>(queue, params, shape);
    if (head <= 128) return launch_backward<T, Keys128, Queries128, true>(queue, params, shape);
    return launch_backward<T, Keys256, Queries256, true>(queue, params, shape);
  }
  if (head <= 64) return launch_backward<T, Keys64, Queries64, false>(queue, params, shape);
  if (head <= 96) return launch_backward<T, Keys96, Queries96, false>(queue, params, shape);
  if (head <= 128) return launch_backward<T, Keys128, Queries128, false>(queue, params, shape);
  if (head <= 192) return launch_backward<T, Keys192, Queries192, false>(queue, params, shape);
  launch_backward<T, Keys256, Queries256, false>(queue, params, shape);
}

}  // namespace bev::cuda_attention
