// Attention on CUDA: checks, the choice between cuDNN and our kernels, and the small kernels around
// them (delta, merge).
#include <bit>
#include <cmath>

#include "backend/cuda/attention/attention_masks.cuh"
#include "backend/cuda/attention/attention_mma.cuh"
#include "backend/cuda/attention/attention_paths.h"
#include "backend/cuda/tables.h"
#include "base/divide.h"
#include "base/error.h"

namespace bev {

namespace cuda_attention {

namespace {

constexpr int kThreads = 256;
constexpr int kDeltaLanes = 8;  // threads per (query, head) pair

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

// delta = dot(dout, out) per query and head (FlashAttention-2). Memory bound: reads 2 * D elements
// of T per 4 bytes written.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(const __grid_constant__ BackwardParams params) {
  const AttentionRun& run = params.runs.at[blockIdx.y];
  const Shape& shape = params.shape;
  const int lane = static_cast<int>(threadIdx.x) % kDeltaLanes;
  const std::int64_t pairs = std::int64_t{run.q_count} * shape.q_heads;
  const std::int64_t pair = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / kDeltaLanes;
  const std::int64_t at = std::int64_t{run.q_begin} * shape.q_heads + (pair < pairs ? pair : 0);
  using Vector = Pack<T, kVector>;
  const auto* out =
      reinterpret_cast<const Vector*>(static_cast<const T*>(params.out) + at * shape.v_head_size);
  const auto* dout =
      reinterpret_cast<const Vector*>(static_cast<const T*>(params.dout) + at * shape.v_head_size);
  float sum = 0;
  for (int i = lane; pair < pairs && i < shape.v_head_size / kVector; i += kDeltaLanes) {
    const Vector a = out[i], b = dout[i];
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum = fmaf(widen(a.at[j]), widen(b.at[j]), sum);
  }
#pragma unroll
  for (int step = 1; step < kDeltaLanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0 && pair < pairs) params.delta[at] = sum;
}

// One warp per query and head. Memory bound: reads 4 + sizeof(T) bytes and writes 4 per element.
template <class T>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const __grid_constant__ MergeParams params) {
  const AttentionRun& run = params.runs.at[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t pair = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (pair >= run.q_count * params.q_heads) return;
  const std::int64_t at = run.q_begin * params.q_heads + pair;
  const float lse = params.lse[at], part = params.part_lse[at], most = fmaxf(lse, part);
  if (part == -INFINITY) return;
  const float before = expf(lse - most), now = expf(part - most), sum = before + now;
  float* out = params.out + at * params.head_size;
  const T* part_out = static_cast<const T*>(params.part_out) + at * params.head_size;
  for (std::int64_t d = lane; d < params.head_size; d += 32) {
    out[d] = out[d] * (before / sum) + widen(part_out[d]) * (now / sum);
  }
  __syncwarp();  // all lanes have read lse
  if (lane == 0) params.lse[at] = most + logf(sum);
}

void check_shape(const AttentionShape& shape, int most) {
  BEV_CHECK(shape.dtype == Dtype::kF32 || shape.dtype == Dtype::kBf16 || shape.dtype == Dtype::kF16,
            ErrorKind::kDevice, "attention: no ", name_of(shape.dtype),
            " on CUDA; use f32, bf16 or f16");
  for (std::int64_t size : {shape.head_size, shape.v_head_size}) {
    BEV_CHECK(size >= 1 && size <= most, "attention: head size ", size, " is not in [1, ", most,
              "]");
  }
  BEV_CHECK(shape.kv_heads >= 1 && shape.q_heads % shape.kv_heads == 0,
            "attention: ", shape.q_heads, " q heads do not divide among ", shape.kv_heads,
            " kv heads");
  BEV_CHECK(shape.rule.scale > 0, "attention: a scale of ", shape.rule.scale, " is not above 0");
}

Shape device_shape(const AttentionShape& from, int most) {
  check_shape(from, most);
  constexpr std::int64_t kFar = 1 << 29;  // larger than any key distance, without overflow
  const auto window =
      static_cast<int>(from.rule.window < 0 ? kFar : std::min(from.rule.window, kFar));
  Shape shape;
  shape.q_heads = static_cast<int>(from.q_heads);
  shape.kv_heads = static_cast<int>(from.kv_heads);
  shape.group = shape.q_heads / shape.kv_heads;
  shape.head_size = static_cast<int>(from.head_size);
  shape.v_head_size = static_cast<int>(from.v_head_size);
  shape.q_stride = from.q_stride;
  shape.k_stride = from.k_stride;
  shape.v_stride = from.v_stride;
  shape.lower = from.rule.causal ? 0 : -window;
  shape.upper = window;
  shape.chunk = from.rule.chunked ? window + 1 : 0;
  shape.scale = static_cast<float>(from.rule.scale);
  shape.softcap = static_cast<float>(std::max(from.rule.softcap, 0.0));
  shape.log2_factor = kLog2e * (shape.softcap > 0 ? shape.softcap : shape.scale);
  shape.dropped = from.rule.dropout > 0;
  shape.keep_factor = static_cast<float>(1 / (1 - from.rule.dropout));
  shape.keep_threshold = cuda::keep_threshold(from.rule.dropout);
  shape.random = from.random;
  shape.random.stream += static_cast<std::uint32_t>(from.head_offset);
  return shape;
}

bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

// True for 16-bit q, k, v whose heads are 16-byte aligned, as the tensor core kernels need.
bool has_whole_words(const AttentionShape& shape, std::initializer_list<const void*> pointers) {
  return shape.dtype != Dtype::kF32 && shape.head_size % 8 == 0 && shape.v_head_size % 8 == 0 &&
         shape.q_stride % 8 == 0 && shape.k_stride % 8 == 0 && shape.v_stride % 8 == 0 &&
         std::ranges::all_of(pointers, is_aligned);
}
bool fits_tensor_cores(const AttentionShape& shape, std::initializer_list<const void*> pointers) {
  return largest_head(shape) <= kMaxHeadSize && has_whole_words(shape, pointers);
}

// Grid over the (query, head) pairs of each run, `per_block` pairs per block.
dim3 pair_grid(const RunChunk& chunk, std::int64_t q_heads, int per_block) {
  return dim3(blocks(ceil_div(chunk.most_queries * q_heads, per_block)), blocks(chunk.count));
}

template <class T>
void set_delta(CudaQueue& queue, BackwardParams& params, const AttentionShape& shape) {
  constexpr int kVector = 16 / sizeof(T);
  const bool whole =
      shape.v_head_size % kVector == 0 && is_aligned(params.out) && is_aligned(params.dout);
  for_run_chunks(shape.runs, params.runs, [&](const RunChunk& chunk) {
    launch<BackwardParams>(whole ? delta_kernel<T, kVector> : delta_kernel<T, 1>,
                           pair_grid(chunk, shape.q_heads, kThreads / kDeltaLanes), kThreads, 0,
                           queue, params);
  });
}

// Calls body(T{}).
template <class Body>
void visit_type(Dtype dtype, const Body& body) {
  if (dtype == Dtype::kF32) return body(float{});
  if (dtype == Dtype::kBf16) return body(Bf16{});
  body(F16{});
}

void forward(const Stream& stream, const AttentionForwardArgs& args) {
  const bool plain_rows = args.device_runs == nullptr && args.pages.table == nullptr;
  if (!plain_rows || !cudnn_attention_forward(stream, args)) own_attention_forward(stream, args);
}

void backward(const Stream& stream, const AttentionBackwardArgs& args) {
  if (!cudnn_attention_backward(stream, args)) own_attention_backward(stream, args);
}

void merge(const Stream& stream, const AttentionMergeArgs& args) {
  const AttentionShape& shape = args.shape;
  check_shape(shape, kMaxHeadSize);
  MergeParams params;
  params.q_heads = shape.q_heads;
  params.head_size = shape.v_head_size;
  params.out = args.out.as<float>();
  params.lse = args.lse.as<float>();
  params.part_out = args.part_out.data;
  params.part_lse = args.part_lse.as<float>();
  visit_type(shape.dtype, [&](auto type) {
    for_run_chunks(shape.runs, params.runs, [&](const RunChunk& chunk) {
      launch<MergeParams>(merge_kernel<decltype(type)>,
                          pair_grid(chunk, shape.q_heads, kThreads / 32), kThreads, 0,
                          queue_of(stream), params);
    });
  });
}

BlockTables block_tables(const KeyPages& pages) {
  if (pages.table == nullptr) return {};
  const auto tokens = static_cast<std::uint64_t>(pages.block_tokens);
  BEV_CHECK(std::has_single_bit(tokens) && tokens < 1u << 30, "attention: a block of ",
            pages.block_tokens, " tokens; use a power of two");
  return {pages.table, pages.stride, std::countr_zero(tokens)};
}

ForwardParams forward_params(const AttentionForwardArgs& args) {
  ForwardParams params;
  params.shape =
      device_shape(args.shape, args.shape.rule.dropout > 0 ? kMaxHeadSize : kWideHeadSize);
  params.q = args.q;
  params.k = args.k;
  params.v = args.v;
  params.out = args.out.data;
  params.lse = args.lse.as<float>();
  params.tables = block_tables(args.pages);
  params.runs.device = args.device_runs;
  return params;
}

bool every_run(const AttentionShape&, const AttentionRun&) { return true; }
template <KeepRun kKeep>
bool other_runs(const AttentionShape& shape, const AttentionRun& run) {
  return !kKeep(shape, run);
}

// Each kernel takes the runs that it is for. !may_split: the bits of a query do not depend on which
// kernel that is.
void tensor_core_forward(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape,
                         bool may_split) {
  const bool bf16 = shape.dtype == Dtype::kBf16;
  DecodeParams decode;
  decode.forward = params;
  const bool decoded = (bf16 ? decode_bf16 : decode_f16)(queue, decode, shape, may_split);
  (bf16 ? forward_bf16 : forward_f16)(queue, params, shape,
                                      decoded ? other_runs<is_decode> : every_run);
}

// The widest heads are those of MLA.
void wide_forward(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape) {
  latent_decode(queue, params, shape);
  plain_forward(queue, params, shape, other_runs<is_latent_decode>);
}

void forward_of(const Stream& stream, const AttentionForwardArgs& args, bool may_split) {
  CudaQueue& queue = queue_of(stream);
  const AttentionShape& shape = args.shape;
  ForwardParams params = forward_params(args);
  const bool whole = has_whole_words(shape, {args.q, args.k, args.v, args.out.data});
  if (whole && largest_head(shape) <= kMaxHeadSize) {
    tensor_core_forward(queue, params, shape, may_split);
  } else if (whole && may_split && has_latent_decode(shape, args.k == args.v)) {
    wide_forward(queue, params, shape);
  } else {
    plain_forward(queue, params, shape, every_run);
  }
}

}  // namespace

bool is_decode(const AttentionShape& shape, const AttentionRun& run) {
  constexpr std::int64_t kMostPairs = 64;
  return run.q_count * (shape.q_heads / shape.kv_heads) <= kMostPairs && shape.rule.dropout == 0;
}

}  // namespace cuda_attention

