// Parameters of the attention kernels. Runs are passed as a kernel parameter, kRunsPerLaunch at a
// time, so that a launch needs no host-to-device copy and can be captured into a CUDA graph.
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

struct ForwardParams {
  Shape shape;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const std::int32_t* key_counts = nullptr;  // for all runs of the call
  int first_run = 0;                         // of this launch
  Runs runs;
};

// The run of this block, with its current number of keys if key_counts is set.
__device__ inline AttentionRun current_run(const ForwardParams& params) {
  AttentionRun run = params.runs.at[blockIdx.z];
  if (params.key_counts != nullptr) {
    run.k_count = params.key_counts[params.first_run + blockIdx.z];
    run.offset = run.k_count - run.q_count;
  }
  return run;
}

// Flash decoding: few queries over many keys.
struct DecodeParams {
  ForwardParams forward;
  float *part_out = nullptr, *part_lse = nullptr;
  int splits = 1;
  int pairs = 0;  // most (query, head) pairs of any run, per kv head
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

// Some runs of a call and their largest counts.
struct RunChunk {
  int begin = 0, count = 0;
  int most_queries = 0, most_keys = 0;
};

// Calls body(chunk) for each chunk of runs, with `table` filled.
template <class Body>
void for_run_chunks(std::span<const AttentionRun> runs, Runs& table, const Body& body) {
  for (std::size_t begin = 0; begin < runs.size(); begin += kRunsPerLaunch) {
    RunChunk chunk{.begin = static_cast<int>(begin)};
    for (const AttentionRun& run :
         runs.subspan(begin, std::min<std::size_t>(kRunsPerLaunch, runs.size() - begin))) {
      table.at[chunk.count++] = run;
      chunk.most_queries = std::max(chunk.most_queries, run.q_count);
      chunk.most_keys = std::max(chunk.most_keys, run.k_count);
    }
    body(chunk);
  }
}

// Head size that a kernel with one tile size for q, k and v must hold.
inline std::int64_t largest_head(const AttentionShape& shape) {
  return std::max(shape.head_size, shape.v_head_size);
}

inline unsigned blocks(std::int64_t n) { return static_cast<unsigned>(n); }

template <class Params>
using Kernel = void (*)(Params);

// Does nothing if the grid is empty.
template <class Params>
void launch(Kernel<Params> kernel, dim3 grid, int threads, std::size_t shared_bytes,
            const CudaQueue& queue, const Params& params) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)),
             "attention: give a block its shared memory");
  kernel<<<grid, threads, shared_bytes, queue.stream()>>>(params);
  check_launch("attention");
}

// Entry points by source file, for the dtypes and head sizes that each supports.
void forward_bf16(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape);
void forward_f16(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape);
// True if every run has few enough (query, head) pairs for decode.
bool is_decode(const AttentionShape& shape);
void decode(CudaQueue& queue, const ForwardParams& params, const AttentionShape& shape);
// True for MLA decoding: one key head, which contains the values, and few queries.
bool is_latent_decode(const AttentionShape& shape, bool values_in_keys);
void latent_decode(CudaQueue& queue, const ForwardParams& params, const AttentionShape& shape);
void backward_bf16(CudaQueue& queue, BackwardParams& params, const AttentionShape& shape);
void backward_f16(CudaQueue& queue, BackwardParams& params, const AttentionShape& shape);
void plain_forward(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape);
void plain_backward(CudaQueue& queue, BackwardParams& params, const AttentionShape& shape);

}  // namespace bev::cuda_attention
