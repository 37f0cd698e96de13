// Work of one block of the decode kernel: tiles, shared memory, and the loop over keys.
#pragma once

#include "backend/cuda/attention/attention_splits.cuh"
#include "backend/cuda/attention/attention_tiles.cuh"

namespace bev::cuda_attention {

template <int kHeadSize, int kTiles>
struct DecodeTiling {
  static constexpr int kHead = kHeadSize, kM = kTiles, kRows = 16 * kM, kKeys = kTileKeys;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kWarpKeys = kKeys / kWarps, kWarpColumns = kHead / kWarps;
  static_assert(kWarpKeys == 16 && kWarpColumns % 16 == 0);

  static constexpr int kQueryBytes = Tile<kHead>::bytes(kRows);
  static constexpr int kKeyBytes = Tile<kHead>::bytes(kKeys), kStageBytes = 2 * kKeyBytes;
  static constexpr int kWeightBytes = Tile<kKeys>::bytes(kRows);
  static constexpr int kLargestBytes = kRows * kWarps * 4, kSumBytes = 4 * kLargestBytes;
  static constexpr int kFixedBytes = kQueryBytes + kWeightBytes + kLargestBytes + kSumBytes;
  static constexpr int bytes(int stages) { return kFixedBytes + stages * kStageBytes; }
};

// Shared memory of a block. `largest` has a score per row and warp, `sums` one per lane of a row
// and warp.
template <class Tiling>
struct DecodeMemory {
  std::uint8_t* at;

  __device__ Tile<Tiling::kHead> queries() const { return {at}; }
  __device__ Tile<Tiling::kKeys> weights() const { return {at + Tiling::kQueryBytes}; }
  __device__ float* largest(int row) const {
    constexpr int kFrom = Tiling::kQueryBytes + Tiling::kWeightBytes;
    return reinterpret_cast<float*>(at + kFrom) + row * Tiling::kWarps;
  }
  __device__ float* sums(int row) const {
    constexpr int kFrom = Tiling::kQueryBytes + Tiling::kWeightBytes + Tiling::kLargestBytes;
    const int lane = static_cast<int>(threadIdx.x % 4);
    return reinterpret_cast<float*>(at + kFrom) + (row * 4 + lane) * Tiling::kWarps;
  }
  __device__ Tile<Tiling::kHead> keys(int stage) const {
    return {at + Tiling::kFixedBytes + stage * Tiling::kStageBytes};
  }
  __device__ Tile<Tiling::kHead> values(int stage) const {
    return {at + Tiling::kFixedBytes + stage * Tiling::kStageBytes + Tiling::kKeyBytes};
  }
};

// Waits for all cp.async groups of the thread but the last `pending`, which is at most 3.
__device__ inline void wait_but(int pending) {
  if (pending == 3) return wait_copies<3>();
  if (pending == 2) return wait_copies<2>();
  if (pending == 1) return wait_copies<1>();
  wait_copies<0>();
}

// Rows are the (query, head) pairs [first, first + count) of one kv head, query-major.
template <class T, class Tiling>
struct DecodeBlock {
  static constexpr int kHead = Tiling::kHead, kM = Tiling::kM, kKeys = Tiling::kKeys;
  static constexpr int kWarpKeys = Tiling::kWarpKeys, kWarpColumns = Tiling::kWarpColumns;

  const DecodeParams& params;
  const AttentionRun& run;
  const KeyRows key_rows;
  DecodeMemory<Tiling> memory;
  int first, count, kv_head;

  // Queries in registers, where there is room.
  static constexpr bool kHold = kM * kHead <= 128;
  static constexpr int kHeld = kHold ? kHead / 16 : 1;
  std::uint32_t held[kHold ? kM : 1][kHeld][4];

  Sums<kM, kWarpColumns / 8> out;
  float largest[kM][2], sum[kM][2];  // of the lane's rows; sum is the lane's share

  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ static int warp() { return static_cast<int>(threadIdx.x / 32); }
  __device__ static int row(int m, int half) { return 16 * m + 8 * half + lane() / 4; }
  __device__ const Shape& shape() const { return params.forward.shape; }
  __device__ int query(int at) const { return (first + at) / shape().group; }

