// Without atomics and in a fixed order. For f32 and f64 dq, dk and dv are accumulated in place: a
// run is cut into n spans of queries and of keys, and in phase r span q meets span (q + r) % n, so
// that within a phase no two pieces write the same rows. 16-bit gradients cannot be accumulated in
// place: one pass over the query blocks gives dq, one over the key tiles dk and dv, and
// probabilities are computed twice.
#include "backend/cpu/kernels/attention_tiles.h"
#include "backend/cpu/kernels/lanes.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

constexpr int kSpan = 128;     // least keys in a span
constexpr int kMaxSpans = 16;  // of a run, and so phases

template <class A>
struct BackwardBlock {
  LaneBlock<A> lanes;
  alignas(64) A lse[kBlock<A>], delta[kBlock<A>];
  alignas(64) A query_rows[kBlock<A> * kMaxHeadSize];  // [lane, D], times scale
  alignas(64) A dout_rows[kBlock<A> * kMaxHeadSize];
  alignas(64) A queries[kMaxHeadSize * kBlock<A>];  // [D, lane]
  alignas(64) A douts[kMaxHeadSize * kBlock<A>];
  alignas(64) A dqueries[kMaxHeadSize * kBlock<A>];
  alignas(64) A keys[kKeys * kMaxHeadSize];  // [key, D]
  alignas(64) A values[kKeys * kMaxHeadSize];
  alignas(64) A dkeys[kKeys * kMaxHeadSize];
  alignas(64) A dvalues[kKeys * kMaxHeadSize];
  alignas(64) A probs[kKeys * kBlock<A>];  // [key, lane]
  alignas(64) A dscores[kKeys * kBlock<A>];
  alignas(64) A dropout[kKeys * kBlock<A>];
};

// One run and kv head of the arguments.
template <class T>
struct Part {
  using A = accumulate_t<T>;
  const AttentionBackwardArgs& args;
  const AttentionRun& run;
  std::int64_t kv_head;

  const AttentionShape& shape() const { return args.shape; }
  int head_size() const { return static_cast<int>(args.shape.head_size); }
  std::int64_t k_offset(int key) const {
    return (run.k_begin + key) * shape().k_stride + kv_head * head_size();
  }
  std::int64_t v_offset(int key) const {
    return (run.k_begin + key) * shape().v_stride + kv_head * head_size();
  }
  int tile_keys(int key) const { return std::min(kKeys, run.k_count - key); }
};

template <class T, class A = accumulate_t<T>>
void load_queries(const Part<T>& part, std::int64_t index, BackwardBlock<A>& block) {
  const AttentionShape& shape = part.shape();
  LaneBlock<A>& lanes = block.lanes;
  set_lanes(shape, part.run, part.kv_head, index, lanes);
  if (lanes.high_max < 0) return;
  const int head_size = part.head_size(), padded = padded_head(head_size);
  load_lanes(static_cast<const T*>(part.args.q), shape.q_stride, lanes, head_size,
             static_cast<A>(shape.scale), block.query_rows);
  load_lanes(part.args.dout.template as<T>(), shape.q_heads * shape.head_size, lanes, head_size,
             A{1}, block.dout_rows);
  transpose_lanes(lanes.width, padded, block.query_rows, block.queries);
  transpose_lanes(lanes.width, padded, block.dout_rows, block.douts);
  const A* lse = part.args.lse.template as<A>();
  const A* delta = part.args.delta.template as<A>();
  for (int i = 0; i < lanes.width; ++i) {
    const std::int64_t at = lanes.row[i] * shape.q_heads + lanes.head[i];
    block.lse[i] = lanes.high[i] < 0 ? 0 : lse[at];
    block.delta[i] = lanes.high[i] < 0 ? 0 : delta[at];
  }
}

template <class T, class A = accumulate_t<T>>
void load_keys(const Part<T>& part, int key, BackwardBlock<A>& block) {
  const AttentionShape& shape = part.shape();
  load_tile(static_cast<const T*>(part.args.k) + part.k_offset(key), shape.k_stride,
            part.tile_keys(key), part.head_size(), block.keys);
  load_tile(static_cast<const T*>(part.args.v) + part.v_offset(key), shape.v_stride,
            part.tile_keys(key), part.head_size(), block.values);
}

