// FlashAttention-2 forward: a block holds a tile of queries and loops over tiles of keys with an
// online softmax. cp.async loads overlap with the mma: values load while q k^T is computed, the
// next keys while p v is.
#pragma once

#include "backend/cuda/attention/attention_tiles.cuh"

namespace bev::cuda_attention {

// kM tiles of 16 rows for each of four warps; the sums of a warp must fit in registers.
template <int kHeadSize, int kTiles, int kTileKeys>
struct ForwardTiling {
  static constexpr int kHead = kHeadSize, kM = kTiles, kKeys = kTileKeys;
  static constexpr int kThreads = 128;
  static constexpr int kRows = 64 * kM;
  static constexpr int kQueryBytes = Tile<kHead>::bytes(kRows);
  static constexpr int kKeyBytes = Tile<kHead>::bytes(kKeys);
  static constexpr int kSharedBytes = kQueryBytes + 2 * kKeyBytes;
};

// Row r of a block is query first + r of one head.
struct HeadRows {
  int first = 0, head_index = 0;
  __device__ int query(int row) const { return first + row; }
  __device__ int head(int) const { return head_index; }
};
// Rows are the (query, head) pairs of one kv head, query-major.
struct GroupRows {
  int group = 1, first_head = 0;
  __device__ int query(int row) const { return row / group; }
  __device__ int head(int row) const { return first_head + row % group; }
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
        const float shift = most == -INFINITY ? 0 : most * factor;
        const float alpha = fast_exp2(largest[m][half] * factor - shift);
        float total = 0;
#pragma unroll
        for (int i = 0; i < 2 * kN; ++i) {
          float& x = scores.at[m][i / 2][2 * half + i % 2];
          x = fast_exp2(fmaf(x, factor, -shift));
          total += x;
        }
        largest[m][half] = most;
        sum[m][half] = sum[m][half] * alpha + total;
#pragma unroll
        for (int i = 0; i < 2 * kD; ++i) out.at[m][i / 2][2 * half + i % 2] *= alpha;
      }
    }
  }
  // Reduces sum over the lanes of a row.
  __device__ void finish() {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      float& x = sum[i / 2][i % 2];
      x += __shfl_xor_sync(~0u, x, 1);
      x += __shfl_xor_sync(~0u, x, 2);
    }
  }
  __device__ float lse(int m, int half, float factor) const {
    const float total = sum[m][half];
    return total == 0 ? -INFINITY : kLn2 * (largest[m][half] * factor + log2f(total));
  }
  __device__ float inverse(int m, int half) const {
    return sum[m][half] == 0 ? 0 : 1 / sum[m][half];
  }
};

// Work of one block: `count` rows of a run over a range of its keys.
template <class T, class Tiling, bool kExtras, class Rows>
struct ForwardBlock {
  static constexpr int kHead = Tiling::kHead, kM = Tiling::kM, kKeys = Tiling::kKeys;

  const ForwardParams& params;
  const AttentionRun& run;
  Rows rows;
  int count, kv_head;
  Tile<kHead> queries, keys, values;

  Softmax<kM> softmax;
  Sums<kM, kHead / 8> out;

  __device__ static int warp_row() { return static_cast<int>(threadIdx.x / 32) * 16 * kM; }
  __device__ std::int64_t query_row(int row) const { return run.q_begin + rows.query(row); }

  __device__ void copy_queries() {
    const T* q = static_cast<const T*>(params.q);
    const Shape& shape = params.shape;
    copy_tile<Tiling::kRows, Tiling::kThreads>(queries, count, shape.head_size, [&](int row) {
      return q + query_row(row) * shape.q_stride + rows.head(row) * shape.head_size;
    });
  }
  // Rows of k or v with `size` elements per head.
  __device__ void copy_rows(Tile<kHead> tile, const void* from, std::int64_t stride, int size,
                            int key) {
    const T* source = static_cast<const T*>(from) + (run.k_begin + key) * stride + kv_head * size;
    copy_tile<kKeys, Tiling::kThreads>(tile, run.k_count - key, size,
                                       [&](int row) { return source + row * stride; });
    commit_copies();
  }
  __device__ void copy_keys(int key) {
    copy_rows(keys, params.k, params.shape.k_stride, params.shape.head_size, key);
  }
  __device__ void copy_values(int key) {
    copy_rows(values, params.v, params.shape.v_stride, params.shape.v_head_size, key);
  }