  __device__ void copy_queries() {
    const T* q = static_cast<const T*>(params.forward.q);
    copy_tile<Tiling::kRows, Tiling::kThreads>(
        memory.queries(), count, shape().head_size, [&](int at) {
          const int head = kv_head * shape().group + (first + at) % shape().group;
          return q + (std::int64_t{run.q_begin} + query(at)) * shape().q_stride +
                 head * shape().head_size;
        });
  }

  // Starts the cp.async group of step i, the keys of tile i and the values of the tile before; past
  // the end it is empty.
  __device__ void start_step(Range range, int key, int stage, int previous) {
    if (key < range.end) {
      const T* k = static_cast<const T*>(params.forward.k) + kv_head * shape().head_size;
      const KeyRows::Tile key_row = key_rows.tile(key);
      copy_rows<kKeys, Tiling::kThreads>(
          memory.keys(stage), {range.begin - key, range.end - key}, shape().head_size,
          [&](int at) { return k + key_row(at) * shape().k_stride; });
    }
    key -= kKeys;
    if (key + kKeys > range.begin && key < range.end) {
      const T* v = static_cast<const T*>(params.forward.v) + kv_head * shape().v_head_size;
      const KeyRows::Tile key_row = key_rows.tile(key);
      copy_rows<kKeys, Tiling::kThreads>(
          memory.values(previous), {range.begin - key, range.end - key}, shape().v_head_size,
          [&](int at) { return v + key_row(at) * shape().v_stride; });
    }
    commit_copies();
  }

  __device__ void hold_queries() {
    if constexpr (kHold) {
#pragma unroll
      for (int column = 0; column < kHead; column += 16) {
#pragma unroll
        for (int m = 0; m < kM; ++m)
          memory.queries().load_left(held[m][column / 16], 16 * m, column);
      }
    }
  }
  // q k^T for 16 keys, with the order of multiply_rows.
  __device__ void multiply(Sums<kM, 2>& scores, Tile<kHead> keys) {
    if constexpr (!kHold) return multiply_rows<T>(scores, memory.queries(), 0, keys);
    scores.clear();
#pragma unroll
    for (int column = 0; column < kHead; column += 16) {
      std::uint32_t b[4];
      keys.load_right(b, 0, column);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add<T>(scores.at[m][0], held[m][column / 16 % kHeld], b[0], b[1]);
        multiply_add<T>(scores.at[m][1], held[m][column / 16 % kHeld], b[2], b[3]);
      }
    }
  }

