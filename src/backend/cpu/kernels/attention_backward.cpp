// FlashAttention backward on the CPU, without atomics and in a fixed order: a run is cut into n
// spans of queries and of keys, and in phase r query span q is combined with key span (q + r) % n,
// so that within a phase no two threads add to the same rows of dq, dk and dv. f32 and f64
// gradients accumulate in place, 16-bit gradients in f32 copies that are rounded at the end.
#include <type_traits>

#include "backend/cpu/kernels/attention_tiles.h"
#include "backend/cpu/kernels/lanes.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

constexpr int kSpan = 256;     // minimum of keys per span
constexpr int kMaxSpans = 16;  // per run, and so phases
// Elements of the keys that a block holds at a time: four key tiles for heads of 64 dims.
constexpr int kHeld = kKeys * kMaxHeadSize;

template <class A>
struct BackwardBlock {
  LaneBlock<A> lanes;
  alignas(64) A lse[kBlock<A>], delta[kBlock<A>];
  alignas(64) A query_rows[kBlock<A> * kMaxHeadSize];  // [lane, D], times scale
  alignas(64) A dout_rows[kBlock<A> * kMaxHeadSize];
  alignas(64) A queries[kMaxHeadSize * kBlock<A>];  // [D, lane]
  alignas(64) A douts[kMaxHeadSize * kBlock<A>];
  alignas(64) A dqueries[kMaxHeadSize * kBlock<A>];
  alignas(64) A keys[kHeld];  // [key, D]
  alignas(64) A values[kHeld];
  alignas(64) A dkeys[kHeld];
  alignas(64) A dvalues[kHeld];
  alignas(64) A probs[kKeys * kBlock<A>];  // [key, lane]
  alignas(64) A dscores[kKeys * kBlock<A>];
  alignas(64) A dropout[kKeys * kBlock<A>];
};

// Where dq, dk and dv accumulate, and their row strides in elements.
template <class A>
struct Sums {
  A *dq, *dk, *dv;
  std::int64_t q_stride, k_stride, v_stride;
};

// Keys [key, key + keys) are in the block starting at row `row`; lanes before `lane` see none of
// them.
struct KeyRows {
  int key = 0, keys = 0, row = 0, lane = 0;
};

// One run and kv head of the arguments.
template <class T>
struct Part {
  using A = accumulate_t<T>;
  const AttentionBackwardArgs& args;
  const Sums<A>& sums;
  const AttentionRun& run;
  std::int64_t kv_head;

  const AttentionShape& shape() const { return args.shape; }
  int head_size() const { return static_cast<int>(args.shape.head_size); }
  int v_size() const { return static_cast<int>(args.shape.v_head_size); }
  // Offset of a key's row in k, or in its gradient.
  std::int64_t k_offset(int key, std::int64_t stride) const {
    return (run.k_begin + key) * stride + kv_head * head_size();
  }
  // Same for v.
  std::int64_t v_offset(int key, std::int64_t stride) const {
    return (run.k_begin + key) * stride + kv_head * v_size();
  }
};

template <class T, class A = accumulate_t<T>>
void load_queries(const Part<T>& part, BackwardBlock<A>& block) {
  const AttentionShape& shape = part.shape();
  const LaneBlock<A>& lanes = block.lanes;
  const int head_size = part.head_size(), v_size = part.v_size();
  load_lanes(static_cast<const T*>(part.args.q), shape.q_stride, lanes, head_size,
             static_cast<A>(shape.rule.scale), block.query_rows);
  load_lanes(part.args.dout.template as<T>(), shape.q_heads * v_size, lanes, v_size, A{1},
             block.dout_rows);
  transpose_lanes(lanes.width, padded_head(head_size), block.query_rows, block.queries);
  transpose_lanes(lanes.width, padded_head(v_size), block.dout_rows, block.douts);
  const A* lse = part.args.lse.template as<A>();
  const A* delta = part.args.delta.template as<A>();
  for (int i = 0; i < lanes.width; ++i) {
    const std::int64_t at = lanes.row[i] * shape.q_heads + lanes.head[i];
    block.lse[i] = lanes.high[i] < 0 ? 0 : lse[at];
    block.delta[i] = lanes.high[i] < 0 ? 0 : delta[at];
  }
}

