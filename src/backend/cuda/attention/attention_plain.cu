// Attention on CUDA cores with f32 arithmetic: for f32, for heads that are not 16-byte aligned and,
// in the forward, for heads too wide for the tensor core kernels. Eight threads share a row of the
// block, each with every eighth element. Tiles are in shared memory as f32.
#include "backend/cuda/attention/attention_mma.cuh"
#include "backend/cuda/attention/attention_runs.cuh"

namespace bev::cuda_attention {

namespace {

constexpr int kLanes = 8;  // threads per row

template <int kHeadSize>
struct PlainTiling {
  static constexpr int kHead = kHeadSize;
  static constexpr int kRows = kHead > 576 ? 8 : kHead > 128 ? 16 : 32;  // of both sides
  static constexpr int kThreads = kRows * kLanes;
  static constexpr int kStride = kHead + 1;  // avoids bank conflicts between rows
  static constexpr int kWeightStride = kRows + 1;
  static constexpr int kTile = kRows * kStride, kWeights = kRows * kWeightStride;  // elements
  __device__ static int row() { return static_cast<int>(threadIdx.x) / kLanes; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
};

// Rows of one head in a tensor.
template <class T>
struct HeadRows {
  const T* data;
  std::int64_t stride;
  __device__ const T* operator()(int row) const { return data + row * stride; }
};
template <class T>
__device__ HeadRows<T> head_rows(const void* data, std::int64_t row, std::int64_t stride, int head,
                                 int head_size) {
  return {static_cast<const T*>(data) + row * stride + std::int64_t{head} * head_size, stride};
}

// Loads row r of the tile from rows(r); zero fill for rows outside of `inside` and columns >=
// head_size.
template <class Tiling, class Rows>
__device__ void load_tile(float* tile, const Rows& rows, Range inside, int head_size) {
  for (int i = static_cast<int>(threadIdx.x); i < Tiling::kRows * Tiling::kHead;
       i += Tiling::kThreads) {
    const int row = i / Tiling::kHead, column = i % Tiling::kHead;
    const bool valid = row >= inside.begin && row < inside.end && column < head_size;
    tile[row * Tiling::kStride + column] = valid ? widen(rows(row)[column]) : 0;
  }
}
template <class Tiling, class Rows>
__device__ void load_tile(float* tile, const Rows& rows, int count, int head_size) {
  load_tile<Tiling>(tile, rows, Range{0, count}, head_size);
}

template <class Tiling>
__device__ float dot(const float* a, const float* b) {
  float sum = 0;
#pragma unroll 16
  for (int d = 0; d < Tiling::kHead; ++d) sum = fmaf(a[d], b[d], sum);
  return sum;
}

// Accumulator of a row over the other side, an eighth in each thread.
template <class Tiling>
struct RowSum {
  float at[Tiling::kHead / kLanes] = {};

  __device__ void scale(float factor) {
#pragma unroll
    for (float& x : at) x *= factor;
  }
  __device__ void add(const float* weights, const float* tile) {
    for (int j = 0; j < Tiling::kRows; ++j) {
#pragma unroll
      for (int i = 0; i < Tiling::kHead / kLanes; ++i) {
        at[i] = fmaf(weights[j], tile[j * Tiling::kStride + Tiling::lane() + kLanes * i], at[i]);
      }
    }
  }
  template <class T>
  __device__ void store(T* to, int head_size, float factor) const {
#pragma unroll
    for (int i = 0; i < Tiling::kHead / kLanes; ++i) {
      const int column = Tiling::lane() + kLanes * i;
      if (column < head_size) to[column] = narrow<T>(at[i] * factor);
    }
  }
};

__device__ float sum_lanes(float x) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
__device__ float max_lanes(float x) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

// Score of q.k in natural units.
__device__ float score_of(const Shape& shape, float product) {
  const float score = product * shape.scale;
  return shape.softcap > 0 ? shape.softcap * tanhf(score / shape.softcap) : score;
}
__device__ float slope_of(const Shape& shape, float score) {
  if (shape.softcap == 0) return 1;
  const float ratio = score / shape.softcap;
  return 1 - ratio * ratio;
}
__device__ float dropout_of(const Shape& shape, const AttentionRun& run, int query, int head,
                            int key) {
  if (!shape.dropped) return 1;
  return dropout_factor(shape, *shape.random.random_key,
                        query_draws(shape, std::int64_t{run.q_begin} + query, head),
                        run.key_position + key);
}

// Rows of a block are (query, head) pairs of one kv head, query-major. Grid: pair tiles, kv heads,
// runs.
template <class T, class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads)
    plain_forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  const Shape& shape = params.shape;
  const CurrentRun current = current_run(params.runs, static_cast<int>(blockIdx.z));
  const AttentionRun& run = current.run;
  const KeyRows rows = key_rows(params, current);
  const int kv_head = static_cast<int>(blockIdx.y), group = shape.group;
  const int first = static_cast<int>(blockIdx.x) * Tiling::kRows;
  const int count = min(Tiling::kRows, run.q_count * group - first);
  if (count <= 0) return;

