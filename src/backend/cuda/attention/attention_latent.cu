// MLA decoding with absorbed weights, split-KV: one latent key head for all queries (multi-query),
// too wide for the registers of one warp, whose first columns are also the value. A block takes up
// to 32 (query, head) pairs and a split of the keys; a key tile is read once and serves both q k^T,
// for which each warp takes 8 keys, and p v, for which it takes 128 columns. A second kernel merges
// the splits.
#include "backend/cuda/attention/attention_splits.cuh"
#include "backend/cuda/attention/attention_tiles.cuh"

namespace bev::cuda_attention {

namespace {

constexpr int kColumns = 576, kValueColumns = 512;  // upper limits for keys and values
constexpr int kKeys = 32;                           // per tile
constexpr int kBlockWarps = 4, kThreads = 32 * kBlockWarps;
constexpr int kWarpKeys = kKeys / kBlockWarps, kWarpColumns = kValueColumns / kBlockWarps;
static_assert(kWarpKeys == 8);

template <int kM>
struct LatentMemory {
  static constexpr int kRows = 16 * kM;
  static constexpr int kQueries = Tile<kColumns>::bytes(kRows),
                       kTile = Tile<kColumns>::bytes(kKeys);
  static constexpr int kWeights = Tile<kKeys>::bytes(kRows);
  static constexpr int kStatistics = kRows * kBlockWarps * static_cast<int>(sizeof(float));
  static constexpr int kBytes = kQueries + 2 * kTile + kWeights + kStatistics;

  std::uint8_t* at;

  __device__ Tile<kColumns> queries() const { return {at}; }
  __device__ Tile<kColumns> keys(int stage) const { return {at + kQueries + stage * kTile}; }
  __device__ Tile<kKeys> weights() const { return {at + kQueries + 2 * kTile}; }
  // One value per row and warp.
  __device__ float* statistics() const {
    return reinterpret_cast<float*>(at + kQueries + 2 * kTile + kWeights);
  }
};

// Sums of a block. Rows and columns of a lane are laid out as in attention_mma.cuh.
template <class T, int kM>
struct LatentBlock {
  const Shape& shape;
  const AttentionRun& run;
  LatentMemory<kM> memory;
  int first;  // pair index of the first row
  Sums<kM, kWarpColumns / 8> out;
  float largest[kM][2], sum[kM][2];

  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ static int warp() { return static_cast<int>(threadIdx.x / 32); }
  __device__ static int row(int m, int half) { return 16 * m + 8 * half + lane() / 4; }

  __device__ void clear() {
    out.clear();
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) largest[i / 2][i % 2] = -INFINITY, sum[i / 2][i % 2] = 0;
  }

  // Scores for the keys of the warp, in two independent chains of mma to hide their latency.
  __device__ void multiply(Tile<kColumns> keys, float (&scores)[kM][4]) const {
    float odd[kM][4];
#pragma unroll
    for (int i = 0; i < 4 * kM; ++i) scores[i / 4][i % 4] = odd[i / 4][i % 4] = 0;
#pragma unroll 6
    for (int column = 0; column < kColumns; column += 32) {
      std::uint32_t b[4];
      load_matrices(b, keys.at(kWarpKeys * warp() + lane() % 8, column + lane() / 8 * 8));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        std::uint32_t a[4];
        memory.queries().load_left(a, 16 * m, column);
        multiply_add<T>(scores[m], a, b[0], b[1]);
        memory.queries().load_left(a, 16 * m, column + 16);
        multiply_add<T>(odd[m], a, b[2], b[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4 * kM; ++i) scores[i / 4][i % 4] += odd[i / 4][i % 4];
  }

  __device__ void mask(float (&scores)[kM][4], int key) const {
    const float factor = shape.softcap > 0 ? shape.scale / shape.softcap : 0;
#pragma unroll
    for (int i = 0; i < 4 * kM; ++i) {
      float& x = scores[i / 4][i % 4];
      if (shape.softcap > 0) x = fast_tanh(x * factor);
      const int query = (first + row(i / 4, i % 4 / 2)) / shape.group;
      if (!sees(shape, run, query, key + kWarpKeys * warp() + lane() % 4 * 2 + i % 2)) {
        x = -INFINITY;
      }
    }
  }

  // Writes a value per row over the warp's keys, which is equal in the four lanes of the row.
  __device__ void share(const float (&values)[kM][2]) const {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      if (lane() % 4 == 0) {
        memory.statistics()[row(i / 2, i % 2) * kBlockWarps + warp()] = values[i / 2][i % 2];
      }
    }
  }

  __device__ void share_largest(const float (&scores)[kM][4]) const {
    float most[kM][2];
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const float* x = &scores[i / 2][i % 2 * 2];
      float& y = most[i / 2][i % 2];
      y = fmaxf(x[0], x[1]);
      y = fmaxf(y, __shfl_xor_sync(~0u, y, 1));
      y = fmaxf(y, __shfl_xor_sync(~0u, y, 2));
    }
    share(most);
  }

