// FlashAttention-2 forward: a block holds a tile of queries and loops over tiles of keys with an
// online softmax. cp.async loads overlap with the mma: in two stages the next tile loads while this
// one is used; in one stage, for the largest heads, values load while q k^T is computed, the next
// keys while p v is.
#pragma once

#include "backend/cuda/attention/attention_runs.cuh"
#include "backend/cuda/attention/attention_tiles.cuh"

namespace bev::cuda_attention {

// kM tiles of 16 rows for each of four warps; the sums of a warp must fit in registers.
template <int kHeadSize, int kTiles, int kStageCount>
struct ForwardTiling {
  static constexpr int kHead = kHeadSize, kM = kTiles, kKeys = kTileKeys, kStages = kStageCount;
  static constexpr int kThreads = 128;
  static constexpr int kRows = 64 * kM;
  static constexpr int kQueryBytes = Tile<kHead>::bytes(kRows);
  static constexpr int kKeyBytes = Tile<kHead>::bytes(kKeys);
  static constexpr int kStageBytes = 2 * kKeyBytes;
  static constexpr int kSharedBytes = kQueryBytes + kStages * kStageBytes;
};

// Online softmax state of the lane's 2 kM rows: the maximum score (before the log2 factor) and the
// lane's share of the sum of exponentials.
template <int kM>
struct Softmax {
  float largest[kM][2], sum[kM][2];

  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) largest[i / 2][i % 2] = -INFINITY, sum[i / 2][i % 2] = 0;
  }
  // Scores become 2^(factor * (score - largest)); out is rescaled if the maximum changes.
  template <int kN, int kD>
  __device__ void update(Sums<kM, kN>& scores, float factor, Sums<kM, kD>& out) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = largest[m][half];
#pragma unroll
        for (int i = 0; i < 2 * kN; ++i) {
          most = fmaxf(most, scores.at[m][i / 2][2 * half + i % 2]);
        }
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const SoftmaxStep step(largest[m][half], most, factor);
        float parts[kN / 2];
#pragma unroll
        for (int n = 0; n < kN; n += 2) {
          float(&a)[4] = scores.at[m][n], (&b)[4] = scores.at[m][n + 1];
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            a[i] = step(a[i], factor);
            b[i] = step(b[i], factor);
          }
          parts[n / 2] = sum_of_4(a[2 * half], a[2 * half + 1], b[2 * half], b[2 * half + 1]);
        }
        static_assert(kN == 8);
        const float total = sum_of_4(parts[0], parts[1], parts[2], parts[3]);
        largest[m][half] = most;
        sum[m][half] = fmaf(sum[m][half], step.alpha, total);
#pragma unroll
        for (int i = 0; i < 2 * kD; ++i) out.at[m][i / 2][2 * half + i % 2] *= step.alpha;
      }
    }
  }
  // Reduces sum over the lanes of a row.
  __device__ void finish() {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) sum[i / 2][i % 2] = sum_of_row(sum[i / 2][i % 2]);
  }
  __device__ float lse(int m, int half, float factor) const {
    return lse_of(largest[m][half], sum[m][half], factor);
  }
  __device__ float inverse(int m, int half) const { return inverse_of(sum[m][half]); }
};

// Work of one block: queries [first, first + count) of a head of a run.
template <class T, class Tiling, bool kExtras>
struct ForwardBlock {
  static constexpr int kHead = Tiling::kHead, kM = Tiling::kM, kKeys = Tiling::kKeys;

  const ForwardParams& params;
  const AttentionRun& run;
  const KeyRows key_rows;
  int first, count, head, kv_head;
  std::uint8_t* memory;

  Softmax<kM> softmax;
  Sums<kM, kHead / 8> out;

  __device__ Tile<kHead> queries() const { return {memory}; }
  __device__ Tile<kHead> keys(int stage) const {
    return {memory + Tiling::kQueryBytes + stage * Tiling::kStageBytes};
  }
  __device__ Tile<kHead> values(int stage) const {
    return {memory + Tiling::kQueryBytes + stage * Tiling::kStageBytes + Tiling::kKeyBytes};
  }

  __device__ static int warp_row() { return static_cast<int>(threadIdx.x / 32) * 16 * kM; }
  __device__ std::int64_t query_row(int row) const { return run.q_begin + first + row; }

