// Flash decoding: few queries over many keys, paged or contiguous. With GQA a block takes the
// (query, head) pairs of a kv head, so that a key is read once. Keys arrive in tiles of 64 by
// cp.async, several stages ahead. For q k^T each of four warps takes 16 keys of a tile, for p v a
// quarter of the columns; q k^T of the next tile overlaps with p v of this one. The sums have the
// order of forward_kernel, hence its bits. If few runs leave the device idle, their keys are split
// (split-KV); the blocks of a cluster or a second kernel merge the splits.
#pragma once

#include <bit>

#include "backend/cuda/attention/attention_decode_block.cuh"

namespace bev::cuda_attention {

// Most splits that a cluster merges.
constexpr int kMostCluster = 8;

// Merges the splits of a cluster, of which the first `active` have keys: every active block has
// its sums in shared memory and merges a part of the rows and columns.
template <class T, class Tiling>
__device__ void merge_cluster(DecodeBlock<T, Tiling>& block, int split, int active) {
  constexpr int kHead = Tiling::kHead;
  const Shape& shape = block.shape();
  auto* sums = reinterpret_cast<float*>(block.memory.keys(0).memory);  // [kRows, kHead]
  float* statistics = sums + Tiling::kRows * kHead;                    // [kRows, 4]
  if (split < active) block.keep(sums, statistics);
  cluster_sync();
  const int steps = shape.v_head_size / 4, threads = active * Tiling::kThreads;
  for (int i = split * Tiling::kThreads + static_cast<int>(threadIdx.x);
       split < active && i < block.count * steps; i += threads) {
    const int row = i / steps, column = i % steps * 4;
    float4 parts[kMostCluster], states[kMostCluster];
    float most = -INFINITY, total = 0;
#pragma unroll
    for (int s = 0; s < kMostCluster; ++s) {
      states[s] = parts[s] = {-INFINITY, 0, 0, 0};
      if (s >= active) continue;
      states[s] = load_4_in(s, statistics + row * 4);
      parts[s] = load_4_in(s, sums + row * kHead + column);
      most = fmaxf(most, states[s].x);
    }
    float4 out{0, 0, 0, 0};
#pragma unroll
    for (int s = 0; s < kMostCluster; ++s) {
      if (s >= active) continue;
      const float weight = SoftmaxStep(states[s].x, most, shape.log2_factor).alpha;
      total = fmaf(weight, states[s].y, total);
      out = {fmaf(weight, parts[s].x, out.x), fmaf(weight, parts[s].y, out.y),
             fmaf(weight, parts[s].z, out.z), fmaf(weight, parts[s].w, out.w)};
    }
    const float inverse = inverse_of(total);
    const std::int64_t at = out_index(shape, block.run, block.kv_head, block.first + row);
    if (column == 0) block.params.forward.lse[at] = lse_of(most, total, shape.log2_factor);
    T* to = static_cast<T*>(block.params.forward.out) + at * shape.v_head_size + column;
    *reinterpret_cast<uint2*>(to) = {pack<T>(out.x * inverse, out.y * inverse),
                                     pack<T>(out.z * inverse, out.w * inverse)};
  }
  cluster_sync();  // shared memory has been read
}

// Grid: kv heads * pair tiles, splits, runs.
template <class T, class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads, 2)
    decode_kernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  const CurrentRun current = current_run(params.forward.runs, static_cast<int>(blockIdx.z));
  const AttentionRun& run = current.run;
  const int tile = static_cast<int>(blockIdx.x) % params.pair_tiles;
  const int kv_head = static_cast<int>(blockIdx.x) / params.pair_tiles;
  const int split = static_cast<int>(blockIdx.y), first = tile * Tiling::kRows;
  const int count = min(Tiling::kRows, run.q_count * params.forward.shape.group - first);
  if (count <= 0) return;
  const KeySplits splits = splits_of(params, run);
  const bool merges = params.in_cluster && splits.count > 1;  // equal in the cluster
  if (split >= splits.count && !merges) return;

  DecodeBlock<T, Tiling> block{params, run,    key_rows(params.forward, current), {memory}, first,
                               count,  kv_head};
  if (split < splits.count) block.attend(splits.at(split));
  if (merges) {
    merge_cluster(block, split, splits.count);
  } else {
    block.store(split, splits.count == 1);
  }
}