// From probs = raw scores and dscores = dout . value: probs become the probabilities that met the
// values, dscores the gradients of the raw scores.
template <class A>
void differentiate_tile(const AttentionShape& shape, int key, int keys, BackwardBlock<A>& block) {
  const LaneBlock<A>& lanes = block.lanes;
  const int width = lanes.width;
  const A softcap = static_cast<A>(shape.softcap), inverse = softcap > 0 ? 1 / softcap : 0;
  const bool masked = !lanes.all(key, key + keys), dropped = shape.dropout > 0;
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
      for (int i = 0; i < width; ++i) dscores[i] *= factors[i];
    }
    if (softcap > 0) {
      for (int i = 0; i < width; ++i) {
        // A masked score is infinite; its gradient is 0 all the same.
        const A ratio = probs[i] * inverse, slope = ratio < -1 ? 0 : 1 - ratio * ratio;
        dscores[i] = (dscores[i] - block.delta[i]) * slope;
        probs[i] = exp_of(probs[i] - block.lse[i]);
        dscores[i] *= probs[i];
      }
    } else {
      for (int i = 0; i < width; ++i) {
        probs[i] = exp_of(probs[i] - block.lse[i]);
        dscores[i] = probs[i] * (dscores[i] - block.delta[i]);
      }
    }
    if (dropped) {
      const A* __restrict factors = block.dropout + j * kBlock<A>;
      for (int i = 0; i < width; ++i) probs[i] *= factors[i];
    }
  }
}

// Adds a tile's part to dqueries and to dkeys, dvalues, as asked.
template <class A, bool kQueries, bool kKeysValues>
void backward_tile(const AttentionShape& shape, int key, int keys, BackwardBlock<A>& block) {
  constexpr int kStride = kBlock<A>;
  const int head_size = static_cast<int>(shape.head_size), padded = padded_head(head_size);
  const int width = block.lanes.width;
  tile_product<A, false, false>(keys, width, head_size, {block.keys, padded},
                                {block.queries, kStride}, {block.probs, kStride});
  tile_product<A, false, false>(keys, width, head_size, {block.values, padded},
                                {block.douts, kStride}, {block.dscores, kStride});
  differentiate_tile(shape, key, keys, block);
  if constexpr (kQueries) {
    tile_product<A, true, true>(head_size, width, keys, {block.keys, padded},
                                {block.dscores, kStride}, {block.dqueries, kStride});
  }
  if constexpr (kKeysValues) {
    tile_product<A, false, true>(keys, head_size, width, {block.dscores, kStride},
                                 {block.query_rows, padded}, {block.dkeys, padded});
    tile_product<A, false, true>(keys, head_size, width, {block.probs, kStride},
                                 {block.dout_rows, padded}, {block.dvalues, padded});
  }
}

// Adds (or writes) the block's dqueries times scale to dq. query_rows is no longer needed then.
template <class T, class A = accumulate_t<T>>
void store_dqueries(const Part<T>& part, bool add, BackwardBlock<A>& block) {
  const AttentionShape& shape = part.shape();
  const LaneBlock<A>& lanes = block.lanes;
  const int head_size = part.head_size(), padded = padded_head(head_size);
  const A scale = static_cast<A>(shape.scale);
  transpose_back(lanes.width, padded, block.dqueries, block.query_rows);
  for (int i = 0; i < lanes.count; ++i) {
    const A* __restrict from = block.query_rows + i * padded;
    T* __restrict to = static_cast<T*>(part.args.dq) + lanes.row[i] * shape.q_stride +
                       lanes.head[i] * shape.head_size;
    if (add) {
      for (int d = 0; d < head_size; ++d) to[d] = narrow<T>(widen(to[d]) + scale * from[d]);
    } else {
      for (int d = 0; d < head_size; ++d) to[d] = narrow<T>(scale * from[d]);
    }
  }
}

template <class T, class A>
void store_tile(const A* tile, int rows, int head_size, T* target, std::int64_t stride) {
  for (int row = 0; row < rows; ++row) {
    const A* __restrict from = tile + row * padded_head(head_size);
    T* __restrict to = target + row * stride;
    for (int d = 0; d < head_size; ++d) to[d] = narrow<T>(from[d]);
  }
}