  // Converts scores to probabilities in shared memory, after all warps have shared their row
  // maxima.
  __device__ void store_weights(const float (&scores)[kM][4]) {
    Tile<kKeys> weights = memory.weights();
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int m = i / 2, half = i % 2;
      const float* shared = memory.statistics() + row(m, half) * kBlockWarps;
      float most = largest[m][half];
#pragma unroll
      for (int w = 0; w < kBlockWarps; ++w) most = fmaxf(most, shared[w]);
      const SoftmaxStep step(largest[m][half], most, shape.log2_factor);
      const float p0 = step(scores[m][2 * half], shape.log2_factor);
      const float p1 = step(scores[m][2 * half + 1], shape.log2_factor);
      largest[m][half] = most;
      sum[m][half] = sum[m][half] * step.alpha + p0 + p1;
#pragma unroll
      for (int n = 0; n < kWarpColumns / 8; ++n) {
        out.at[m][n][2 * half] *= step.alpha;
        out.at[m][n][2 * half + 1] *= step.alpha;
      }
      *reinterpret_cast<std::uint32_t*>(weights.memory + row(m, half) * Tile<kKeys>::kStride +
                                        (kWarpKeys * warp() + lane() % 4 * 2) * 2) =
          pack<T>(p0, p1);
    }
  }