// Merges the splits, one warp per pair. Grid: kv heads, pairs / kMergeWarps, runs.
constexpr int kMergeWarps = 4, kMostSplits = 128;

template <class T>
__global__ void __launch_bounds__(32 * kMergeWarps)
    merge_splits_kernel(const __grid_constant__ DecodeParams params) {
  const ForwardParams& forward = params.forward;
  const Shape& shape = forward.shape;
  const CurrentRun current = current_run(forward.runs, static_cast<int>(blockIdx.z));
  const int kv_head = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % 32);
  const int pair = static_cast<int>(blockIdx.y * kMergeWarps + threadIdx.x / 32);
  if (pair >= current.run.q_count * shape.group) return;
  const int count = splits_of(params, current.run).count;
  if (count == 1) return;

  // Weights of splits lane, lane + 32, ...
  float weights[kMostSplits / 32], most = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kMostSplits / 32; ++i) {
    const int split = 32 * i + lane;
    weights[i] =
        split < count ? params.part_lse[part_index(params, split, kv_head, pair)] : -INFINITY;
    most = fmaxf(most, weights[i]);
  }
#pragma unroll
  for (int step = 1; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  const float shift = most == -INFINITY ? 0 : most;
#pragma unroll
  for (int i = 0; i < kMostSplits / 32; ++i) sum += weights[i] = expf(weights[i] - shift);
#pragma unroll
  for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  const float inverse = inverse_of(sum);
  const std::int64_t at = out_index(shape, current.run, kv_head, pair);
  if (lane == 0) forward.lse[at] = most + logf(sum);  // -infinity if no key is visible

  for (int step = 0; step < shape.v_head_size; step += 128) {
    const int column = step + 4 * lane;
    const bool inside = column < shape.v_head_size;
    float4 out{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < kMostSplits / 32; ++i) {
#pragma unroll 4
      for (int split = 32 * i; split < min(count, 32 * i + 32); ++split) {
        const float weight = __shfl_sync(~0u, weights[i], split % 32);
        if (inside) {
          const float4 part = *reinterpret_cast<const float4*>(
              params.part_out + part_index(params, split, kv_head, pair) * shape.v_head_size +
              column);
          out = {fmaf(weight, part.x, out.x), fmaf(weight, part.y, out.y),
                 fmaf(weight, part.z, out.z), fmaf(weight, part.w, out.w)};
        }
      }
    }
    if (!inside) continue;
    *reinterpret_cast<uint2*>(static_cast<T*>(forward.out) + at * shape.v_head_size + column) = {
        pack<T>(out.x * inverse, out.y * inverse), pack<T>(out.z * inverse, out.w * inverse)};
  }
}

// cp.async stages for two blocks per SM, or for one if the tiles are too large.
template <class Tiling>
int decode_stages(std::size_t shared_bytes) {
  for (std::size_t blocks_per_processor : {2, 1}) {
    for (int stages = 4; stages >= 2; --stages) {
      const std::size_t block = static_cast<std::size_t>(Tiling::bytes(stages)) + 1024;
      if (blocks_per_processor * block <= shared_bytes + 1024) return stages;
    }
  }
  return 2;
}

// True if the kernel was compiled for clusters.
template <class T, class Tiling>
bool has_clusters(const CudaQueue& queue) {
  constexpr int kHopper = 90;
  if (queue.arch() < kHopper) return false;
  cudaFuncAttributes attributes;
  check_cuda(
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&decode_kernel<T, Tiling>)),
      "attention: attributes");
  return attributes.ptxVersion >= kHopper;
}

