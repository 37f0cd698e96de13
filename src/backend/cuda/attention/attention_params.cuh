// Parameters of the attention kernels. Runs that are in host memory are passed as a kernel
// parameter, kRunsPerLaunch at a time, so that a launch needs no host-to-device copy and can be
// captured into a CUDA graph.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "backend/cuda/runtime/queue.h"
#include "base/divide.h"
#include "kernels/attention.h"

namespace bev::cuda_attention {

constexpr int kMaxHeadSize = 256;
constexpr int kWideHeadSize = 1024;  // limit of plain_forward
constexpr int kRunsPerLaunch = 96;
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

struct Shape {
  int q_heads = 0, kv_heads = 0, group = 0;
  int head_size = 0, v_head_size = 0;  // of q and k; of v and out
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0;
  // A query at key index i sees key j if lower <= i - j <= upper.
  int lower = 0, upper = 0;
  int chunk = 0;  // chunked windows: both also lie in the same chunk of so many; 0: sliding
  float scale = 1, softcap = 0;
  // Factor from q.k (with softcap: from its tanh) to the score in units of log2.
  float log2_factor = 0;
  bool dropped = false;
  float keep_factor = 1;             // 1 / (1 - p)
  std::uint32_t keep_threshold = 0;  // an element is kept if (word >> 9) >= keep_threshold
  RandomRows random;                 // its stream is that of the first head
};

struct Runs {
  AttentionRun at[kRunsPerLaunch];
};

// A run of a launch; `index` is that in the call.
struct ListedRun {
  std::int32_t q_begin, q_count;
  std::int64_t k_begin;
  std::int32_t k_count, offset, key_position, index;
};

// The runs of a launch: read from device memory (a range of those of the call, or any of them), or
// copies.
struct LaunchRuns {
  static constexpr int kMostIndices =
      kRunsPerLaunch * int{sizeof(ListedRun) / sizeof(std::int32_t)};

  const AttentionRun* device = nullptr;  // of the call; null: at
  bool is_range = false;                 // device runs first, first + 1, ...
  std::int32_t first = 0;
  union {
    ListedRun at[kRunsPerLaunch];
    std::int32_t indices[kMostIndices];  // of device runs that are not a range
  };
};

// Block tables of paged keys; without a table keys are contiguous.
struct BlockTables {
  const std::int32_t* table = nullptr;
  std::int64_t stride = 0;
  int shift = 0;  // log2 of the keys of a block
};

struct ForwardParams {
  Shape shape;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  BlockTables tables;
  LaunchRuns runs;
};

// Flash decoding: few queries over many keys, in splits (attention_splits.cuh).
struct DecodeParams {
  ForwardParams forward;
  float *part_out = nullptr, *part_lse = nullptr;
  int splits = 1;       // of the grid
  int busy_splits = 1;  // that make the device busy, at most `splits`
  int pairs = 0;        // most (query, head) pairs of any run, per kv head
  int pair_tiles = 1;   // of the grid
  int stages = 2;       // of cp.async
};

struct MergeParams {
  std::int64_t q_heads = 0, head_size = 0;  // of out
  float *out = nullptr, *lse = nullptr;
  const void* part_out = nullptr;
  const float* part_lse = nullptr;
  Runs runs;
};

struct BackwardParams {
  Shape shape;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  const void *out = nullptr, *dout = nullptr;
  const float* lse = nullptr;
  float* delta = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  Runs runs;
};

// Number of runs of a launch and their largest counts.
struct RunChunk {
  int count = 0;
  int most_queries = 0, most_keys = 0;
};

inline void count_run(RunChunk& chunk, const AttentionRun& run) {
  ++chunk.count;
  chunk.most_queries = std::max(chunk.most_queries, run.q_count);
  chunk.most_keys = std::max(chunk.most_keys, run.k_count);
}

// Calls body(chunk) for each chunk of runs, with `table` filled.
template <class Body>
void for_run_chunks(std::span<const AttentionRun> runs, Runs& table, const Body& body) {
  for (std::size_t begin = 0; begin < runs.size(); begin += kRunsPerLaunch) {
    RunChunk chunk;
    for (const AttentionRun& run :
         runs.subspan(begin, std::min<std::size_t>(kRunsPerLaunch, runs.size() - begin))) {
      table.at[chunk.count] = run;
      count_run(chunk, run);
    }
    body(chunk);
  }
}

// Calls body(chunk) for chunks of the runs that are kept, with `table` filled (its `device` is
// set). Device runs that are neighbours are one chunk, however many they are.
template <class Keep, class Body>
void for_launches(std::span<const AttentionRun> runs, LaunchRuns& table, const Keep& keep,
                  const Body& body) {
  RunChunk chunk;
  int first = -1, last = -1;
  for (int i = 0; i < static_cast<int>(runs.size()); ++i) {
    if (!keep(runs[i])) continue;
    if (first < 0) first = i;
    last = i;
    count_run(chunk, runs[i]);
  }
  table.is_range = table.device != nullptr && last - first + 1 == chunk.count;
  if (chunk.count == 0) return;
  table.first = first;
  if (table.is_range) return body(chunk);
  const int most = table.device != nullptr ? LaunchRuns::kMostIndices : kRunsPerLaunch;
  chunk = {};
  for (int i = first; i <= last; ++i) {
    const AttentionRun& run = runs[i];
    if (!keep(run)) continue;
    if (table.device != nullptr) {
      table.indices[chunk.count] = i;
    } else {
      table.at[chunk.count] = {
          run.q_begin, run.q_count, run.k_begin, run.k_count, run.offset, run.key_position, i};
    }
    count_run(chunk, run);
    if (chunk.count < most && i < last) continue;
    body(chunk);
    chunk = {};
  }
}

// Head size that a kernel with one tile size for q, k and v must hold.
inline std::int64_t largest_head(const AttentionShape& shape) {
  return std::max(shape.head_size, shape.v_head_size);
}

inline unsigned blocks(std::int64_t n) { return static_cast<unsigned>(n); }

template <class Params>
using Kernel = void (*)(Params);

// Gives the kernel's blocks their shared memory. Returns false if the grid is empty.
template <class Params>
bool prepare_launch(Kernel<Params> kernel, dim3 grid, std::size_t shared_bytes) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return false;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)),
             "attention: give a block its shared memory");
  return true;
}

