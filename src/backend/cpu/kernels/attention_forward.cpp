// FlashAttention forward on the CPU with online softmax, and a path for decoding and wide heads
// (MLA).
#include <cmath>
#include <span>
#include <type_traits>

#include "backend/cpu/kernels/attention_tiles.h"
#include "backend/cpu/kernels/lanes.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// Few enough pairs that vectorising along D beats vectorising along the lanes.
constexpr int kDecodeRows = 4;

// A block of queries.
template <class A>
struct ForwardBlock {
  LaneBlock<A> lanes;
  alignas(64) A max[kBlock<A>], sum[kBlock<A>], alpha[kBlock<A>];
  alignas(64) A queries[kMaxHeadSize * kBlock<A>];  // [D, lane]
  alignas(64) A out[kMaxHeadSize * kBlock<A>];      // [D, lane]
};

// Work of one thread, on its stack: several blocks that share the key tiles.
constexpr int kBlocks = 2;
template <class A>
struct ForwardPiece {
  ForwardBlock<A> blocks[kBlocks];
  alignas(64) A rows[kBlock<A> * kMaxHeadSize];  // [lane, D]
  alignas(64) A keys[kKeys * kMaxHeadSize];      // [key, D]
  alignas(64) A values[kKeys * kMaxHeadSize];
  alignas(64) A scores[kKeys * kBlock<A>];  // [key, lane]
  alignas(64) A dropout[kKeys * kBlock<A>];
};

// Online softmax: scores become exp(score - max), alpha the factor that rescales earlier sums.
template <class A>
void update_softmax(int keys, int width, A* __restrict scores, A* __restrict max, A* __restrict sum,
                    A* __restrict alpha) {
  constexpr A kNone = -std::numeric_limits<A>::infinity();
  alignas(64) A shift[kBlock<A>];
  for (int i = 0; i < width; ++i) shift[i] = max[i];
  for (int j = 0; j < keys; ++j) {
    const A* __restrict row = scores + j * kBlock<A>;
    for (int i = 0; i < width; ++i) shift[i] = row[i] > shift[i] ? row[i] : shift[i];
  }
  for (int i = 0; i < width; ++i) {
    const A old = max[i];
    max[i] = shift[i];
    shift[i] = shift[i] == kNone ? 0 : shift[i];
    alpha[i] = exp_of(old - shift[i]);
    sum[i] *= alpha[i];
  }
  for (int j = 0; j < keys; ++j) {
    A* __restrict row = scores + j * kBlock<A>;
    for (int i = 0; i < width; ++i) row[i] = exp_of(row[i] - shift[i]);
    for (int i = 0; i < width; ++i) sum[i] += row[i];
  }
}

template <class A>
void scale_lanes(int rows, int width, const A* __restrict alpha, A* __restrict out) {
  bool changed = false;
  for (int i = 0; i < width; ++i) changed |= alpha[i] != 1;
  if (!changed) return;
  for (int d = 0; d < rows; ++d) {
    A* __restrict row = out + d * kBlock<A>;
    for (int i = 0; i < width; ++i) row[i] *= alpha[i];
  }
}

// Combines a block with the key tile that begins at key_begin.
template <class A>
void forward_tile(const AttentionShape& shape, int key_begin, ForwardBlock<A>& block,
                  ForwardPiece<A>& piece) {
  const LaneBlock<A>& lanes = block.lanes;
  if (!lanes.any(key_begin, key_begin + kKeys)) return;
  const int head_size = static_cast<int>(shape.head_size), padded = padded_head(head_size);
  const int v_size = static_cast<int>(shape.v_head_size), v_padded = padded_head(v_size);
  const int keys = std::min(kKeys, lanes.high_max + 1 - key_begin);
  for_key_groups(lanes, key_begin, keys, [&](int first, int count, int lane) {
    const int row = first - key_begin;
    tile_gemm<A, false, false>(
        count, lanes.width - lane, head_size, {piece.keys + row * padded, padded},
        {block.queries + lane, kBlock<A>}, {piece.scores + row * kBlock<A> + lane, kBlock<A>});
  });
  if (shape.rule.softcap > 0) {
    cap_scores(keys, lanes.width, static_cast<A>(shape.rule.softcap), piece.scores);
  }
  if (!lanes.all(key_begin, key_begin + keys)) {
    mask_scores(lanes, key_begin, keys, -std::numeric_limits<A>::infinity(), piece.scores);
  }
  update_softmax(keys, lanes.width, piece.scores, block.max, block.sum, block.alpha);
  if (shape.rule.dropout > 0) {
    set_dropout(shape, lanes, key_begin, keys, piece.dropout);
    for (int j = 0; j < keys; ++j) {
      A* __restrict row = piece.scores + j * kBlock<A>;
      const A* __restrict factors = piece.dropout + j * kBlock<A>;
      for (int i = 0; i < lanes.width; ++i) row[i] *= factors[i];
    }
  }
  scale_lanes(v_padded, lanes.width, block.alpha, block.out);
  for_key_groups(lanes, key_begin, keys, [&](int first, int count, int lane) {
    const int row = first - key_begin;
    tile_gemm<A, true, true>(
        v_size, lanes.width - lane, count, {piece.values + row * v_padded, v_padded},
        {piece.scores + row * kBlock<A> + lane, kBlock<A>}, {block.out + lane, kBlock<A>});
  });
}