  const int head_size = shape.head_size, v_size = shape.v_head_size;
  const int query = (first + Tiling::row()) / group;
  const int head = kv_head * group + (first + Tiling::row()) % group;
  auto* queries = reinterpret_cast<float*>(memory);
  float *others = queries + Tiling::kTile, *weights = others + Tiling::kTile;
  float* row_weights = weights + Tiling::row() * Tiling::kWeightStride;
  const auto query_of = [&](int row) {
    const int pair = first + row;
    return static_cast<const T*>(params.q) +
           (std::int64_t{run.q_begin} + pair / group) * shape.q_stride +
           (kv_head * group + pair % group) * head_size;
  };
  load_tile<Tiling>(queries, query_of, count, head_size);
  float largest = -INFINITY, sum = 0;
  RowSum<Tiling> out;
  const auto load_keys = [&](const void* from, std::int64_t stride, int size, Range range,
                             int key) {
    const T* head_rows = static_cast<const T*>(from) + kv_head * size;
    load_tile<Tiling>(
        others, [&](int row) { return head_rows + rows(key + row) * stride; },
        Range{range.begin - key, range.end - key}, size);
  };
  const Range range = visible_keys(shape, run, first / group, (first + count - 1) / group);
  // Tiles begin at multiples of their size: the sums of a query do not depend on its neighbours.
  for (int key = range.begin / Tiling::kRows * Tiling::kRows; key < range.end;
       key += Tiling::kRows) {
    __syncthreads();
    load_keys(params.k, shape.k_stride, head_size, range, key);
    __syncthreads();
    float scores[Tiling::kRows / kLanes], most = largest;
#pragma unroll
    for (int i = 0; i < Tiling::kRows / kLanes; ++i) {
      const int j = Tiling::lane() + kLanes * i;
      scores[i] = -INFINITY;
      if (sees(shape, run, query, key + j)) {
        scores[i] = score_of(shape, dot<Tiling>(queries + Tiling::row() * Tiling::kStride,
                                                others + j * Tiling::kStride));
      }
      most = fmaxf(most, scores[i]);
    }
    most = max_lanes(most);
    const float shift = most == -INFINITY ? 0 : most, alpha = expf(largest - shift);
    largest = most;
    sum *= alpha;
    out.scale(alpha);
#pragma unroll
    for (int i = 0; i < Tiling::kRows / kLanes; ++i) {
      const int j = Tiling::lane() + kLanes * i;
      const float probability = expf(scores[i] - shift);
      sum += probability;
      row_weights[j] =
          probability > 0 ? probability * dropout_of(shape, run, query, head, key + j) : 0;
    }
    __syncthreads();
    load_keys(params.v, shape.v_stride, v_size, range, key);
    __syncthreads();
    out.add(row_weights, others);
  }
  sum = sum_lanes(sum);
  if (query >= run.q_count) return;
  const std::int64_t at = (std::int64_t{run.q_begin} + query) * shape.q_heads + head;
  if (Tiling::lane() == 0) params.lse[at] = largest + logf(sum);  // -infinity if sum is 0
  out.store(static_cast<T*>(params.out) + at * v_size, v_size, sum == 0 ? 0 : 1 / sum);
}

struct PairGradients {
  float weight, dproduct;  // probability after dropout; gradient of q.k
};
// For one query (q, dout) and key (k, v), whose rows are in shared memory.
template <class Tiling>
__device__ PairGradients differentiate(const BackwardParams& params, const AttentionRun& run,
                                       int query, int head, int key, const float* q, const float* k,
                                       const float* dout, const float* v) {
  const Shape& shape = params.shape;
  if (!sees(shape, run, query, key)) return {0, 0};
  const std::int64_t at = (std::int64_t{run.q_begin} + query) * shape.q_heads + head;
  const float score = score_of(shape, dot<Tiling>(q, k));
  const float probability = expf(score - params.lse[at]);
  const float factor = dropout_of(shape, run, query, head, key);
  const float dprobability = dot<Tiling>(dout, v) * factor;
  const float dscore = probability * (dprobability - params.delta[at]) * slope_of(shape, score);
  return {probability * factor, dscore * shape.scale};
}

// dk and dv. Grid: kv heads, key tiles, runs.
template <class T, class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads)
    plain_key_gradients_kernel(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  const Shape& shape = params.shape;
  const AttentionRun& run = params.runs.at[blockIdx.z];
  const int kv_head = static_cast<int>(blockIdx.x);
  const int head_size = shape.head_size, v_size = shape.v_head_size;
  const int first = static_cast<int>(blockIdx.y) * Tiling::kRows;
  const int count = min(Tiling::kRows, run.k_count - first);
  if (count <= 0) return;

  const int row = Tiling::row(), key = first + row;
  auto* keys = reinterpret_cast<float*>(memory);
  float *values = keys + Tiling::kTile, *queries = values + Tiling::kTile;
  float *douts = queries + Tiling::kTile, *weights = douts + Tiling::kTile;
  float* dproducts = weights + Tiling::kWeights;
  const std::int64_t key_row = run.k_begin + first;
  load_tile<Tiling>(keys, head_rows<T>(params.k, key_row, shape.k_stride, kv_head, head_size),
                    count, head_size);
  load_tile<Tiling>(values, head_rows<T>(params.v, key_row, shape.v_stride, kv_head, v_size), count,
                    v_size);
  RowSum<Tiling> dk, dv;
  const Range range = visible_queries(shape, run, first, first + count - 1);
  const int tiles = ceil_div(max(0, range.end - range.begin), Tiling::kRows);
  for (int step = 0; step < tiles * shape.group; ++step) {
    const int head = kv_head * shape.group + step / tiles;
    const int query = range.begin + step % tiles * Tiling::kRows, left = run.q_count - query;
    const std::int64_t query_row = std::int64_t{run.q_begin} + query;
    const std::int64_t out_stride = std::int64_t{shape.q_heads} * v_size;
    __syncthreads();
    load_tile<Tiling>(queries, head_rows<T>(params.q, query_row, shape.q_stride, head, head_size),
                      left, head_size);
    load_tile<Tiling>(douts, head_rows<T>(params.dout, query_row, out_stride, head, v_size), left,
                      v_size);
    __syncthreads();
    for (int j = Tiling::lane(); j < Tiling::kRows; j += kLanes) {
      const PairGradients pair =
          differentiate<Tiling>(params, run, query + j, head, key, queries + j * Tiling::kStride,
                                keys + row * Tiling::kStride, douts + j * Tiling::kStride,
                                values + row * Tiling::kStride);
      weights[row * Tiling::kWeightStride + j] = pair.weight;
      dproducts[row * Tiling::kWeightStride + j] = pair.dproduct;
    }
    __syncthreads();
    dv.add(weights + row * Tiling::kWeightStride, douts);
    dk.add(dproducts + row * Tiling::kWeightStride, queries);
  }
  if (key >= run.k_count) return;
  const std::int64_t at = run.k_begin + key;
  dk.store(static_cast<T*>(params.dk) + at * shape.k_stride + std::int64_t{kv_head} * head_size,
           head_size, 1);
  dv.store(static_cast<T*>(params.dv) + at * shape.v_stride + std::int64_t{kv_head} * v_size,
           v_size, 1);
}

