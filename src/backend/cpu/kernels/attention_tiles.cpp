// Lanes, transposes, masks and dropout for attention on the CPU.
#include "backend/cpu/kernels/attention_tiles.h"

#include "backend/cpu/kernels/random.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// Four words of Philox4x32-10 for the counter {group, position, sample, stream}; same as
// base/philox.h, but written so that a loop over lanes vectorises.
struct Words {
  std::uint32_t x0, x1, x2, x3;
};
BEV_INLINE Words draw(Words c, std::uint32_t key0, std::uint32_t key1) {
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * c.x0;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * c.x2;
    c = {static_cast<std::uint32_t>(product1 >> 32) ^ c.x1 ^ key0,
         static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ c.x3 ^ key1,
         static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

}  // namespace

void check_attention(const AttentionShape& shape, int most) {
  for (std::int64_t size : {shape.head_size, shape.v_head_size}) {
    BEV_CHECK(size >= 1 && size <= most, "attention: head size ", size, " is not in [1, ", most,
              "]");
  }
  BEV_CHECK(shape.kv_heads >= 1 && shape.q_heads % shape.kv_heads == 0,
            "attention: ", shape.q_heads, " q heads do not divide among ", shape.kv_heads,
            " kv heads");
}

template <class A>
void set_dropout(const AttentionShape& shape, const LaneBlock<A>& lanes, int key_begin, int keys,
                 A* factors) {
  constexpr int kStride = kBlock<A>;
  const A keep = static_cast<A>(1 / (1 - shape.rule.dropout));
  const std::uint32_t least = keep_threshold(shape.rule.dropout);
  const std::uint64_t key = *shape.random.random_key;
  std::uint32_t position[kStride], sample[kStride], stream[kStride];
  for (int i = 0; i < lanes.width; ++i) {
    position[i] = static_cast<std::uint32_t>(shape.random.position[lanes.row[i]]);
    sample[i] = static_cast<std::uint32_t>(shape.random.sample[lanes.row[i]]);
    stream[i] = shape.random.stream + static_cast<std::uint32_t>(shape.head_offset + lanes.head[i]);
  }
  // A draw covers 4 positions; those before the first key and after the last are discarded.
  A nowhere[kStride];
  const int start = lanes.key_position + key_begin;
  for (int j = -(start % 4); j < keys; j += 4) {
    const auto row = [&](int at) {
      return at >= 0 && at < keys ? factors + at * kStride : nowhere;
    };
    A *row0 = row(j), *row1 = row(j + 1), *row2 = row(j + 2), *row3 = row(j + 3);
    const auto group = static_cast<std::uint32_t>((start + j) / 4);
    for (int i = 0; i < lanes.width; ++i) {
      const Words words =
          draw({group, position[i], sample[i], stream[i]}, static_cast<std::uint32_t>(key),
               static_cast<std::uint32_t>(key >> 32));
      row0[i] = (words.x0 >> 9) >= least ? keep : 0;
      row1[i] = (words.x1 >> 9) >= least ? keep : 0;
      row2[i] = (words.x2 >> 9) >= least ? keep : 0;
      row3[i] = (words.x3 >> 9) >= least ? keep : 0;
    }
  }
}

template <class A>
void set_lanes(const AttentionShape& shape, const AttentionRun& run, std::int64_t kv_head,
               std::int64_t block, LaneBlock<A>& lanes) {
  const std::int64_t group = group_size(shape), first = block * kBlock<A>;
  const std::int64_t last_key = std::int64_t{run.k_count} - 1;
  lanes.count = static_cast<int>(std::min<std::int64_t>(kBlock<A>, run.q_count * group - first));
  lanes.width = round_up(lanes.count, kVectorLanes<A>);
  lanes.key_position = run.key_position;
  lanes.low_min = lanes.high_min = std::numeric_limits<std::int32_t>::max();
  lanes.low_max = lanes.high_max = -1;
  for (int i = 0; i < lanes.width; ++i) {
    if (i >= lanes.count) {
      lanes.row[i] = lanes.head[i] = 0;
      lanes.low[i] = 0, lanes.high[i] = -1;
      continue;
    }
    const std::int64_t query = (first + i) / group;
    const std::int64_t at = run.offset + query;
    std::int64_t low = 0, high = shape.rule.causal ? std::min(at, last_key) : last_key;
    if (shape.rule.window >= 0) {
      const std::int64_t window = std::min(shape.rule.window, std::int64_t{1} << 32);
      const std::int64_t reach =
          shape.rule.chunked ? (run.key_position + at) % (window + 1) : window;
      low = std::max<std::int64_t>(0, at - reach);
      if (!shape.rule.causal) high = std::min(high, at + window);
    }
    if (low > high) low = 0, high = -1;
    lanes.row[i] = run.q_begin + query;
    lanes.head[i] = static_cast<std::int32_t>(kv_head * group + (first + i) % group);
    lanes.low[i] = static_cast<std::int32_t>(low), lanes.high[i] = static_cast<std::int32_t>(high);
    if (high >= 0) lanes.low_min = std::min(lanes.low_min, lanes.low[i]);
    lanes.low_max = std::max(lanes.low_max, lanes.low[i]);
    lanes.high_min = std::min(lanes.high_min, lanes.high[i]);
    lanes.high_max = std::max(lanes.high_max, lanes.high[i]);
  }
}

template <class A>
void transpose_lanes(int width, int padded, const A* __restrict rows, A* __restrict columns) {
  for (int lane = 0; lane < width; lane += 8) {
    for (int d = 0; d < padded; d += 8) {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) {
          columns[(d + i) * kBlock<A> + lane + j] = rows[(lane + j) * padded + d + i];
        }
      }
    }
  }
}