template <class T, class A = accumulate_t<T>>
void load_keys(const Part<T>& part, int key, int keys, BackwardBlock<A>& block) {
  const AttentionShape& shape = part.shape();
  const Sums<A>& sums = part.sums;
  const int head_size = part.head_size(), v_size = part.v_size();
  load_tile(static_cast<const T*>(part.args.k) + part.k_offset(key, shape.k_stride), shape.k_stride,
            keys, head_size, block.keys);
  load_tile(static_cast<const T*>(part.args.v) + part.v_offset(key, shape.v_stride), shape.v_stride,
            keys, v_size, block.values);
  load_tile(sums.dk + part.k_offset(key, sums.k_stride), sums.k_stride, keys, head_size,
            block.dkeys);
  load_tile(sums.dv + part.v_offset(key, sums.v_stride), sums.v_stride, keys, v_size,
            block.dvalues);
}

// Takes probs = raw scores and dscores = dot(dout, value). On return probs are the probabilities
// that multiplied the values (after dropout), dscores the gradients of the raw scores.
template <class A>
void differentiate_tile(const AttentionShape& shape, const KeyRows& rows, BackwardBlock<A>& block) {
  const LaneBlock<A>& lanes = block.lanes;
  const int key = rows.key, keys = rows.keys, lane = rows.lane, width = lanes.width;
  const A softcap = static_cast<A>(shape.rule.softcap), inverse = softcap > 0 ? 1 / softcap : 0;
  const bool masked = !lanes.all(key, key + keys), dropped = shape.rule.dropout > 0;
  if (softcap > 0) cap_scores(keys, width, softcap, block.probs);
  if (dropped) set_dropout(shape, lanes, key, keys, block.dropout);
  if (masked) {
    mask_scores(lanes, key, keys, -std::numeric_limits<A>::infinity(), block.probs);
  }
  for (int j = 0; j < keys; ++j) {
    A* __restrict probs = block.probs + j * kBlock<A>;
    A* __restrict dscores = block.dscores + j * kBlock<A>;
    if (dropped) {
      const A* __restrict factors = block.dropout + j * kBlock<A>;
      for (int i = lane; i < width; ++i) dscores[i] *= factors[i];
    }
    if (softcap > 0) {
      for (int i = lane; i < width; ++i) {
        // A masked score is -infinity; the clamp keeps its gradient 0.
        const A ratio = probs[i] * inverse, slope = ratio < -1 ? 0 : 1 - ratio * ratio;
        dscores[i] = (dscores[i] - block.delta[i]) * slope;
        probs[i] = exp_of(probs[i] - block.lse[i]);
        dscores[i] *= probs[i];
      }
    } else {
      for (int i = lane; i < width; ++i) {
        probs[i] = exp_of(probs[i] - block.lse[i]);
        dscores[i] = probs[i] * (dscores[i] - block.delta[i]);
      }
    }
    if (dropped) {
      const A* __restrict factors = block.dropout + j * kBlock<A>;
      for (int i = lane; i < width; ++i) probs[i] *= factors[i];
    }
  }
}

// Adds the contribution of a tile to dqueries, dkeys and dvalues.
template <class A>
void backward_tile(const AttentionShape& shape, const KeyRows& rows, BackwardBlock<A>& block) {
  constexpr int kStride = kBlock<A>;
  const int head_size = static_cast<int>(shape.head_size), padded = padded_head(head_size);
  const int v_size = static_cast<int>(shape.v_head_size), v_padded = padded_head(v_size);
  const int keys = rows.keys, lane = rows.lane, width = block.lanes.width - lane;
  const int at = rows.row * padded, v_at = rows.row * v_padded;
  A *probs = block.probs + lane, *dscores = block.dscores + lane;
  tile_gemm<A, false, false>(keys, width, head_size, {block.keys + at, padded},
                             {block.queries + lane, kStride}, {probs, kStride});
  tile_gemm<A, false, false>(keys, width, v_size, {block.values + v_at, v_padded},
                             {block.douts + lane, kStride}, {dscores, kStride});
  differentiate_tile(shape, rows, block);
  tile_gemm<A, true, true>(head_size, width, keys, {block.keys + at, padded}, {dscores, kStride},
                           {block.dqueries + lane, kStride});
  tile_gemm<A, false, true>(keys, head_size, width, {dscores, kStride},
                            {block.query_rows + lane * padded, padded}, {block.dkeys + at, padded});
  tile_gemm<A, false, true>(keys, v_size, width, {probs, kStride},
                            {block.dout_rows + lane * v_padded, v_padded},
                            {block.dvalues + v_at, v_padded});
}

// Adds dqueries times scale to dq. Overwrites query_rows.
template <class T, class A = accumulate_t<T>>
void store_dqueries(const Part<T>& part, BackwardBlock<A>& block) {
  const LaneBlock<A>& lanes = block.lanes;
  const int head_size = part.head_size(), padded = padded_head(head_size);
  const A scale = static_cast<A>(part.shape().rule.scale);
  transpose_back(lanes.width, padded, block.dqueries, block.query_rows);
  for (int i = 0; i < lanes.count; ++i) {
    const A* __restrict from = block.query_rows + i * padded;
    A* __restrict to = part.sums.dq + lanes.row[i] * part.sums.q_stride + lanes.head[i] * head_size;
    for (int d = 0; d < head_size; ++d) to[d] += scale * from[d];
  }
}

