// FlashAttention forward on the CPU with online softmax, and a path for decoding and wide heads
// (MLA).
//
// Tiles of keys begin at multiples of kKeys from the first key of the run, and a lane's sums run
// over its keys in order: masked keys add exact zeros. So the bits of a lane depend neither on the
// other lanes nor on how the queries of a sequence are cut into calls. Only the choice between
// blocks and decoding depends on the number of queries; the exact forward leaves it out.
#include <atomic>
#include <bit>
#include <cmath>
#include <span>
#include <type_traits>
#include <vector>

#include "backend/cpu/kernels/attention_tiles.h"
#include "backend/cpu/kernels/key_rows.h"
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

// out += values^T P. Each strip of lanes stops after the last key that one of them sees, which
// skips the part of a causal tile above the diagonal.
template <class A>
void add_values(const LaneBlock<A>& lanes, int key_begin, int keys, int v_size,
                const ForwardPiece<A>& piece, A* out) {
  const int v_padded = padded_head(v_size);
  const bool all = lanes.all(key_begin, key_begin + keys);
  const int strip = all ? lanes.width : 2 * kVectorLanes<A>;
  for (int lane = 0; lane < lanes.width; lane += strip) {
    const int width = std::min(strip, lanes.width - lane);
    const int last = all ? key_begin + keys - 1
                         : *std::max_element(lanes.high + lane, lanes.high + lane + width);
    const int count = std::min(keys, last + 1 - key_begin);
    if (count <= 0) continue;
    tile_gemm<A, true, true>(v_size, width, count, {piece.values, v_padded},
                             {piece.scores + lane, kBlock<A>}, {out + lane, kBlock<A>});
  }
}

// Combines a block with the key tile that begins at key_begin.
template <class A>
void forward_tile(const AttentionShape& shape, int key_begin, ForwardBlock<A>& block,
                  ForwardPiece<A>& piece) {
  const LaneBlock<A>& lanes = block.lanes;
  if (!lanes.any(key_begin, key_begin + kKeys)) return;
  const int head_size = static_cast<int>(shape.head_size), padded = padded_head(head_size);
  const int v_size = static_cast<int>(shape.v_head_size);
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
  scale_lanes(padded_head(v_size), lanes.width, block.alpha, block.out);
  add_values(lanes, key_begin, keys, v_size, piece, block.out);
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

// Pieces of several threads share the heads.
template <class A>
void raise_logit(const AttentionForwardArgs& args, std::int64_t head, A score) {
  if (args.max_logits.empty()) return;
  std::atomic_ref<A> largest(args.max_logits.as<A>()[head]);
  A known = largest.load(std::memory_order_relaxed);
  while (score > known && !largest.compare_exchange_weak(known, score, std::memory_order_relaxed)) {
  }
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
    raise_logit(args, lanes.head[i], block.max[i]);
  }
  // Adding 0 makes the sign of a zero independent of which zeros were added before.
  for (int d = 0; d < padded; ++d) {
    A* __restrict row = block.out + d * kBlock<A>;
    for (int i = 0; i < lanes.width; ++i) row[i] = row[i] * block.alpha[i] + 0;
  }
  transpose_back(lanes.width, padded, block.out, rows);
  store_lanes(rows, lanes, v_size, args.out.as<T>(), shape.q_heads * shape.v_head_size);
}

// What a piece of work attends to: a run, its keys, and a kv head.
struct RunHead {
  const AttentionRun& run;
  KeyRows keys;
  std::int64_t kv_head;

  template <class T>
  const T* k(const AttentionForwardArgs& args) const {
    return static_cast<const T*>(args.k) + kv_head * args.shape.head_size;
  }
  template <class T>
  const T* v(const AttentionForwardArgs& args) const {
    return static_cast<const T*>(args.v) + kv_head * args.shape.v_head_size;
  }
};