  __device__ void drop(Sums<kM, kKeys / 8>& probabilities, int key) {
    const Shape& shape = params.shape;
    const std::uint64_t random_key = *shape.random.random_key;
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int m = i / 2, half = i % 2, lane = static_cast<int>(threadIdx.x % 32);
      const int row = min(warp_row() + 8 * i + lane / 4, count - 1);
      const QueryDraws draws = query_draws(shape, query_row(row), rows.head(row));
#pragma unroll
      for (int j = 0; j < kKeys / 4; ++j) {
        const int column = 8 * (j / 2) + 2 * (lane % 4) + j % 2;
        probabilities.at[m][j / 2][2 * half + j % 2] *=
            dropout_factor(shape, random_key, draws, run.key_position + key + column);
      }
    }
  }

  __device__ void score(Sums<kM, kKeys / 8>& scores, int key) {
    const Shape& shape = params.shape;
    multiply_rows<T>(scores, queries, warp_row(), keys);
    if (kExtras && shape.softcap > 0) cap_scores(shape, scores);
    const int first = rows.query(0), last = rows.query(count - 1);
    if (sees_all(shape, run, first, last - first + 1, key, kKeys)) return;
    scores.for_each([&](float& x, int, int, int, int row, int column) {
      if (!sees(shape, run, rows.query(warp_row() + row), key + column)) x = -INFINITY;
    });
  }

  __device__ void attend(Range range) {
    const Shape& shape = params.shape;
    const bool active = warp_row() < count;
    softmax.clear();
    out.clear();
    copy_queries();
    commit_copies();
    if (range.begin < range.end) copy_keys(range.begin);
    for (int key = range.begin; key < range.end; key += kKeys) {
      wait_copies<0>();
      __syncthreads();  // keys have arrived, the previous values may be overwritten
      copy_values(key);
      Sums<kM, kKeys / 8> scores;
      if (active) score(scores, key);
      wait_copies<0>();
      __syncthreads();  // values have arrived, the keys may be overwritten
      if (key + kKeys < range.end) copy_keys(key + kKeys);
      if (!active) continue;
      softmax.update(scores, shape.log2_factor, out);
      if (kExtras && shape.dropped) drop(scores, key);
      add_weighted_rows<T>(out, scores, values, 0);
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
  const AttentionRun& run = params.runs.at[blockIdx.z];
  const int head = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(gridDim.y - 1 - blockIdx.y) * Tiling::kRows;
  const int count = min(Tiling::kRows, run.q_count - first);
  if (count <= 0) return;

  using Block = ForwardBlock<T, Tiling, kExtras, HeadRows>;
  constexpr int kQueryBytes = Tiling::kQueryBytes, kKeyBytes = Tiling::kKeyBytes;
  Block block{params,
              run,
              {first, head},
              count,
              head / shape.group,
              {memory},
              {memory + kQueryBytes},
              {memory + kQueryBytes + kKeyBytes}};
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
      block.out, block.queries, row, 0, shape.v_head_size,
      [&](int m, int half) { return block.softmax.inverse(m, half); },
      [&](int at) -> T* {
        if (at >= count) return nullptr;
        return out + (block.query_row(at) * shape.q_heads + head) * shape.v_head_size;
      });
}

template <class T, class Tiling, bool kExtras>
void launch_forward(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape) {
  for_run_chunks(shape.runs, params.runs, [&](const RunChunk& chunk) {
    dim3 grid(blocks(shape.q_heads), blocks(ceil_div(chunk.most_queries, Tiling::kRows)),
              blocks(chunk.count));
    launch<ForwardParams>(forward_kernel<T, Tiling, kExtras>, grid, Tiling::kThreads,
                          Tiling::kSharedBytes, queue, params);
  });
}

// Softcap and dropout are instantiated for fewer head sizes.
template <class T>
void tensor_forward(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape) {
  const std::int64_t head = largest_head(shape);
  if (params.shape.softcap > 0 || params.shape.dropped) {
    if (head <= 64) return launch_forward<T, ForwardTiling<64, 2, 64>, true>(queue, params, shape);
    if (head <= 128) {
      return launch_forward<T, ForwardTiling<128, 1, 64>, true>(queue, params, shape);
    }
    return launch_forward<T, ForwardTiling<256, 1, 64>, true>(queue, params, shape);
  }
  if (head <= 64) return launch_forward<T, ForwardTiling<64, 2, 64>, false>(queue, params, shape);
  if (head <= 96) return launch_forward<T, ForwardTiling<96, 2, 64>, false>(queue, params, shape);
  if (head <= 128) return launch_forward<T, ForwardTiling<128, 2, 64>, false>(queue, params, shape);
  if (head <= 192) return launch_forward<T, ForwardTiling<192, 1, 64>, false>(queue, params, shape);
  launch_forward<T, ForwardTiling<256, 1, 64>, false>(queue, params, shape);
}

}  // namespace bev::cuda_attention