// dq. Grid: q heads, query tiles, runs.
template <class T, class Tiling>
__global__ void __launch_bounds__(Tiling::kThreads)
    plain_query_gradients_kernel(const __grid_constant__ BackwardParams params) {
  extern __shared__ __align__(16) std::uint8_t memory[];
  const Shape& shape = params.shape;
  const AttentionRun& run = params.runs.at[blockIdx.z];
  const int head = static_cast<int>(blockIdx.x), kv_head = head / shape.group;
  const int first = static_cast<int>(blockIdx.y) * Tiling::kRows;
  const int head_size = shape.head_size, v_size = shape.v_head_size;
  const int count = min(Tiling::kRows, run.q_count - first);
  if (count <= 0) return;

  const int row = Tiling::row(), query = first + row;
  auto* queries = reinterpret_cast<float*>(memory);
  float *douts = queries + Tiling::kTile, *keys = douts + Tiling::kTile;
  float *values = keys + Tiling::kTile, *dproducts = values + Tiling::kTile;
  const std::int64_t query_row = std::int64_t{run.q_begin} + first;
  const std::int64_t out_stride = std::int64_t{shape.q_heads} * v_size;
  load_tile<Tiling>(queries, head_rows<T>(params.q, query_row, shape.q_stride, head, head_size),
                    count, head_size);
  load_tile<Tiling>(douts, head_rows<T>(params.dout, query_row, out_stride, head, v_size), count,
                    v_size);
  RowSum<Tiling> dq;
  const Range range = visible_keys(shape, run, first, first + count - 1);
  for (int key = range.begin; key < range.end; key += Tiling::kRows) {
    const std::int64_t key_row = run.k_begin + key;
    __syncthreads();
    load_tile<Tiling>(keys, head_rows<T>(params.k, key_row, shape.k_stride, kv_head, head_size),
                      run.k_count - key, head_size);
    load_tile<Tiling>(values, head_rows<T>(params.v, key_row, shape.v_stride, kv_head, v_size),
                      run.k_count - key, v_size);
    __syncthreads();
    for (int j = Tiling::lane(); j < Tiling::kRows; j += kLanes) {
      dproducts[row * Tiling::kWeightStride + j] =
          differentiate<Tiling>(params, run, query, head, key + j, queries + row * Tiling::kStride,
                                keys + j * Tiling::kStride, douts + row * Tiling::kStride,
                                values + j * Tiling::kStride)
              .dproduct;
    }
    __syncthreads();
    dq.add(dproducts + row * Tiling::kWeightStride, keys);
  }
  if (query >= run.q_count) return;
  T* to = static_cast<T*>(params.dq) + (std::int64_t{run.q_begin} + query) * shape.q_stride;
  dq.store(to + std::int64_t{head} * head_size, head_size, 1);
}