// Tile that begins at `key` for queries that see no key outside of [low, high]. Keys that no query
// sees are not read: a paged cache may have given up their blocks.
KeyTile tile_at(int key, int low, int high) {
  return {.key = key, .first = std::max(0, low - key), .count = std::min(kKeys, high + 1 - key)};
}

// Blocks [begin, end) of a run and kv head.
template <class T>
void forward_blocks(const AttentionForwardArgs& args, const RunHead& at, std::int64_t begin,
                    std::int64_t end) {
  using A = accumulate_t<T>;
  const AttentionShape& shape = args.shape;
  const int head_size = static_cast<int>(shape.head_size);
  const int v_size = static_cast<int>(shape.v_head_size);
  ForwardPiece<A> piece;
  const std::span<ForwardBlock<A>> blocks(piece.blocks, static_cast<std::size_t>(end - begin));
  int low = at.run.k_count, high = -1;
  for (ForwardBlock<A>& block : blocks) {
    set_lanes(shape, at.run, at.kv_head, begin++, block.lanes);
    start_block<T>(args, block, piece.rows);
    low = std::min(low, block.lanes.low_min);
    high = std::max(high, block.lanes.high_max);
  }
  const T *k = at.k<T>(args), *v = at.v<T>(args);
  for (int key = low / kKeys * kKeys; key <= high; key += kKeys) {
    const KeyTile tile = tile_at(key, low, high);
    at.keys.load(k, shape.k_stride, tile, head_size, piece.keys);
    at.keys.load(v, shape.v_stride, tile, v_size, piece.values);
    for (ForwardBlock<A>& block : blocks) forward_tile(shape, key, block, piece);
  }
  for (ForwardBlock<A>& block : blocks) finish_block<T>(args, block, piece.rows);
}

// Rows of a tile as A: in place if type, padding and adjacency allow it, else copied to buffer.
template <class T, class A>
Tile<const A> tile_rows(const KeyRows& keys, const T* source, std::int64_t stride,
                        const KeyTile& at, int head_size, A* buffer) {
  const int padded = padded_head(head_size), loaded = at.count - at.first;
  if constexpr (std::is_same_v<T, A>) {
    if (padded == head_size && keys.adjacent(at.key + at.first, loaded) == loaded) {
      return {source + (keys.row(at.key + at.first) - at.first) * stride, stride};
    }
  }
  keys.load(source, stride, at, head_size, buffer);
  return {buffer, padded};
}

// Decoding, few queries over many keys: keys are read once, and each score is a dot product along
// D.
template <class A>
struct DecodeRow {
  alignas(64) A query[kWideHeadSize], out[kWideHeadSize], scores[kKeys] = {};
  A max = -std::numeric_limits<A>::infinity(), sum = 0;
};

