// Chunks of the SSD recurrence: which tokens they have, and their operands in the accumulate type.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/kernels/math.h"
#include "kernels/ssd.h"

namespace bev::cpu::BEV_CPU_LEVEL {

struct SsdChunk {
  std::int64_t row = 0, count = 0;
  // For each token the first one of its document in the chunk.
  std::vector<std::int64_t> first = {};
  bool fresh = false;  // a document begins at the first token

  std::int64_t first_of(std::int64_t t) const { return first[static_cast<std::size_t>(t)]; }
  // Whether the state before the chunk reaches token t, and token t the state after it.
  bool sees_before(std::int64_t t) const { return first_of(t) == 0 && !fresh; }
  bool reaches_end(std::int64_t t) const { return first_of(t) == first_of(count - 1); }
};

inline std::vector<SsdChunk> ssd_chunks(const SsdShape& shape) {
  std::vector<SsdChunk> chunks;
  for (const RecurrentRun& run : shape.runs) {
    for (std::int64_t at = 0; at < run.count; at += shape.chunk) {
      SsdChunk& chunk = chunks.emplace_back();
      chunk.row = run.row + at;
      chunk.count = std::min(shape.chunk, run.count - at);
      chunk.first.resize(static_cast<std::size_t>(chunk.count));
      auto start = std::ranges::lower_bound(shape.starts, chunk.row);
      chunk.fresh = start != shape.starts.end() && *start == chunk.row;
      for (; start != shape.starts.end() && *start < chunk.row + chunk.count; ++start) {
        const std::int64_t begin = *start - chunk.row;
        std::fill(chunk.first.begin() + begin, chunk.first.end(), begin);
      }
    }
  }
  return chunks;
}

// A step below this is a factor of exactly 0 in every dtype; it keeps differences of sums exact.
template <class A>
constexpr A least_decay() {
  return sizeof(A) == 8 ? A(-800) : A(-120);
}

// The recurrence of one head: dt of a token, its slope and the log of the decay.
template <class T>
struct SsdHead {
  using A = accumulate_t<T>;
  const T* raw;
  std::int64_t heads;
  A bias, a, skip, least, most;

  SsdHead(const SsdShape& shape, const SsdInputs& in, std::int64_t head)
      : raw(in.dt.as<T>() + head),
        heads(shape.heads),
        bias(in.dt_bias.as<A>()[head]),
        a(-std::min(std::exp(in.a_log.as<A>()[head]), A(1e30))),
        skip(in.d.as<A>()[head]),
        least(static_cast<A>(shape.dt_min)),
        most(static_cast<A>(shape.dt_max)) {}

  A value(std::int64_t row) const { return widen(raw[row * heads]) + bias; }
  A softplus(A v) const { return v > 20 ? v : std::log1p(std::exp(v)); }
  A dt(std::int64_t row) const { return std::clamp(softplus(value(row)), least, most); }
  // Derivative of dt by raw.
  A slope(std::int64_t row) const {
    const A v = value(row), dt_free = softplus(v);
    if (dt_free < least || dt_free > most) return 0;
    return v > 20 ? A(1) : 1 / (1 + std::exp(-v));
  }
  A log_decay(A dt_value) const { return std::max(dt_value * a, least_decay<A>()); }
};

// dt of a chunk's tokens, and their decays added up in double: differences of the sums then keep
// the digits of single decays.
template <class A>
struct SsdSteps {
  std::vector<A> dt;
  std::vector<double> sums;

  explicit SsdSteps(std::int64_t chunk)
      : dt(static_cast<std::size_t>(chunk)), sums(static_cast<std::size_t>(chunk)) {}

  template <class Head>
  void read(const Head& head, const SsdChunk& chunk) {
    double sum = 0;
    for (std::int64_t t = 0; t < chunk.count; ++t) {
      const auto at = static_cast<std::size_t>(t);
      dt[at] = head.dt(chunk.row + t);
      if (chunk.first_of(t) == t) sum = 0;
      sums[at] = sum += static_cast<double>(head.log_decay(dt[at]));
    }
  }
  // Log of the factor of the state before the chunk in the one after it.
  double total(const SsdChunk& chunk) const {
    const std::int64_t last = chunk.count - 1;
    return chunk.sees_before(last) ? sums[static_cast<std::size_t>(last)]
                                   : static_cast<double>(least_decay<A>());
  }
  // Factors from before the chunk to token t, and from it to the end of the chunk.
  A from_before(std::int64_t t, const SsdChunk& chunk) const {
    if (!chunk.sees_before(t)) return 0;
    return exp_of(static_cast<A>(sums[static_cast<std::size_t>(t)]));
  }
  A to_end(std::int64_t t, const SsdChunk& chunk) const {
    if (!chunk.reaches_end(t)) return 0;
    const double last = sums[static_cast<std::size_t>(chunk.count - 1)];
    return exp_of(static_cast<A>(last - sums[static_cast<std::size_t>(t)]));
  }
};

// Columns of rows [chunk.row, + count) in the accumulate type.
template <class T, class A = accumulate_t<T>>
void read_columns(const View& rows, const SsdChunk& chunk, std::int64_t first, std::int64_t columns,
                  A* to) {
  const std::int64_t stride = rows.shape.row_numel();
  const T* from = rows.as<T>() + chunk.row * stride + first;
  for (std::int64_t t = 0; t < chunk.count; ++t, from += stride, to += columns) {
    for (std::int64_t i = 0; i < columns; ++i) to[i] = widen(from[i]);
  }
}
template <class T, class A = accumulate_t<T>>
void write_columns(const A* from, const SsdChunk& chunk, std::int64_t first, std::int64_t columns,
                   const View& rows) {
  const std::int64_t stride = rows.shape.row_numel();
  T* to = rows.as<T>() + chunk.row * stride + first;
  for (std::int64_t t = 0; t < chunk.count; ++t, to += stride, from += columns) {
    for (std::int64_t i = 0; i < columns; ++i) to[i] = narrow<T>(from[i]);
  }
}

// Scratch memory of a piece.
template <class A>
class SsdBuffer {
 public:
  explicit SsdBuffer(std::int64_t count) : values_(static_cast<std::size_t>(count)) {}
  A* get() { return values_.data(); }
  operator A*() { return values_.data(); }  // NOLINT: a buffer is its memory
  void clear() { std::fill(values_.begin(), values_.end(), A(0)); }

 private:
  std::vector<A> values_;
};

// One group of heads in a chunk: B and C, and their product.
template <class T>
struct SsdGroup {
  using A = accumulate_t<T>;
  const SsdShape& shape;
  const SsdChunk& chunk;
  std::int64_t group, first_head, end_head;
  std::int64_t b_column, c_column;

  SsdGroup(const SsdShape& of, const SsdChunk& at, std::int64_t index)
      : shape(of),
        chunk(at),
        group(index),
        first_head(std::max<std::int64_t>(0, index * of.heads_per_group - of.first_head)),
        end_head(std::min(of.heads, (index + 1) * of.heads_per_group - of.first_head)),
        b_column(of.heads * of.head_size + index * of.state_size),
        c_column(b_column + of.groups * of.state_size) {}
};

}  // namespace bev::cpu::BEV_CPU_LEVEL