template <class A>
void store_tile(const A* tile, int rows, int head_size, A* target, std::int64_t stride) {
  for (int row = 0; row < rows; ++row) {
    const A* __restrict from = tile + row * padded_head(head_size);
    A* __restrict to = target + row * stride;
    for (int d = 0; d < head_size; ++d) to[d] = from[d];
  }
}

// Combines one block of queries with the keys that the block holds.
template <class T, class A = accumulate_t<T>>
void backward_queries(const Part<T>& part, std::int64_t index, int key_begin, int key_end,
                      BackwardBlock<A>& block) {
  const LaneBlock<A>& lanes = block.lanes;
  set_lanes(part.shape(), part.run, part.kv_head, index, block.lanes);
  if (!lanes.any(key_begin, key_end)) return;
  load_queries(part, block);
  std::fill_n(block.dqueries, padded_head(part.head_size()) * kBlock<A>, A{0});
  for (int key = key_begin; key < key_end; key += kKeys) {
    const int keys = std::min(kKeys, key_end - key);
    if (!lanes.any(key, key + keys)) continue;
    for_key_groups(lanes, key, keys, [&](int first, int count, int lane) {
      backward_tile<A>(part.shape(), {first, count, first - key_begin, lane}, block);
    });
  }
  store_dqueries(part, block);
}

// Combines query blocks [block_begin, block_end) with keys [key_begin, key_end).
template <class T>
void backward_span(const Part<T>& part, std::int64_t block_begin, std::int64_t block_end,
                   int key_begin, int key_end) {
  using A = accumulate_t<T>;
  const int head_size = part.head_size(), v_size = part.v_size();
  const int held = kHeld / padded_head(std::max(head_size, v_size)) / kKeys * kKeys;
  const Sums<A>& sums = part.sums;
  BackwardBlock<A> block;
  for (int key = key_begin; key < key_end; key += held) {
    const int keys = std::min(held, key_end - key);
    std::int64_t index = block_begin;
    for (; index < block_end; ++index) {
      set_lanes(part.shape(), part.run, part.kv_head, index, block.lanes);
      if (block.lanes.any(key, key + keys)) break;
    }
    if (index >= block_end) continue;
    load_keys(part, key, keys, block);
    for (; index < block_end; ++index) backward_queries(part, index, key, key + keys, block);
    store_tile(block.dkeys, keys, head_size, sums.dk + part.k_offset(key, sums.k_stride),
               sums.k_stride);
    store_tile(block.dvalues, keys, v_size, sums.dv + part.v_offset(key, sums.v_stride),
               sums.v_stride);
  }
}

// Calls body(begin, end) for the rows of q, or of k and v, of all runs.
template <class Body>
void for_run_rows(const Stream& stream, const AttentionShape& shape, bool queries,
                  const Body& body) {
  const std::int64_t step = rows_per_piece(shape.q_heads * shape.head_size);
  std::int64_t most = 0;
  for (const AttentionRun& run : shape.runs) {
    most = std::max<std::int64_t>(most, queries ? run.q_count : run.k_count);
  }
  const std::int64_t pieces = ceil_div(most, step);
  stream.pool->run(pieces * static_cast<std::int64_t>(shape.runs.size()), [&](std::int64_t piece) {
    const AttentionRun& run = shape.runs[static_cast<std::size_t>(piece / pieces)];
    const std::int64_t first = queries ? std::int64_t{run.q_begin} : run.k_begin;
    const std::int64_t count = queries ? run.q_count : run.k_count, at = piece % pieces * step;
    if (at < count) body(first + at, first + std::min(at + step, count));
  });
}

// delta = dot(dout, out) per query and head, for rows [begin, end).
template <class T>
void set_delta(const AttentionBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const T *out = args.out.as<T>(), *dout = args.dout.as<T>();
  A* delta = args.delta.as<A>();
  const std::int64_t heads = args.shape.q_heads, head_size = args.shape.v_head_size;
  for (std::int64_t i = begin * heads; i < end * heads; ++i) {
    const T *a = out + i * head_size, *b = dout + i * head_size;
    delta[i] = sum_of<A>(head_size, [&](std::int64_t d) { return widen(a[d]) * widen(b[d]); });
  }
}