template <class A>
void dot_rows(Tile<const A> rows, const KeyTile& at, int padded, const A* query, A* dots) {
  using Wide = typename Lanes<A>::type;
  constexpr int kWide = static_cast<int>(Lanes<A>::kCount);
  for (int j = at.first; j < at.count; ++j) {
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

// Always over a whole tile, so that the order of the sum does not depend on the end of the keys.
template <class A>
void decode_softmax(const AttentionShape& shape, int key_begin, int low, int high,
                    DecodeRow<A>& row) {
  constexpr A kNone = -std::numeric_limits<A>::infinity();
  const A softcap = static_cast<A>(shape.rule.softcap);
  if (softcap > 0) {
    for (int j = 0; j < kKeys; ++j) row.scores[j] = softcap * tanh_of(row.scores[j] / softcap);
  }
  const A old = row.max;
  for (int j = 0; j < kKeys; ++j) {
    const int key = key_begin + j;
    row.scores[j] = (key >= low) & (key <= high) ? row.scores[j] : kNone;
    row.max = row.scores[j] > row.max ? row.scores[j] : row.max;
  }
  const A shift = row.max == kNone ? 0 : row.max;
  for (int j = 0; j < kKeys; ++j) row.scores[j] = exp_of(row.scores[j] - shift);
  const A alpha = exp_of(old - shift);
  row.sum = row.sum * alpha + sum_of<A>(kKeys, [&](std::int64_t j) { return row.scores[j]; });
  const std::int64_t width = padded_head(static_cast<int>(shape.v_head_size));
  for (std::int64_t d = 0; d < width; ++d) row.out[d] *= alpha;
}

template <class A>
void add_rows(Tile<const A> rows, const KeyTile& at, int padded, const A* factors, A* out) {
  for (int j = at.first; j < at.count; ++j) {
    const A* row = rows.data + j * rows.stride;
    prefetch_row(row, rows.stride, padded);
    for (int d = 0; d < padded; d += kVectorLanes<A>) {
      vector_at(out + d) += factors[j] * vector_at(row + d);
    }
  }
}

// Starts the rows of the pairs from lane `first` on. Returns the keys they see, as a tile.
template <class T, class A = accumulate_t<T>>
KeyTile start_rows(const AttentionForwardArgs& args, const LaneBlock<A>& lanes, int first,
                   std::span<DecodeRow<A>> rows) {
  const AttentionShape& shape = args.shape;
  const int head_size = static_cast<int>(shape.head_size), padded = padded_head(head_size);
  KeyTile seen{.first = std::numeric_limits<int>::max(), .count = 0};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const int lane = first + static_cast<int>(i);
    if (lanes.high[lane] >= 0) seen.first = std::min(seen.first, lanes.low[lane]);
    seen.count = std::max(seen.count, lanes.high[lane] + 1);
    const T* q = static_cast<const T*>(args.q) + lanes.row[lane] * shape.q_stride +
                 lanes.head[lane] * shape.head_size;
    load_rows(q, 0, 1, head_size, rows[i].query);
    for (int d = 0; d < padded; ++d) rows[i].query[d] *= static_cast<A>(shape.rule.scale);
    std::fill_n(rows[i].out, padded_head(static_cast<int>(shape.v_head_size)), A{0});
  }
  return seen;
}

// At most kDecodeRows pairs of a run and kv head, starting at pair `begin`.
template <class T>
void decode_pairs(const AttentionForwardArgs& args, const RunHead& at, std::int64_t begin) {
  using A = accumulate_t<T>;
  const AttentionShape& shape = args.shape;
  const int head_size = static_cast<int>(shape.head_size);
  const int v_size = static_cast<int>(shape.v_head_size), v_padded = padded_head(v_size);
  LaneBlock<A> lanes;
  set_lanes(shape, at.run, at.kv_head, begin / kBlock<A>, lanes);
  const int first = static_cast<int>(begin % kBlock<A>);
  const int count = std::min(kDecodeRows, lanes.count - first);
  DecodeRow<A> rows[kDecodeRows];
  alignas(64) A buffer[kKeys * kWideHeadSize];
  const KeyTile seen = start_rows<T>(args, lanes, first, {rows, static_cast<std::size_t>(count)});
  for (int key = seen.first / kKeys * kKeys; key < seen.count; key += kKeys) {
    const KeyTile now = tile_at(key, seen.first, seen.count - 1);
    Tile<const A> tile = tile_rows(at.keys, at.k<T>(args), shape.k_stride, now, head_size, buffer);
    for (int i = 0; i < count; ++i) {
      dot_rows(tile, now, padded_head(head_size), rows[i].query, rows[i].scores);
      decode_softmax(shape, key, lanes.low[first + i], lanes.high[first + i], rows[i]);
    }
    tile = tile_rows(at.keys, at.v<T>(args), shape.v_stride, now, v_size, buffer);
    for (int i = 0; i < count; ++i) add_rows(tile, now, v_padded, rows[i].scores, rows[i].out);
  }
  for (int i = 0; i < count; ++i) {
    const std::int64_t row = lanes.row[first + i] * shape.q_heads + lanes.head[first + i];
    args.lse.as<A>()[row] = rows[i].max + std::log(rows[i].sum);
    raise_logit(args, lanes.head[first + i], rows[i].max);
    const A factor = rows[i].sum == 0 ? 0 : 1 / rows[i].sum;
    T* out = args.out.as<T>() + row * shape.v_head_size;
    for (int d = 0; d < v_size; ++d) out[d] = narrow<T>(rows[i].out[d] * factor + 0);
  }
}

bool is_wide(const AttentionShape& shape) {
  return std::max(shape.head_size, shape.v_head_size) > kMaxHeadSize;
}

RunHead run_head(const AttentionForwardArgs& args, std::int64_t run, std::int64_t kv_head) {
  const AttentionRun& of = args.shape.runs[static_cast<std::size_t>(run)];
  return {.run = of, .keys = KeyRows(args.pages, run, of.k_begin), .kv_head = kv_head};
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
    const RunHead at = run_head(args, piece / shape.kv_heads % runs, piece % shape.kv_heads);
    const std::int64_t begin = piece / (shape.kv_heads * runs) * kDecodeRows;
    if (begin < at.run.q_count * group_size(shape)) decode_pairs<T>(args, at, begin);
  });
}

