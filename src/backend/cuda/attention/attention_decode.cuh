// Flash decoding: few queries over many keys, paged or contiguous. With GQA a block takes the
// (query, head) pairs of a kv head, so that a key is read once. Keys arrive in tiles of 64 by
// cp.async, several stages ahead. For q k^T each of four warps takes 16 keys of a tile, for p v a
// quarter of the columns; q k^T of the next tile overlaps with p v of this one. The sums have the
// order of forward_kernel, hence its bits. If few runs leave the device idle, their keys are split
// (split-KV), and a second kernel merges the splits.
#pragma once

#include "backend/cuda/attention/attention_decode_block.cuh"
#include "backend/cuda/device/launch_overlap.cuh"

namespace bev::cuda_attention {

// Grid: kv heads * pair tiles, splits, runs.
template <class T, class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads, 2)
    decode_kernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  cuda::join_kernel_chain();
  const CurrentRun current = current_run(params.forward.runs, static_cast<int>(blockIdx.z));
  const AttentionRun& run = current.run;
  const int tile = static_cast<int>(blockIdx.x) % params.pair_tiles;
  const int kv_head = static_cast<int>(blockIdx.x) / params.pair_tiles;
  const int split = static_cast<int>(blockIdx.y), first = tile * Tiling::kRows;
  const int count = min(Tiling::kRows, run.q_count * params.forward.shape.group - first);
  if (count <= 0) return;
  const KeySplits splits = splits_of(params, run);
  if (split >= splits.count) return;

  DecodeBlock<T, Tiling> block{params, run,    key_rows(params.forward, current), {memory}, first,
                               count,  kv_head};
  block.attend(splits.at(split));
  block.store(split, splits.count == 1);
}

// Merges the splits, one warp per pair. Grid: kv heads, pairs / kMergeWarps, runs.
constexpr int kMergeWarps = 4, kMostSplits = 128;

template <class T>
__global__ void __launch_bounds__(32 * kMergeWarps)
    merge_splits_kernel(const __grid_constant__ DecodeParams params) {
  cuda::join_kernel_chain();
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

// Like launch(), for kernels that begin with join_kernel_chain().
inline void launch_in_chain(Kernel<DecodeParams> kernel, dim3 grid, int threads,
                            std::size_t shared_bytes, const CudaQueue& queue,
                            const DecodeParams& params) {
  if (!prepare_launch(kernel, grid, shared_bytes)) return;
  cuda::launch_overlapped(queue, "attention", kernel, grid, static_cast<unsigned>(threads),
                          shared_bytes, params);
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
    choose_splits(params, chunk, across * chunk.count,
                  {.busy_blocks = queue.multiprocessors() * 3 / 2,
                   .least_keys = kTileKeys,
                   .most_splits = may_split ? kMostSplits : 1});
    params.stages = decode_stages<Tiling>(queue.shared_memory());
    if (params.splits > 1) take_parts(queue, params, chunk.count);
    launch_in_chain(decode_kernel<T, Tiling>,
                    dim3(blocks(across), blocks(params.splits), blocks(chunk.count)),
                    Tiling::kThreads, Tiling::bytes(params.stages), queue, params);
    if (params.splits == 1) return;
    launch_in_chain(merge_splits_kernel<T>,
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