  // Scores of the warp's keys in the tile at `key`, and their largest in shared memory.
  __device__ void score(Sums<kM, 2>& scores, int stage, int key) {
    multiply(scores, {memory.keys(stage).memory + Tile<kHead>::bytes(kWarpKeys * warp())});
    key += kWarpKeys * warp();
    if (shape().softcap > 0) cap_scores(shape(), scores);
    const int begin = query(0), end = query(count - 1) + 1;
    if (!sees_all(shape(), run, begin, end - begin, key, kWarpKeys)) {
      scores.for_each([&](float& x, int, int, int, int at, int column) {
        if (!sees(shape(), run, query(at), key + column)) x = -INFINITY;
      });
    }
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const float(&a)[4] = scores.at[i / 2][0], (&b)[4] = scores.at[i / 2][1];
      const int j = i % 2 * 2;
      float most = fmaxf(fmaxf(a[j], a[j + 1]), fmaxf(b[j], b[j + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      if (lane() % 4 == 0) memory.largest(row(i / 2, i % 2))[warp()] = most;
    }
  }

  // Turns scores into probabilities in shared memory and scales out; returns the factors of sum.
  __device__ void weigh(const Sums<kM, 2>& scores, float (&alphas)[kM][2]) {
    const float factor = shape().log2_factor;
    Tile<kKeys> weights = memory.weights();
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int m = i / 2, half = i % 2, j = 2 * half, at = row(m, half);
      const float4 others = *reinterpret_cast<const float4*>(memory.largest(at));
      float most = fmaxf(fmaxf(others.x, others.y), fmaxf(others.z, others.w));
      most = fmaxf(most, largest[m][half]);
      const SoftmaxStep step(largest[m][half], most, factor);
      const float(&a)[4] = scores.at[m][0], (&b)[4] = scores.at[m][1];
      const float a0 = step(a[j], factor), a1 = step(a[j + 1], factor);
      const float b0 = step(b[j], factor), b1 = step(b[j + 1], factor);
      std::uint8_t* to =
          weights.memory + at * Tile<kKeys>::kStride + (kWarpKeys * warp() + lane() % 4 * 2) * 2;
      *reinterpret_cast<std::uint32_t*>(to) = pack<T>(a0, a1);
      *reinterpret_cast<std::uint32_t*>(to + 16) = pack<T>(b0, b1);
      memory.sums(at)[warp()] = sum_of_4(a0, a1, b0, b1);
      largest[m][half] = most;
      alphas[m][half] = step.alpha;
#pragma unroll
      for (int n = 0; n < kWarpColumns / 8; ++n) {
        out.at[m][n][j] *= step.alpha;
        out.at[m][n][j + 1] *= step.alpha;
      }
    }
  }

  __device__ void add_values(Tile<kHead> values, const float (&alphas)[kM][2]) {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const float4 parts = *reinterpret_cast<const float4*>(memory.sums(row(i / 2, i % 2)));
      float& x = sum[i / 2][i % 2];
      x = fmaf(x, alphas[i / 2][i % 2], sum_of_4(parts.x, parts.y, parts.z, parts.w));
    }
#pragma unroll
    for (int key = 0; key < kKeys; key += 16) {
      std::uint32_t a[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) memory.weights().load_left(a[m], 16 * m, key);
#pragma unroll
      for (int n = 0; n < kWarpColumns / 8; n += 2) {
        std::uint32_t b[4];
        values.load_right_transposed(b, key, kWarpColumns * warp() + 8 * n);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          multiply_add<T>(out.at[m][n], a[m], b[0], b[1]);
          multiply_add<T>(out.at[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // Keys in range, which may be empty.
  __device__ void attend(Range range) {
    out.clear();
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) largest[i / 2][i % 2] = -INFINITY, sum[i / 2][i % 2] = 0;
    const int stages = params.stages, begin = range.begin / kKeys * kKeys;
    copy_queries();
    for (int i = 0; i < stages; ++i) start_step(range, begin + i * kKeys, i, i - 1);
    wait_but(stages - 1);
    __syncthreads();  // queries and the first keys have arrived
    hold_queries();
    Sums<kM, 2> scores;
    if (begin < range.end) score(scores, 0, begin);
    int stage = 0, previous = stages - 1;
    for (int key = begin; key < range.end; key += kKeys) {
      const int next = stage + 1 == stages ? 0 : stage + 1;
      wait_but(stages - 2);
      // These values and the next keys have arrived, all have written `largest`, and the previous
      // values and these keys may be overwritten.
      __syncthreads();
      float alphas[kM][2];
      weigh(scores, alphas);
      __syncthreads();  // all have written weights and sums
      if (key + kKeys < range.end) score(scores, next, key + kKeys);
      add_values(memory.values(stage), alphas);
      // Last, because the loads from shared memory above would queue behind these copies.
      start_step(range, key + stages * kKeys, stage, previous);
      previous = stage;
      stage = next;
    }
    wait_copies<0>();
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) sum[i / 2][i % 2] = sum_of_row(sum[i / 2][i % 2]);
  }

  // Writes the result over one split, of several or of all keys.
  __device__ void store(int split, bool whole) {
    const ForwardParams& forward = params.forward;
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int m = i / 2, half = i % 2, pair = first + row(m, half);
      if (row(m, half) >= count) continue;
      const std::int64_t at =
          whole ? out_index(shape(), run, kv_head, pair) : part_index(params, split, kv_head, pair);
      if (threadIdx.x % 4 == 0 && warp() == 0) {
        (whole ? forward.lse : params.part_lse)[at] =
            lse_of(largest[m][half], sum[m][half], shape().log2_factor);
      }
      const float inverse = inverse_of(sum[m][half]);
#pragma unroll
      for (int n = 0; n < kWarpColumns / 8; ++n) {
        const int column = kWarpColumns * warp() + 8 * n + lane() % 4 * 2;
        if (column >= shape().v_head_size) break;
        const std::int64_t to = at * shape().v_head_size + column;
        const float x = out.at[m][n][2 * half] * inverse, y = out.at[m][n][2 * half + 1] * inverse;
        if (whole) {
          *reinterpret_cast<std::uint32_t*>(static_cast<T*>(forward.out) + to) = pack<T>(x, y);
        } else {
          *reinterpret_cast<float2*>(params.part_out + to) = {x, y};
        }
      }
    }
  }
};

}  // namespace bev::cuda_attention