// Chooses how keys are split. A cluster of 8 suffices unless it leaves most of the device idle for
// long.
template <class T, class Tiling>
void split_keys(const CudaQueue& queue, DecodeParams& params, const RunChunk& chunk,
                int split_blocks, bool may_split) {
  constexpr int kFewKeys = 2048;
  const int processors = queue.multiprocessors();
  choose_splits(params, chunk, split_blocks,
                {.busy_blocks = processors * 3 / 2,
                 .least_keys = kTileKeys,
                 .most_splits = may_split ? kMostSplits : 1});
  const bool enough = params.splits <= kMostCluster || chunk.most_keys <= kFewKeys ||
                      3 * kMostCluster * split_blocks >= processors;
  params.in_cluster = params.splits > 1 && enough && has_clusters<T, Tiling>(queue);
  if (!params.in_cluster) return;
  params.splits =
      std::min(kMostCluster, static_cast<int>(std::bit_ceil(static_cast<unsigned>(params.splits))));
  if (params.busy_splits > 1) params.busy_splits = params.splits;
}

template <class T, class Tiling>
bool launch_decode(CudaQueue& queue, DecodeParams& params, const AttentionShape& shape,
                   bool may_split) {
  if (std::size_t{Tiling::bytes(2)} > queue.shared_memory()) return false;
  const auto keep = [&](const AttentionRun& run) { return is_decode(shape, run); };
  for_launches(shape.runs, params.forward.runs, keep, [&](const RunChunk& chunk) {
    params.pairs = chunk.most_queries * params.forward.shape.group;
    params.pair_tiles = ceil_div(params.pairs, Tiling::kRows);
    if (params.pairs == 0) return;
    const int across = static_cast<int>(shape.kv_heads) * params.pair_tiles;
    split_keys<T, Tiling>(queue, params, chunk, across * chunk.count, may_split);
    params.stages = decode_stages<Tiling>(queue.shared_memory());
    const bool merges = params.splits > 1 && !params.in_cluster;
    if (merges) take_parts(queue, params, chunk.count);
    launch<DecodeParams>(decode_kernel<T, Tiling>,
                         dim3(blocks(across), blocks(params.splits), blocks(chunk.count)),
                         Tiling::kThreads, Tiling::bytes(params.stages), queue, params,
                         params.in_cluster ? params.splits : 1);
    if (!merges) return;
    launch<DecodeParams>(merge_splits_kernel<T>,
                         dim3(blocks(shape.kv_heads), blocks(ceil_div(params.pairs, kMergeWarps)),
                              blocks(chunk.count)),
                         32 * kMergeWarps, 0, queue, params);
  });
  return true;
}

template <class T, int kM>
bool decode_rows(CudaQueue& queue, DecodeParams& params, const AttentionShape& shape,
                 bool may_split) {
  const std::int64_t head = largest_head(shape);
  auto with = [&](auto launch) { return launch(queue, params, shape, may_split); };
  if (head <= 64) return with(launch_decode<T, DecodeTiling<64, kM>>);
  if (head <= 128) return with(launch_decode<T, DecodeTiling<128, kM>>);
  if (head <= 192) return with(launch_decode<T, DecodeTiling<192, kM>>);
  return with(launch_decode<T, DecodeTiling<256, kM>>);
}

// One tile of 16 rows if it holds the pairs of every run.
template <class T>
bool decode_of(CudaQueue& queue, DecodeParams& params, const AttentionShape& shape,
               bool may_split) {
  int most = 0;
  for (const AttentionRun& run : shape.runs) {
    if (is_decode(shape, run)) most = std::max(most, run.q_count * params.forward.shape.group);
  }
  if (most <= 16) return decode_rows<T, 1>(queue, params, shape, may_split);
  return decode_rows<T, 2>(queue, params, shape, may_split);
}

}  // namespace bev::cuda_attention