template <class T, class A = accumulate_t<T>>
void store_dkeys(const Part<T>& part, int key, BackwardBlock<A>& block) {
  const AttentionShape& shape = part.shape();
  store_tile(block.dkeys, part.tile_keys(key), part.head_size(),
             static_cast<T*>(part.args.dk) + part.k_offset(key), shape.k_stride);
  store_tile(block.dvalues, part.tile_keys(key), part.head_size(),
             static_cast<T*>(part.args.dv) + part.v_offset(key), shape.v_stride);
}

template <class T>
void load_dkeys(const Part<T>& part, int key, BackwardBlock<T>& block) {
  const AttentionShape& shape = part.shape();
  load_tile(static_cast<const T*>(part.args.dk) + part.k_offset(key), shape.k_stride,
            part.tile_keys(key), part.head_size(), block.dkeys);
  load_tile(static_cast<const T*>(part.args.dv) + part.v_offset(key), shape.v_stride,
            part.tile_keys(key), part.head_size(), block.dvalues);
}

// Query blocks [block_begin, block_end) meet key tiles [tile_begin, tile_end), gradients added in
// place.
template <class T>
void backward_span(const Part<T>& part, std::int64_t block_begin, std::int64_t block_end,
                   std::int64_t tile_begin, std::int64_t tile_end) {
  BackwardBlock<T> block;
  const int key_begin = static_cast<int>(tile_begin) * kKeys;
  const int key_end = std::min(part.run.k_count, static_cast<int>(tile_end) * kKeys);
  for (std::int64_t index = block_begin; index < block_end; ++index) {
    set_lanes(part.shape(), part.run, part.kv_head, index, block.lanes);
    if (!block.lanes.any(key_begin, key_end)) continue;
    load_queries(part, index, block);
    std::fill_n(block.dqueries, padded_head(part.head_size()) * kBlock<T>, T{0});
    for (int key = key_begin; key < key_end; key += kKeys) {
      const int keys = part.tile_keys(key);
      if (!block.lanes.any(key, key + keys)) continue;
      load_keys(part, key, block);
      load_dkeys(part, key, block);
      backward_tile<T, true, true>(part.shape(), key, keys, block);
      store_dkeys(part, key, block);
    }
    store_dqueries(part, true, block);
  }
}

// dq of one query block, over all its keys.
template <class T>
void backward_queries(const Part<T>& part, std::int64_t index) {
  using A = accumulate_t<T>;
  BackwardBlock<A> block;
  load_queries(part, index, block);
  std::fill_n(block.dqueries, padded_head(part.head_size()) * kBlock<A>, A{0});
  const int end = block.lanes.high_max + 1;
  for (int key = end > 0 ? block.lanes.low_min / kKeys * kKeys : 0; key < end; key += kKeys) {
    load_keys(part, key, block);
    backward_tile<A, true, false>(part.shape(), key, part.tile_keys(key), block);
  }
  store_dqueries(part, false, block);
}

// dk and dv of one key tile, over all queries.
template <class T>
void backward_keys(const Part<T>& part, int key) {
  using A = accumulate_t<T>;
  BackwardBlock<A> block;
  const int keys = part.tile_keys(key);
  const std::int64_t blocks = block_count<A>(part.shape(), part.run);
  load_keys(part, key, block);
  std::fill_n(block.dkeys, kKeys * padded_head(part.head_size()), A{0});
  std::fill_n(block.dvalues, kKeys * padded_head(part.head_size()), A{0});
  for (std::int64_t index = 0; index < blocks; ++index) {
    set_lanes(part.shape(), part.run, part.kv_head, index, block.lanes);
    if (!block.lanes.any(key, key + keys)) continue;
    load_queries(part, index, block);
    backward_tile<A, false, true>(part.shape(), key, keys, block);
  }
  store_dkeys(part, key, block);
}

// delta = dout . out per query and head; clears dq, dk, dv where they are accumulated in place.
template <class T>
void set_delta(const Stream& stream, const AttentionBackwardArgs& args) {
  using A = accumulate_t<T>;
  const T *out = args.out.as<T>(), *dout = args.dout.as<T>();
  A* delta = args.delta.as<A>();
  const std::int64_t heads = args.shape.q_heads, head_size = args.shape.head_size;
  for (const AttentionRun& run : args.shape.runs) {
    for_ranges(stream, run.q_count, rows_per_piece(heads * head_size),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = (run.q_begin + begin) * heads;
                      i < (run.q_begin + end) * heads; ++i) {
                   const T *a = out + i * head_size, *b = dout + i * head_size;
                   delta[i] = sum_of<A>(head_size,
                                        [&](std::int64_t d) { return widen(a[d]) * widen(b[d]); });
                 }
               });
  }
}