std::int64_t span_count(const AttentionRun& run) {
  return std::clamp<std::int64_t>(ceil_div(std::max(run.q_count, run.k_count), kSpan), 1,
                                  kMaxSpans);
}

// Computes delta, dq, dk and dv.
template <class T, class A = accumulate_t<T>>
void sum_gradients(const Stream& stream, const AttentionBackwardArgs& args, const Sums<A>& sums) {
  const AttentionShape& shape = args.shape;
  const std::int64_t q_columns = shape.q_heads * shape.head_size;
  const std::int64_t k_columns = shape.kv_heads * shape.head_size;
  const std::int64_t v_columns = shape.kv_heads * shape.v_head_size;
  for_run_rows(stream, shape, true, [&](std::int64_t begin, std::int64_t end) {
    set_delta<T>(args, begin, end);
    for (std::int64_t row = begin; row < end; ++row) {
      std::fill_n(sums.dq + row * sums.q_stride, q_columns, A{});
    }
  });
  for_run_rows(stream, shape, false, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::fill_n(sums.dk + row * sums.k_stride, k_columns, A{});
      std::fill_n(sums.dv + row * sums.v_stride, v_columns, A{});
    }
  });
  std::int64_t spans = 0;
  for (const AttentionRun& run : shape.runs) spans = std::max(spans, span_count(run));
  const auto runs = static_cast<std::int64_t>(shape.runs.size());
  for (std::int64_t phase = 0; phase < spans; ++phase) {
    stream.pool->run(spans * runs * shape.kv_heads, [&](std::int64_t piece) {
      const std::int64_t span = piece / (runs * shape.kv_heads), kv_head = piece % shape.kv_heads;
      const AttentionRun& run = shape.runs[static_cast<std::size_t>(piece / shape.kv_heads % runs)];
      const std::int64_t count = span_count(run), other = (span + phase) % count;
      if (span >= count || phase >= count) return;
      const std::int64_t blocks = ceil_div(block_count<A>(shape, run), count);
      const std::int64_t keys = ceil_div(ceil_div(run.k_count, kKeys), count) * kKeys;
      backward_span<T>({args, sums, run, kv_head}, span * blocks,
                       std::min((span + 1) * blocks, block_count<A>(shape, run)),
                       static_cast<int>(other * keys),
                       static_cast<int>(std::min<std::int64_t>((other + 1) * keys, run.k_count)));
    });
  }
}

template <class T>
void round_row(const float* __restrict from, std::int64_t columns, void* to, std::int64_t offset) {
  T* __restrict y = static_cast<T*>(to) + offset;
  for (std::int64_t j = 0; j < columns; ++j) y[j] = narrow<T>(from[j]);
}

template <class T>
void backward_rounded(const Stream& stream, const AttentionBackwardArgs& args) {
  const AttentionShape& shape = args.shape;
  const std::int64_t q_columns = shape.q_heads * shape.head_size;
  const std::int64_t k_columns = shape.kv_heads * shape.head_size;
  const std::int64_t v_columns = shape.kv_heads * shape.v_head_size;
  std::int64_t q_rows = 0, k_rows = 0;
  for (const AttentionRun& run : shape.runs) {
    q_rows = std::max<std::int64_t>(q_rows, run.q_begin + run.q_count);
    k_rows = std::max<std::int64_t>(k_rows, run.k_begin + run.k_count);
  }
  const std::int64_t elements = q_rows * q_columns + k_rows * (k_columns + v_columns);
  float* dq = reinterpret_cast<float*>(
      stream.pool->scratch(static_cast<std::size_t>(elements) * sizeof(float)));
  float *dk = dq + q_rows * q_columns, *dv = dk + k_rows * k_columns;
  sum_gradients<T>(stream, args, {dq, dk, dv, q_columns, k_columns, v_columns});
  for_run_rows(stream, shape, true, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      round_row<T>(dq + row * q_columns, q_columns, args.dq, row * shape.q_stride);
    }
  });
  for_run_rows(stream, shape, false, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      round_row<T>(dk + row * k_columns, k_columns, args.dk, row * shape.k_stride);
      round_row<T>(dv + row * v_columns, v_columns, args.dv, row * shape.v_stride);
    }
  });
}

}  // namespace

void attention_backward(const Stream& stream, const AttentionBackwardArgs& args) {
  check_attention(args.shape, kMaxHeadSize);
  const AttentionShape& shape = args.shape;
  visit_float(shape.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) > 2) {
      sum_gradients<T>(stream, args,
                       {static_cast<T*>(args.dq), static_cast<T*>(args.dk),
                        static_cast<T*>(args.dv), shape.q_stride, shape.k_stride, shape.v_stride});
    } else {
      backward_rounded<T>(stream, args);
    }
  });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