// Does nothing if the grid is empty.
template <class Params>
void launch(Kernel<Params> kernel, dim3 grid, int threads, std::size_t shared_bytes,
            const CudaQueue& queue, const Params& params) {
  if (!prepare_launch(kernel, grid, shared_bytes)) return;
  kernel<<<grid, threads, shared_bytes, queue.stream()>>>(params);
  check_launch("attention");
}

// Which runs of a call a kernel takes.
using KeepRun = bool (*)(const AttentionShape& shape, const AttentionRun& run);

// Entry points by source file, for the dtypes and head sizes that each supports. The forward ones
// take the runs that are kept.
void forward_bf16(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape,
                  KeepRun keep);
void forward_f16(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape,
                 KeepRun keep);
void plain_forward(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape,
                   KeepRun keep);
// For runs with few (query, head) pairs. may_split: split-KV; otherwise the keys of a query are
// taken in order, with the bits of the forward kernels. Return false, and do nothing, if the device
// has too little shared memory.
bool is_decode(const AttentionShape& shape, const AttentionRun& run);
bool decode_bf16(CudaQueue& queue, DecodeParams& params, const AttentionShape& shape,
                 bool may_split);
bool decode_f16(CudaQueue& queue, DecodeParams& params, const AttentionShape& shape,
                bool may_split);
// For MLA decoding: one key head, which contains the values, and runs with few pairs.
bool has_latent_decode(const AttentionShape& shape, bool values_in_keys);
bool is_latent_decode(const AttentionShape& shape, const AttentionRun& run);
void latent_decode(CudaQueue& queue, const ForwardParams& params, const AttentionShape& shape);
void backward_bf16(CudaQueue& queue, BackwardParams& params, const AttentionShape& shape);
void backward_f16(CudaQueue& queue, BackwardParams& params, const AttentionShape& shape);
void plain_backward(CudaQueue& queue, BackwardParams& params, const AttentionShape& shape);

}  // namespace bev::cuda_attention