template <class T>
void clear_rows(const Stream& stream, void* data, std::int64_t stride, std::int64_t begin,
                std::int64_t rows, std::int64_t columns) {
  for_ranges(stream, rows, rows_per_piece(columns), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = begin + first; row < begin + last; ++row) {
      std::fill_n(static_cast<T*>(data) + row * stride, columns, T{});
    }
  });
}

std::int64_t span_count(const AttentionRun& run) {
  return std::clamp<std::int64_t>(ceil_div(std::max(run.q_count, run.k_count), kSpan), 1,
                                  kMaxSpans);
}

template <class T>
void backward_in_place(const Stream& stream, const AttentionBackwardArgs& args) {
  const AttentionShape& shape = args.shape;
  std::int64_t spans = 0;
  for (const AttentionRun& run : shape.runs) {
    clear_rows<T>(stream, args.dq, shape.q_stride, run.q_begin, run.q_count,
                  shape.q_heads * shape.head_size);
    clear_rows<T>(stream, args.dk, shape.k_stride, run.k_begin, run.k_count,
                  shape.kv_heads * shape.head_size);
    clear_rows<T>(stream, args.dv, shape.v_stride, run.k_begin, run.k_count,
                  shape.kv_heads * shape.head_size);
    spans = std::max(spans, span_count(run));
  }
  const auto runs = static_cast<std::int64_t>(shape.runs.size());
  for (std::int64_t phase = 0; phase < spans; ++phase) {
    stream.pool->run(spans * runs * shape.kv_heads, [&](std::int64_t piece) {
      const std::int64_t span = piece / (runs * shape.kv_heads), kv_head = piece % shape.kv_heads;
      const AttentionRun& run = shape.runs[static_cast<std::size_t>(piece / shape.kv_heads % runs)];
      const std::int64_t count = span_count(run), other = (span + phase) % count;
      if (span >= count || phase >= count) return;
      const std::int64_t blocks = ceil_div(block_count<T>(shape, run), count);
      const std::int64_t tiles = ceil_div(ceil_div(run.k_count, kKeys), count);
      backward_span<T>({args, run, kv_head}, span * blocks,
                       std::min((span + 1) * blocks, block_count<T>(shape, run)), other * tiles,
                       (other + 1) * tiles);
    });
  }
}

template <class T>
void backward_in_two_passes(const Stream& stream, const AttentionBackwardArgs& args) {
  using A = accumulate_t<T>;
  const AttentionShape& shape = args.shape;
  const auto runs = static_cast<std::int64_t>(shape.runs.size());
  const std::int64_t per_block = runs * shape.kv_heads;
  const std::int64_t blocks = max_block_count<A>(shape), tiles = max_tile_count(shape);
  const auto part_of = [&](std::int64_t piece) -> Part<T> {
    const auto run = static_cast<std::size_t>(piece % per_block / shape.kv_heads);
    return {args, shape.runs[run], piece % shape.kv_heads};
  };
  stream.pool->run(blocks * per_block, [&](std::int64_t piece) {
    const Part<T> part = part_of(piece);
    const std::int64_t index = blocks - 1 - piece / per_block;
    if (index < block_count<A>(shape, part.run)) backward_queries(part, index);
  });
  stream.pool->run(tiles * per_block, [&](std::int64_t piece) {
    const Part<T> part = part_of(piece);
    const auto key = static_cast<int>(piece / per_block) * kKeys;
    if (key < part.run.k_count) backward_keys(part, key);
  });
}

}  // namespace

void attention_backward(const Stream& stream, const AttentionBackwardArgs& args) {
  check_attention(args.shape);
  visit_float(args.shape.dtype, [&](auto zero) {
    using T = decltype(zero);
    set_delta<T>(stream, args);
    if constexpr (sizeof(T) > 2) {
      backward_in_place<T>(stream, args);
    } else {
      backward_in_two_passes<T>(stream, args);
    }
  });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