template <class T, class A = accumulate_t<T>>
void start_block(const AttentionForwardArgs& args, ForwardBlock<A>& block, A* rows) {
  const AttentionShape& shape = args.shape;
  const int head_size = static_cast<int>(shape.head_size), padded = padded_head(head_size);
  load_lanes(static_cast<const T*>(args.q), shape.q_stride, block.lanes, head_size,
             static_cast<A>(shape.rule.scale), rows);
  transpose_lanes(block.lanes.width, padded, rows, block.queries);
  std::fill_n(block.out, padded_head(static_cast<int>(shape.v_head_size)) * kBlock<A>, A{0});
  std::fill_n(block.sum, kBlock<A>, A{0});
  std::fill_n(block.max, kBlock<A>, -std::numeric_limits<A>::infinity());
}

template <class T, class A = accumulate_t<T>>
void finish_block(const AttentionForwardArgs& args, ForwardBlock<A>& block, A* rows) {
  const AttentionShape& shape = args.shape;
  const int v_size = static_cast<int>(shape.v_head_size), padded = padded_head(v_size);
  const LaneBlock<A>& lanes = block.lanes;
  A* lse = args.lse.as<A>();
  for (int i = 0; i < lanes.width; ++i) block.alpha[i] = block.sum[i] == 0 ? 0 : 1 / block.sum[i];
  for (int i = 0; i < lanes.count; ++i) {
    lse[lanes.row[i] * shape.q_heads + lanes.head[i]] = block.max[i] + std::log(block.sum[i]);
  }
  scale_lanes(padded, lanes.width, block.alpha, block.out);
  transpose_back(lanes.width, padded, block.out, rows);
  store_lanes(rows, lanes, v_size, args.out.as<T>(), shape.q_heads * shape.v_head_size);
}

// Blocks [begin, end) of a run and kv head.
template <class T>
void forward_blocks(const AttentionForwardArgs& args, const AttentionRun& run, std::int64_t kv_head,
                    std::int64_t begin, std::int64_t end) {
  using A = accumulate_t<T>;
  const AttentionShape& shape = args.shape;
  const int head_size = static_cast<int>(shape.head_size);
  const int v_size = static_cast<int>(shape.v_head_size);
  ForwardPiece<A> piece;
  const std::span<ForwardBlock<A>> blocks(piece.blocks, static_cast<std::size_t>(end - begin));
  int low = run.k_count, high = -1;
  for (ForwardBlock<A>& block : blocks) {
    set_lanes(shape, run, kv_head, begin++, block.lanes);
    start_block<T>(args, block, piece.rows);
    low = std::min(low, block.lanes.low_min);
    high = std::max(high, block.lanes.high_max);
  }
  const T* k = static_cast<const T*>(args.k) + run.k_begin * shape.k_stride + kv_head * head_size;
  const T* v = static_cast<const T*>(args.v) + run.k_begin * shape.v_stride + kv_head * v_size;
  for (int key = low / kKeys * kKeys; key <= high; key += kKeys) {
    const int keys = std::min(kKeys, high + 1 - key);
    load_tile(k + key * shape.k_stride, shape.k_stride, keys, head_size, piece.keys);
    load_tile(v + key * shape.v_stride, shape.v_stride, keys, v_size, piece.values);
    for (ForwardBlock<A>& block : blocks) forward_tile(shape, key, block, piece);
  }
  for (ForwardBlock<A>& block : blocks) finish_block<T>(args, block, piece.rows);
}

