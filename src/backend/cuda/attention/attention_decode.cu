// Flash decoding (split-KV): few queries over many keys. With GQA a block takes all (query, head)
// pairs of a kv head, so that a key is read once, and a split of the keys, so that few sequences
// fill the device. If there are several splits, a second kernel merges them.
#include "backend/cuda/attention/attention_forward.cuh"
#include "backend/cuda/attention/attention_splits.cuh"

namespace bev::cuda_attention {

namespace {

constexpr int kWarps = 8;  // per block of the merge kernel

template <int kHead>
using DecodeTiling = ForwardTiling<kHead, 1, 64>;

// Index of a (query, head) pair in lse, and of its row in out.
__device__ std::int64_t out_index(const Shape& shape, const AttentionRun& run, int kv_head,
                                  int pair) {
  const int head = kv_head * shape.group + pair % shape.group;
  return (std::int64_t{run.q_begin} + pair / shape.group) * shape.q_heads + head;
}

// Grid: kv heads, splits, runs.
template <class T, class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads, 2)
    decode_kernel(const __grid_constant__ DecodeParams params) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  const Shape& shape = params.forward.shape;
  const AttentionRun run = current_run(params.forward);
  const int kv_head = static_cast<int>(blockIdx.x), split = static_cast<int>(blockIdx.y);
  const int count = run.q_count * shape.group;
  if (count == 0) return;

  using Block = ForwardBlock<T, Tiling, true, GroupRows>;
  constexpr int kQueryBytes = Tiling::kQueryBytes, kKeyBytes = Tiling::kKeyBytes;
  Block block{params.forward,
              run,
              {shape.group, kv_head * shape.group},
              count,
              kv_head,
              {memory},
              {memory + kQueryBytes},
              {memory + kQueryBytes + kKeyBytes}};
  block.attend(split_range(visible_keys(shape, run, 0, run.q_count - 1), split, params.splits,
                           Tiling::kKeys));

  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool whole = params.splits == 1;  // no merge needed
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int pair = Block::warp_row() + 8 * half + lane / 4;
    if (pair >= count) continue;
    const std::int64_t at =
        whole ? out_index(shape, run, kv_head, pair) : part_index(params, split, kv_head, pair);
    float* lse = whole ? params.forward.lse : params.part_lse;
    if (lane % 4 == 0) lse[at] = block.softmax.lse(0, half, shape.log2_factor);
    const float inverse = block.softmax.inverse(0, half);
#pragma unroll
    for (int n = 0; n < Tiling::kHead / 8; ++n) {
      const int column = 8 * n + lane % 4 * 2;
      if (column >= shape.v_head_size) break;
      const float first = block.out.at[0][n][2 * half] * inverse,
                  second = block.out.at[0][n][2 * half + 1] * inverse;
      const std::int64_t to = at * shape.v_head_size + column;
      if (whole) {
        *reinterpret_cast<std::uint32_t*>(static_cast<T*>(params.forward.out) + to) =
            pack<T>(first, second);
      } else {
        *reinterpret_cast<float2*>(params.part_out + to) = {first, second};
      }
    }
  }
}

// Merges the splits, one warp per pair. Grid: kv heads, pairs / kWarps, runs.
template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    join_splits_kernel(const __grid_constant__ DecodeParams params) {
  const ForwardParams& forward = params.forward;
  const Shape& shape = forward.shape;
  const AttentionRun& run = forward.runs.at[blockIdx.z];
  const int kv_head = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x % 32);
  const int pair = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
  if (pair >= run.q_count * shape.group) return;

  float most = -INFINITY, sum = 0;
  for (int split = 0; split < params.splits; ++split) {
    most = fmaxf(most, params.part_lse[part_index(params, split, kv_head, pair)]);
  }
  const float shift = most == -INFINITY ? 0 : most;
  for (int split = 0; split < params.splits; ++split) {
    sum += expf(params.part_lse[part_index(params, split, kv_head, pair)] - shift);
  }
  const std::int64_t at = out_index(shape, run, kv_head, pair);
  if (lane == 0) forward.lse[at] = most + logf(sum);  // -infinity if no key is visible
  for (int column = lane; column < shape.v_head_size; column += 32) {
    float out = 0;
    for (int split = 0; split < params.splits; ++split) {
      const std::int64_t part = part_index(params, split, kv_head, pair);
      const float weight = expf(params.part_lse[part] - shift);
      if (weight > 0) out += weight * params.part_out[part * shape.v_head_size + column];
    }
    static_cast<T*>(forward.out)[at * shape.v_head_size + column] =
        narrow<T>(sum == 0 ? 0 : out / sum);
  }
}

template <class T, class Tiling>
void launch_decode(CudaQueue& queue, DecodeParams& params, const AttentionShape& shape) {
  for_run_chunks(shape.runs, params.forward.runs, [&](const RunChunk& chunk) {
    constexpr int kBlocksPerProcessor = 4, kLeastKeys = 256;
    const int busy = static_cast<int>(shape.kv_heads) * chunk.count;
    params.forward.first_run = chunk.begin;
    params.pairs = chunk.most_queries * params.forward.shape.group;
    params.splits = std::clamp(ceil_div(kBlocksPerProcessor * queue.multiprocessors(), busy), 1,
                               std::max(1, ceil_div(chunk.most_keys, kLeastKeys)));
    take_parts(queue, params, chunk.count);
    launch<DecodeParams>(decode_kernel<T, Tiling>,
                         dim3(blocks(shape.kv_heads), blocks(params.splits), blocks(chunk.count)),
                         Tiling::kThreads, Tiling::kSharedBytes, queue, params);
    if (params.splits == 1) return;
    launch<DecodeParams>(
        join_splits_kernel<T>,
        dim3(blocks(shape.kv_heads), blocks(ceil_div(params.pairs, kWarps)), blocks(chunk.count)),
        32 * kWarps, 0, queue, params);
  });
}

template <class T>
void decode_of(CudaQueue& queue, DecodeParams& params, const AttentionShape& shape) {
  if (largest_head(shape) <= 64) return launch_decode<T, DecodeTiling<64>>(queue, params, shape);
  if (largest_head(shape) <= 128) return launch_decode<T, DecodeTiling<128>>(queue, params, shape);
  launch_decode<T, DecodeTiling<256>>(queue, params, shape);
}

}  // namespace

bool is_decode(const AttentionShape& shape) {
  const std::int64_t group = shape.q_heads / shape.kv_heads;
  return std::ranges::all_of(shape.runs, [&](const AttentionRun& run) {
    return run.q_count * group <= DecodeTiling<64>::kRows;
  });
}

void decode(CudaQueue& queue, const ForwardParams& forward, const AttentionShape& shape) {
  DecodeParams params;
  params.forward = forward;
  if (shape.dtype == Dtype::kBf16) return decode_of<Bf16>(queue, params, shape);
  decode_of<F16>(queue, params, shape);
}

}  // namespace bev::cuda_attention