  __device__ void copy_queries() {
    const Shape& shape = params.shape;
    const T* q = static_cast<const T*>(params.q) + head * shape.head_size;
    copy_tile<Tiling::kRows, Tiling::kThreads>(queries(), count, shape.head_size, [&](int row) {
      return q + query_row(row) * shape.q_stride;
    });
  }
  // Tile at `key` of k or v, with `size` elements per head, of the keys in range.
  __device__ void copy_others(Tile<kHead> tile, const void* from, std::int64_t stride, int size,
                              Range range, int key) {
    const T* source = static_cast<const T*>(from) + kv_head * size;
    const KeyRows::Tile key_row = key_rows.tile(key);
    copy_rows<kKeys, Tiling::kThreads>(tile, {range.begin - key, range.end - key}, size,
                                       [&](int row) { return source + key_row(row) * stride; });
  }
  __device__ void copy_keys(Range range, int key, int stage) {
    copy_others(keys(stage), params.k, params.shape.k_stride, params.shape.head_size, range, key);
  }
  __device__ void copy_values(Range range, int key, int stage) {
    copy_others(values(stage), params.v, params.shape.v_stride, params.shape.v_head_size, range,
                key);
  }

  __device__ void drop(Sums<kM, kKeys / 8>& probabilities, int key) {
    const Shape& shape = params.shape;
    const std::uint64_t random_key = *shape.random.random_key;
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int m = i / 2, half = i % 2, lane = static_cast<int>(threadIdx.x % 32);
      const int row = min(warp_row() + 8 * i + lane / 4, count - 1);
      const QueryDraws draws = query_draws(shape, query_row(row), head);
#pragma unroll
      for (int j = 0; j < kKeys / 4; ++j) {
        const int column = 8 * (j / 2) + 2 * (lane % 4) + j % 2;
        probabilities.at[m][j / 2][2 * half + j % 2] *=
            dropout_factor(shape, random_key, draws, run.key_position + key + column);
      }
    }
  }

  __device__ void score(Sums<kM, kKeys / 8>& scores, int key, int stage) {
    const Shape& shape = params.shape;
    multiply_rows<T>(scores, queries(), warp_row(), keys(stage));
    if (kExtras && shape.softcap > 0) cap_scores(shape, scores);
    if (sees_all(shape, run, first, count, key, kKeys)) return;
    scores.for_each([&](float& x, int, int, int, int row, int column) {
      if (!sees(shape, run, first + warp_row() + row, key + column)) x = -INFINITY;
    });
  }

  __device__ void add_values(Sums<kM, kKeys / 8>& scores, int key, int stage) {
    softmax.update(scores, params.shape.log2_factor, out);
    if (kExtras && params.shape.dropped) drop(scores, key);
    add_weighted_rows<T>(out, scores, values(stage), 0);
  }

  __device__ void attend_in_one_stage(Range range, int begin) {
    const bool active = warp_row() < count;
    if (begin < range.end) copy_keys(range, begin, 0);
    commit_copies();
    for (int key = begin; key < range.end; key += kKeys) {
      wait_copies<0>();
      __syncthreads();  // keys have arrived, the previous values may be overwritten
      copy_values(range, key, 0);
      commit_copies();
      Sums<kM, kKeys / 8> scores;
      if (active) score(scores, key, 0);
      wait_copies<0>();
      __syncthreads();  // values have arrived, the keys may be overwritten
      if (key + kKeys < range.end) copy_keys(range, key + kKeys, 0);
      commit_copies();
      if (active) add_values(scores, key, 0);
    }
  }

  __device__ void attend_in_two_stages(Range range, int begin) {
    const bool active = warp_row() < count;
    if (begin < range.end) {
      copy_keys(range, begin, 0);
      copy_values(range, begin, 0);
    }
    commit_copies();
    for (int key = begin, stage = 0; key < range.end; key += kKeys, stage ^= 1) {
      const bool more = key + kKeys < range.end;
      wait_copies<0>();
      __syncthreads();  // the tile has arrived, the previous one may be overwritten
      if (more) copy_keys(range, key + kKeys, stage ^ 1);
      Sums<kM, kKeys / 8> scores;
      if (active) score(scores, key, stage);
      if (more) copy_values(range, key + kKeys, stage ^ 1);
      commit_copies();
      if (active) add_values(scores, key, stage);
    }
  }

  // Keys in range, in tiles that begin at multiples of kKeys.
  __device__ void attend(Range range) {
    const int begin = range.begin / kKeys * kKeys;
    softmax.clear();
    out.clear();
    copy_queries();
    if constexpr (Tiling::kStages == 1) {
      attend_in_one_stage(range, begin);
    } else {
      attend_in_two_stages(range, begin);
    }
    wait_copies<0>();
    __syncthreads();  // the tiles are free
    softmax.finish();
  }
};