// Rows of a tile as A: in place if type and padding allow it, else copied to buffer.
template <class T, class A>
Tile<const A> tile_rows(const T* source, std::int64_t stride, int rows, int head_size, A* buffer) {
  const int padded = padded_head(head_size);
  if constexpr (std::is_same_v<T, A>) {
    if (padded == head_size) return {source, stride};
  }
  load_tile(source, stride, rows, head_size, buffer);
  return {buffer, padded};
}

// Decoding, few queries over many keys: keys are read once, and each score is a dot product along
// D.
template <class A>
struct DecodeRow {
  alignas(64) A query[kWideHeadSize], out[kWideHeadSize], scores[kKeys];
  A max = -std::numeric_limits<A>::infinity(), sum = 0;
};

template <class A>
void dot_rows(Tile<const A> rows, int count, int padded, const A* query, A* dots) {
  using Wide = typename Lanes<A>::type;
  constexpr int kWide = static_cast<int>(Lanes<A>::kCount);
  for (int j = 0; j < count; ++j) {
    const A* row = rows.data + j * rows.stride;
    prefetch_row(row, rows.stride, padded);
    Wide sum = {};
    for (int d = 0; d < padded; d += kWide) {
      Wide a, b;
      __builtin_memcpy(&a, row + d, sizeof a);
      __builtin_memcpy(&b, query + d, sizeof b);
      sum += a * b;
    }
    dots[j] = add_lanes<A>(sum);
  }
}

template <class A>
void decode_softmax(const AttentionShape& shape, int key_begin, int keys, int low, int high,
                    DecodeRow<A>& row) {
  constexpr A kNone = -std::numeric_limits<A>::infinity();
  const A softcap = static_cast<A>(shape.rule.softcap);
  if (softcap > 0) {
    for (int j = 0; j < keys; ++j) row.scores[j] = softcap * tanh_of(row.scores[j] / softcap);
  }
  const A old = row.max;
  for (int j = 0; j < keys; ++j) {
    const int key = key_begin + j;
    row.scores[j] = (key >= low) & (key <= high) ? row.scores[j] : kNone;
    row.max = row.scores[j] > row.max ? row.scores[j] : row.max;
  }
  const A shift = row.max == kNone ? 0 : row.max;
  for (int j = 0; j < keys; ++j) row.scores[j] = exp_of(row.scores[j] - shift);
  const A alpha = exp_of(old - shift);
  row.sum = row.sum * alpha + sum_of<A>(keys, [&](std::int64_t j) { return row.scores[j]; });
  const std::int64_t width = padded_head(static_cast<int>(shape.v_head_size));
  for (std::int64_t d = 0; d < width; ++d) row.out[d] *= alpha;
}

template <class A>
void add_rows(Tile<const A> rows, int count, int padded, const A* factors, A* out) {
  for (int j = 0; j < count; ++j) {
    const A* row = rows.data + j * rows.stride;
    prefetch_row(row, rows.stride, padded);
    for (int d = 0; d < padded; d += kVectorLanes<A>) {
      vector_at(out + d) += factors[j] * vector_at(row + d);
    }
  }
}

// At most kDecodeRows pairs of a run and kv head, starting at pair `begin`.
template <class T>
void decode_pairs(const AttentionForwardArgs& args, const AttentionRun& run, std::int64_t kv_head,
                  std::int64_t begin) {
  using A = accumulate_t<T>;
  const AttentionShape& shape = args.shape;
  const int head_size = static_cast<int>(shape.head_size), padded = padded_head(head_size);
  const int v_size = static_cast<int>(shape.v_head_size), v_padded = padded_head(v_size);
  LaneBlock<A> lanes;
  set_lanes(shape, run, kv_head, begin / kBlock<A>, lanes);
  const int first = static_cast<int>(begin % kBlock<A>);
  const int count = std::min(kDecodeRows, lanes.count - first);
  DecodeRow<A> rows[kDecodeRows];
  alignas(64) A buffer[kKeys * kWideHeadSize];
  int low = run.k_count, end = 0;
  for (int i = 0; i < count; ++i) {
    const int lane = first + i;
    if (lanes.high[lane] >= 0) low = std::min(low, lanes.low[lane]);
    end = std::max(end, lanes.high[lane] + 1);
    const T* q = static_cast<const T*>(args.q) + lanes.row[lane] * shape.q_stride +
                 lanes.head[lane] * shape.head_size;
    load_tile(q, 0, 1, head_size, buffer);
    for (int d = 0; d < padded; ++d)
      rows[i].query[d] = buffer[d] * static_cast<A>(shape.rule.scale);
    std::fill_n(rows[i].out, v_padded, A{0});
  }
  const T* k = static_cast<const T*>(args.k) + run.k_begin * shape.k_stride + kv_head * head_size;
  const T* v = static_cast<const T*>(args.v) + run.k_begin * shape.v_stride + kv_head * v_size;
  for (int key = low; key < end; key += kKeys) {
    const int keys = std::min(kKeys, end - key);
    Tile<const A> tile =
        tile_rows(k + key * shape.k_stride, shape.k_stride, keys, head_size, buffer);
    for (int i = 0; i < count; ++i) {
      dot_rows(tile, keys, padded, rows[i].query, rows[i].scores);
      decode_softmax(shape, key, keys, lanes.low[first + i], lanes.high[first + i], rows[i]);
    }
    tile = tile_rows(v + key * shape.v_stride, shape.v_stride, keys, v_size, buffer);
    for (int i = 0; i < count; ++i) {
      add_rows(tile, keys, v_padded, rows[i].scores, rows[i].out);
    }
  }
  for (int i = 0; i < count; ++i) {
    const std::int64_t at = lanes.row[first + i] * shape.q_heads + lanes.head[first + i];
    args.lse.as<A>()[at] = rows[i].max + std::log(rows[i].sum);
    const A factor = rows[i].sum == 0 ? 0 : 1 / rows[i].sum;
    T* out = args.out.as<T>() + at * shape.v_head_size;
    for (int d = 0; d < v_size; ++d) out[d] = narrow<T>(rows[i].out[d] * factor);
  }
}