template <class T>
void run_forward(const Stream& stream, const AttentionForwardArgs& args, bool exact) {
  using A = accumulate_t<T>;
  const AttentionShape& shape = args.shape;
  if (is_wide(shape)) return run_wide<T>(stream, args);
  const auto runs = static_cast<std::int64_t>(shape.runs.size());
  const std::int64_t groups = ceil_div(max_block_count<A>(shape), kBlocks);
  const std::int64_t per_group = runs * shape.kv_heads;
  // The last queries see most keys: they are scheduled first, so that no long piece is left at the
  // end.
  stream.pool->run(groups * per_group, [&](std::int64_t piece) {
    const RunHead at = run_head(args, piece % per_group / shape.kv_heads, piece % shape.kv_heads);
    const std::int64_t count = block_count<A>(shape, at.run);
    const std::int64_t begin = (groups - 1 - piece / per_group) * kBlocks;
    if (begin >= count) return;
    if (!exact && at.run.q_count * group_size(shape) <= kDecodeRows && shape.rule.dropout == 0) {
      decode_pairs<T>(args, at, 0);
    } else {
      forward_blocks<T>(args, at, begin, std::min(begin + kBlocks, count));
    }
  });
}

void forward(const Stream& stream, const AttentionForwardArgs& args, bool exact) {
  check_attention(args.shape, args.shape.rule.dropout > 0 ? kMaxHeadSize : kWideHeadSize);
  BEV_CHECK(args.pages.table == nullptr ||
                (args.pages.block_tokens > 0 &&
                 std::has_single_bit(static_cast<std::uint64_t>(args.pages.block_tokens))),
            ErrorKind::kInternal, "attention: blocks of ", args.pages.block_tokens,
            " tokens, not a power of two");
  AttentionForwardArgs now = args;
  std::vector<AttentionRun> runs;
  if (args.device_runs != nullptr) {
    runs.assign(args.shape.runs.begin(), args.shape.runs.end());
    for (std::size_t i = 0; i < runs.size(); ++i) {
      runs[i].k_count = args.device_runs[i].k_count;
      runs[i].offset = args.device_runs[i].offset;
    }
    now.shape.runs = runs;
  }
  visit_float(args.shape.dtype,
              [&](auto zero) { run_forward<decltype(zero)>(stream, now, exact); });
}

}  // namespace

void attention_forward(const Stream& stream, const AttentionForwardArgs& args) {
  forward(stream, args, false);
}

void attention_forward_exact(const Stream& stream, const AttentionForwardArgs& args) {
  forward(stream, args, true);
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