// Grid: q heads, query tiles, runs. The last queries, which see most keys, are scheduled first.
template <class T, class Tiling, bool kExtras>
__global__ void __launch_bounds__(Tiling::kThreads, 2)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  const Shape& shape = params.shape;
  const CurrentRun current = current_run(params.runs, static_cast<int>(blockIdx.z));
  const AttentionRun& run = current.run;
  const int head = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Tiling::kRows;
  const int count = min(Tiling::kRows, run.q_count - first);
  if (count <= 0) return;

  using Block = ForwardBlock<T, Tiling, kExtras>;
  Block block{params, run,  key_rows(params, current), first,
              count,  head, head / shape.group,        memory};
  block.attend(visible_keys(shape, run, first, first + count - 1));

  const int row = Block::warp_row(), lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < 2 * Tiling::kM; ++i) {
    const int at = row + 8 * i + lane / 4;
    if (lane % 4 == 0 && at < count) {
      params.lse[block.query_row(at) * shape.q_heads + head] =
          block.softmax.lse(i / 2, i % 2, shape.log2_factor);
    }
  }
  T* out = static_cast<T*>(params.out);
  store_sums<T>(
      block.out, block.queries(), row, 0, shape.v_head_size,
      [&](int m, int half) { return block.softmax.inverse(m, half); },
      [&](int at) -> T* {
        if (at >= count) return nullptr;
        return out + (block.query_row(at) * shape.q_heads + head) * shape.v_head_size;
      });
}

template <class T, class Tiling, bool kExtras>
void launch_forward(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape,
                    KeepRun keep) {
  for_launches(
      shape.runs, params.runs, [&](const AttentionRun& run) { return keep(shape, run); },
      [&](const RunChunk& chunk) {
        dim3 grid(blocks(shape.q_heads), blocks(ceil_div(chunk.most_queries, Tiling::kRows)),
                  blocks(chunk.count));
        launch<ForwardParams>(forward_kernel<T, Tiling, kExtras>, grid, Tiling::kThreads,
                              Tiling::kSharedBytes, queue, params);
      });
}

// Softcap and dropout are instantiated for fewer head sizes. Small tiles are for devices with
// little shared memory.
template <class T>
void tensor_forward(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape,
                    KeepRun keep) {
  using Large = ForwardTiling<128, 2, 2>;
  const std::int64_t head = largest_head(shape);
  auto with = [&](auto launch) { launch(queue, params, shape, keep); };
  if (params.shape.softcap > 0 || params.shape.dropped) {
    if (head <= 64) return with(launch_forward<T, ForwardTiling<64, 2, 2>, true>);
    if (head <= 128) return with(launch_forward<T, ForwardTiling<128, 1, 2>, true>);
    return with(launch_forward<T, ForwardTiling<256, 1, 1>, true>);
  }
  if (head <= 64) return with(launch_forward<T, ForwardTiling<64, 2, 2>, false>);
  if (head <= 96) return with(launch_forward<T, ForwardTiling<96, 2, 2>, false>);
  if (head <= 128 && std::size_t{Large::kSharedBytes} > queue.shared_memory()) {
    return with(launch_forward<T, ForwardTiling<128, 1, 2>, false>);
  }
  if (head <= 128) return with(launch_forward<T, Large, false>);
  if (head <= 192) return with(launch_forward<T, ForwardTiling<192, 1, 1>, false>);
  with(launch_forward<T, ForwardTiling<256, 1, 1>, false>);
}

}  // namespace bev::cuda_attention