template <class A>
void transpose_back(int width, int padded, const A* __restrict columns, A* __restrict rows) {
  for (int lane = 0; lane < width; lane += 8) {
    for (int d = 0; d < padded; d += 8) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) {
          rows[(lane + j) * padded + d + i] = columns[(d + i) * kBlock<A> + lane + j];
        }
      }
    }
  }
}

template <class A>
void cap_scores(int keys, int width, A softcap, A* scores) {
  const A inverse = 1 / softcap;
  for (int j = 0; j < keys; ++j) {
    A* __restrict row = scores + j * kBlock<A>;
    for (int i = 0; i < width; ++i) row[i] = softcap * tanh_of(row[i] * inverse);
  }
}

template <class A>
void mask_scores(const LaneBlock<A>& lanes, int key_begin, int keys, A value, A* scores) {
  for (int j = 0; j < keys; ++j) {
    const std::int32_t key = key_begin + j;
    A* __restrict row = scores + j * kBlock<A>;
    for (int i = 0; i < lanes.width; ++i) {
      const bool visible = (lanes.low[i] <= key) & (lanes.high[i] >= key);
      row[i] = visible ? row[i] : value;
    }
  }
}

template void set_lanes(const AttentionShape&, const AttentionRun&, std::int64_t, std::int64_t,
                        LaneBlock<float>&);
template void transpose_lanes(int, int, const float*, float*);
template void transpose_back(int, int, const float*, float*);
template void cap_scores(int, int, float, float*);
template void mask_scores(const LaneBlock<float>&, int, int, float, float*);
template void set_dropout(const AttentionShape&, const LaneBlock<float>&, int, int, float*);
template void set_lanes(const AttentionShape&, const AttentionRun&, std::int64_t, std::int64_t,
                        LaneBlock<double>&);
template void transpose_lanes(int, int, const double*, double*);
template void transpose_back(int, int, const double*, double*);
template void cap_scores(int, int, double, double*);
template void mask_scores(const LaneBlock<double>&, int, int, double, double*);
template void set_dropout(const AttentionShape&, const LaneBlock<double>&, int, int, double*);

}  // namespace bev::cpu::BEV_CPU_LEVEL