// Calls body(T{}).
template <class Body>
void visit_type(Dtype dtype, const Body& body) {
  if (dtype == Dtype::kF32) return body(float{});
  if (dtype == Dtype::kBf16) return body(Bf16{});
  body(F16{});
}

// Calls body(PlainTiling<...>{}); wide tilings are only for the forward.
template <bool kWide, class Body>
void visit_tiling(const AttentionShape& shape, const Body& body) {
  const std::int64_t head = largest_head(shape);
  if (head <= 64) return body(PlainTiling<64>{});
  if (head <= 128) return body(PlainTiling<128>{});
  if constexpr (kWide) {
    if (head > 576) return body(PlainTiling<kWideHeadSize>{});
    if (head > kMaxHeadSize) return body(PlainTiling<576>{});
  }
  body(PlainTiling<256>{});
}

template <class T, class Tiling>
void launch_backward(CudaQueue& queue, BackwardParams& params, const AttentionShape& shape) {
  for_run_chunks(shape.runs, params.runs, [&](const RunChunk& chunk) {
    launch<BackwardParams>(
        plain_key_gradients_kernel<T, Tiling>,
        dim3(blocks(shape.kv_heads), blocks(ceil_div(chunk.most_keys, Tiling::kRows)),
             blocks(chunk.count)),
        Tiling::kThreads, (4 * Tiling::kTile + 2 * Tiling::kWeights) * sizeof(float), queue,
        params);
    launch<BackwardParams>(
        plain_query_gradients_kernel<T, Tiling>,
        dim3(blocks(shape.q_heads), blocks(ceil_div(chunk.most_queries, Tiling::kRows)),
             blocks(chunk.count)),
        Tiling::kThreads, (4 * Tiling::kTile + Tiling::kWeights) * sizeof(float), queue, params);
  });
}

}  // namespace

void plain_forward(CudaQueue& queue, ForwardParams& params, const AttentionShape& shape,
                   KeepRun keep) {
  visit_type(shape.dtype, [&](auto type) {
    visit_tiling<true>(shape, [&](auto tiling) {
      using Tiling = decltype(tiling);
      const auto kept = [&](const AttentionRun& run) { return keep(shape, run); };
      for_launches(shape.runs, params.runs, kept, [&](const RunChunk& chunk) {
        const int pairs = chunk.most_queries * params.shape.group;
        dim3 grid(blocks(ceil_div(pairs, Tiling::kRows)), blocks(shape.kv_heads),
                  blocks(chunk.count));
        launch<ForwardParams>(plain_forward_kernel<decltype(type), Tiling>, grid, Tiling::kThreads,
                              (2 * Tiling::kTile + Tiling::kWeights) * sizeof(float), queue,
                              params);
      });
    });
  });
}

void plain_backward(CudaQueue& queue, BackwardParams& params, const AttentionShape& shape) {
  visit_type(shape.dtype, [&](auto type) {
    visit_tiling<false>(shape, [&](auto tiling) {
      launch_backward<decltype(type), decltype(tiling)>(queue, params, shape);
    });
  });
}

}  // namespace bev::cuda_attention