  __device__ void add_values(Tile<kColumns> keys) {
#pragma unroll
    for (int key = 0; key < kKeys; key += 16) {
      std::uint32_t a[kM][4];
#pragma unroll
      for (int m = 0; m < kM; ++m) memory.weights().load_left(a[m], 16 * m, key);
#pragma unroll
      for (int n = 0; n < kWarpColumns / 8; n += 2) {
        std::uint32_t b[4];
        keys.load_right_transposed(b, key, kWarpColumns * warp() + 8 * n);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          multiply_add<T>(out.at[m][n], a[m], b[0], b[1]);
          multiply_add<T>(out.at[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // Writes the result over one split, of several or of all keys.
  __device__ void store(const DecodeParams& params, int split, bool whole, int count) {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) sum[i / 2][i % 2] = sum_of_row(sum[i / 2][i % 2]);
    share(sum);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int m = i / 2, half = i % 2;
      if (row(m, half) >= count) continue;
      float total = 0;
#pragma unroll
      for (int w = 0; w < kBlockWarps; ++w) {
        total += memory.statistics()[row(m, half) * kBlockWarps + w];
      }
      const int pair = first + row(m, half);
      const std::int64_t at =
          whole ? out_index(shape, run, 0, pair) : part_index(params, split, 0, pair);
      if (warp() == 0 && lane() % 4 == 0) {
        (whole ? params.forward.lse : params.part_lse)[at] =
            lse_of(largest[m][half], total, shape.log2_factor);
      }
      const float inverse = inverse_of(total);
#pragma unroll
      for (int n = 0; n < kWarpColumns / 8; ++n) {
        const int column = kWarpColumns * warp() + 8 * n + lane() % 4 * 2;
        if (column >= shape.v_head_size) break;
        const std::int64_t to = at * shape.v_head_size + column;
        const float x = out.at[m][n][2 * half] * inverse, y = out.at[m][n][2 * half + 1] * inverse;
        if (whole) {
          *reinterpret_cast<std::uint32_t*>(static_cast<T*>(params.forward.out) + to) =
              pack<T>(x, y);
        } else {
          *reinterpret_cast<float2*>(params.part_out + to) = {x, y};
        }
      }
    }
  }
};

// Grid: pair tiles, splits, runs.
template <class T, int kM>
__global__ void __launch_bounds__(kThreads, 2)
    latent_kernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(16) std::uint8_t shared[];
  constexpr int kRows = LatentMemory<kM>::kRows;
  const Shape& shape = params.forward.shape;
  const CurrentRun current = current_run(params.forward.runs, static_cast<int>(blockIdx.z));
  const AttentionRun& run = current.run;
  const int first = static_cast<int>(blockIdx.x) * kRows, split = static_cast<int>(blockIdx.y);
  const int count = min(kRows, run.q_count * shape.group - first);
  if (count <= 0) return;
  const KeySplits splits = splits_of(params, run);
  if (split >= splits.count) return;

  LatentBlock<T, kM> block{shape, run, {shared}, first};
  block.clear();
  copy_tile<kRows, kThreads>(block.memory.queries(), count, shape.head_size, [&](int row) {
    const int pair = first + row;
    return static_cast<const T*>(params.forward.q) +
           (std::int64_t{run.q_begin} + pair / shape.group) * shape.q_stride +
           pair % shape.group * shape.head_size;
  });
  const Range keys = splits.at(split);
  const KeyRows rows = key_rows(params.forward, current);
  const auto start_tile = [&](int key, int stage) {
    if (key < keys.end) {
      const T* from = static_cast<const T*>(params.forward.k);
      copy_rows<kKeys, kThreads>(block.memory.keys(stage), {keys.begin - key, keys.end - key},
                                 shape.head_size,
                                 [&](int row) { return from + rows(key + row) * shape.k_stride; });
    }
    commit_copies();
  };
  const int begin = keys.begin / kKeys * kKeys;
  start_tile(begin, 0);
  for (int key = begin, stage = 0; key < keys.end; key += kKeys, stage ^= 1) {
    start_tile(key + kKeys, stage ^ 1);
    wait_copies<1>();
    __syncthreads();
    float scores[kM][4];
    block.multiply(block.memory.keys(stage), scores);
    block.mask(scores, key);
    block.share_largest(scores);
    __syncthreads();
    block.store_weights(scores);
    __syncthreads();
    block.add_values(block.memory.keys(stage));
    __syncthreads();  // the tile may be overwritten
  }
  wait_copies<0>();
  block.store(params, split, splits.count == 1, count);
}

// Merges the splits, one block per pair: each group of kJoinLanes threads adds every kJoinGroups-th
// split, four columns per thread. Grid: pairs, 1, runs.
constexpr int kJoinLanes = kValueColumns / 4, kJoinGroups = 4;
constexpr int kMostSplits = 512;

template <class T>
__global__ void __launch_bounds__(kJoinLanes* kJoinGroups)
    join_latents_kernel(const __grid_constant__ DecodeParams params) {
  __shared__ float weights[kMostSplits], total;
  __shared__ float4 sums[kJoinGroups][kJoinLanes];
  const ForwardParams& forward = params.forward;
  const Shape& shape = forward.shape;
  const CurrentRun current = current_run(forward.runs, static_cast<int>(blockIdx.z));
  const AttentionRun& run = current.run;
  const int pair = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  if (pair >= run.q_count * shape.group) return;
  const int splits = splits_of(params, run).count;
  if (splits == 1) return;
  const std::int64_t at = out_index(shape, run, 0, pair);

  if (thread < 32) {
    float most = -INFINITY, sum = 0;
    for (int split = thread; split < splits; split += 32) {
      weights[split] = params.part_lse[part_index(params, split, 0, pair)];
      most = fmaxf(most, weights[split]);
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
    const float shift = most == -INFINITY ? 0 : most;
    for (int split = thread; split < splits; split += 32) {
      weights[split] = expf(weights[split] - shift);
      sum += weights[split];
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (thread == 0) {
      forward.lse[at] = most + logf(sum);  // -infinity if no key is visible
      total = sum;
    }
  }
  __syncthreads();
  const int group = thread / kJoinLanes, column = thread % kJoinLanes * 4;
  float4 out{0, 0, 0, 0};
  if (column < shape.v_head_size) {
    const float* parts = params.part_out + column;
#pragma unroll 8
    for (int split = group; split < splits; split += kJoinGroups) {
      const float weight = weights[split];
      const float4 part = *reinterpret_cast<const float4*>(
          parts + part_index(params, split, 0, pair) * shape.v_head_size);
      out.x = fmaf(weight, part.x, out.x);
      out.y = fmaf(weight, part.y, out.y);
      out.z = fmaf(weight, part.z, out.z);
      out.w = fmaf(weight, part.w, out.w);
    }
  }
  sums[group][thread % kJoinLanes] = out;
  __syncthreads();
  if (group > 0 || column >= shape.v_head_size) return;
  for (int other = 1; other < kJoinGroups; ++other) {
    const float4 more = sums[other][thread];
    out = {out.x + more.x, out.y + more.y, out.z + more.z, out.w + more.w};
  }
  const float inverse = total == 0 ? 0 : 1 / total;
  *reinterpret_cast<uint2*>(static_cast<T*>(forward.out) + at * shape.v_head_size + column) = {
      pack<T>(out.x * inverse, out.y * inverse), pack<T>(out.z * inverse, out.w * inverse)};
}

template <class T, int kM>
void launch_latent(CudaQueue& queue, DecodeParams& params, const RunChunk& chunk) {
  const int tiles = ceil_div(params.pairs, LatentMemory<kM>::kRows);
  choose_splits(params, chunk, tiles * chunk.count,
                {.busy_blocks = 2 * queue.multiprocessors(),
                 .least_keys = 2 * kTileKeys,
                 .most_splits = kMostSplits});
  if (params.splits > 1) take_parts(queue, params, chunk.count);
  launch<DecodeParams>(latent_kernel<T, kM>,
                       dim3(blocks(tiles), blocks(params.splits), blocks(chunk.count)), kThreads,
                       LatentMemory<kM>::kBytes, queue, params);
  if (params.splits == 1) return;
  launch<DecodeParams>(join_latents_kernel<T>, dim3(blocks(params.pairs), 1, blocks(chunk.count)),
                       kJoinLanes * kJoinGroups, 0, queue, params);
}

template <class T>
void latent_of(CudaQueue& queue, DecodeParams& params, const AttentionShape& shape) {
  const auto keep = [&](const AttentionRun& run) { return is_latent_decode(shape, run); };
  for_launches(shape.runs, params.forward.runs, keep, [&](const RunChunk& chunk) {
    params.pairs = chunk.most_queries * params.forward.shape.group;
    if (params.pairs == 0) return;
    const bool wide = LatentMemory<2>::kBytes <= queue.shared_memory();
    if (params.pairs <= LatentMemory<1>::kRows || !wide) {
      launch_latent<T, 1>(queue, params, chunk);
    } else {
      launch_latent<T, 2>(queue, params, chunk);
    }
  });
}

}  // namespace

bool has_latent_decode(const AttentionShape& shape, bool values_in_keys) {
  return values_in_keys && shape.kv_heads == 1 && shape.rule.dropout == 0 &&
         shape.k_stride == shape.v_stride && shape.head_size <= kColumns &&
         shape.v_head_size <= std::min<std::int64_t>(shape.head_size, kValueColumns);
}

bool is_latent_decode(const AttentionShape& shape, const AttentionRun& run) {
  constexpr std::int64_t kMostPairs = 1024;
  return run.q_count * shape.q_heads <= kMostPairs;
}

void latent_decode(CudaQueue& queue, const ForwardParams& forward, const AttentionShape& shape) {
  DecodeParams params;
  params.forward = forward;
  if (shape.dtype == Dtype::kBf16) return latent_of<Bf16>(queue, params, shape);
  latent_of<F16>(queue, params, shape);
}

}  // namespace bev::cuda_attention