void own_attention_forward(const Stream& stream, const AttentionForwardArgs& args) {
  cuda_attention::forward_of(stream, args, true);
}

void exact_attention_forward(const Stream& stream, const AttentionForwardArgs& args) {
  cuda_attention::forward_of(stream, args, false);
}

void own_attention_backward(const Stream& stream, const AttentionBackwardArgs& args) {
  using namespace cuda_attention;
  CudaQueue& queue = queue_of(stream);
  BackwardParams params;
  params.shape = device_shape(args.shape, kMaxHeadSize);
  params.q = args.q;
  params.k = args.k;
  params.v = args.v;
  params.out = args.out.data;
  params.dout = args.dout.data;
  params.lse = args.lse.as<float>();
  params.delta = args.delta.as<float>();
  params.dq = args.dq;
  params.dk = args.dk;
  params.dv = args.dv;
  visit_type(args.shape.dtype,
             [&](auto type) { set_delta<decltype(type)>(queue, params, args.shape); });
  if (!fits_tensor_cores(args.shape, {args.q, args.k, args.v, args.out.data, args.dout.data,
                                      args.dq, args.dk, args.dv})) {
    plain_backward(queue, params, args.shape);
  } else if (args.shape.dtype == Dtype::kBf16) {
    backward_bf16(queue, params, args.shape);
  } else {
    backward_f16(queue, params, args.shape);
  }
}

AttentionKernels cuda_table(Family<AttentionKernels>) {
  return {.forward = cuda_attention::forward,
          .merge = cuda_attention::merge,
          .backward = cuda_attention::backward,
          .add_sinks = cuda_add_sinks,
          .sink_terms = cuda_sink_terms,
          .bound_logits = cuda_bound_logits};
}

AttentionKernels cuda_exact_attention() {
  AttentionKernels table = cuda_table(Family<AttentionKernels>{});
  table.forward = exact_attention_forward;
  return table;
}

}  // namespace bev