bool is_wide(const AttentionShape& shape) {
  return std::max(shape.head_size, shape.v_head_size) > kMaxHeadSize;
}

// Heads that are too wide for blocks.
template <class T>
void run_wide(const Stream& stream, const AttentionForwardArgs& args) {
  const AttentionShape& shape = args.shape;
  std::int64_t most = 0;
  for (const AttentionRun& run : shape.runs) {
    most = std::max(most, ceil_div(run.q_count * group_size(shape), kDecodeRows));
  }
  const auto runs = static_cast<std::int64_t>(shape.runs.size());
  stream.pool->run(most * runs * shape.kv_heads, [&](std::int64_t piece) {
    const AttentionRun& run = shape.runs[static_cast<std::size_t>(piece / shape.kv_heads % runs)];
    const std::int64_t begin = piece / (shape.kv_heads * runs) * kDecodeRows;
    if (begin >= run.q_count * group_size(shape)) return;
    decode_pairs<T>(args, run, piece % shape.kv_heads, begin);
  });
}

template <class T>
void run_forward(const Stream& stream, const AttentionForwardArgs& args) {
  using A = accumulate_t<T>;
  const AttentionShape& shape = args.shape;
  if (is_wide(shape)) return run_wide<T>(stream, args);
  const auto runs = static_cast<std::int64_t>(shape.runs.size());
  const std::int64_t groups = ceil_div(max_block_count<A>(shape), kBlocks);
  const std::int64_t per_group = runs * shape.kv_heads;
  // The last queries see most keys: they are scheduled first, so that no long piece is left at the
  // end.
  stream.pool->run(groups * per_group, [&](std::int64_t piece) {
    const AttentionRun& run =
        shape.runs[static_cast<std::size_t>(piece % per_group / shape.kv_heads)];
    const std::int64_t kv_head = piece % shape.kv_heads, count = block_count<A>(shape, run);
    const std::int64_t begin = (groups - 1 - piece / per_group) * kBlocks;
    if (begin >= count) return;
    if (run.q_count * group_size(shape) <= kDecodeRows && shape.rule.dropout == 0) {
      decode_pairs<T>(args, run, kv_head, 0);
    } else {
      forward_blocks<T>(args, run, kv_head, begin, std::min(begin + kBlocks, count));
    }
  });
}

}  // namespace

void attention_forward(const Stream& stream, const AttentionForwardArgs& args) {
  check_attention(args.shape, args.shape.rule.dropout > 0 ? kMaxHeadSize : kWideHeadSize);
  if (args.key_counts != nullptr) {
    std::vector<AttentionRun> runs(args.shape.runs.begin(), args.shape.runs.end());
    for (std::size_t i = 0; i < runs.size(); ++i) {
      runs[i].k_count = args.key_counts[i];
      runs[i].offset = runs[i].k_count - runs[i].q_count;
    }
    AttentionForwardArgs now = args;
    now.shape.runs = runs;
    now.key_counts = nullptr;
    return attention_forward(stream, now);
  }
  visit_float(args.shape.dtype, [&](auto zero) { run_forward<decltype(zero)>(stream, args); });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
