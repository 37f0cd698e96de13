// Matrix products, decays and triangular solves of a chunk of the gated delta rule.
#include "backend/cpu/kernels/delta_chunk.h"

#include <cmath>

#include "base/error.h"

namespace bev::cpu::BEV_CPU_LEVEL {

void check_delta(const char* kernel, const DeltaShape& shape, const View& qkv, const View& g,
                 const View& beta) {
  BEV_CHECK(shape.key_heads >= 1 && shape.value_heads % shape.key_heads == 0 && shape.chunk >= 1,
            kernel, ": ", shape.value_heads, " value heads for ", shape.key_heads,
            " key heads, chunks of ", shape.chunk);
  BEV_CHECK(qkv.shape.ndim() == 2 && qkv.shape[1] == shape.columns(), kernel, ": rows ", qkv.shape,
            " for ", shape.columns(), " columns");
  const Shape gates{qkv.shape[0], shape.value_heads};
  BEV_CHECK(g.shape == gates && beta.shape == gates, kernel, ": decays ", g.shape,
            " and strengths ", beta.shape, ", wanted ", gates);
}

template <class A>
KeyChunk<A>::KeyChunk(const ChunkSizes& sizes, ScratchBlock& block)
    : q(block.tile<A>(sizes.row_stride, sizes.key_stride)),
      k(block.tile<A>(sizes.row_stride, sizes.key_stride)),
      k_columns(block.tile<A>(sizes.key_stride, sizes.row_stride)),
      qk(block.tile<A>(sizes.row_stride, sizes.row_stride)),
      kk(block.tile<A>(sizes.row_stride, sizes.row_stride)),
      q_factors(block.take<A>(sizes.row_stride)),
      k_factors(block.take<A>(sizes.row_stride)),
      first(block.take<int>(sizes.row_stride)) {}

template <class A>
ValueChunk<A>::ValueChunk(const ChunkSizes& sizes, ScratchBlock& block)
    : decay(block.tile<A>(sizes.row_stride, sizes.row_stride)),
      enter(block.take<A>(sizes.row_stride)),
      leave(block.take<A>(sizes.row_stride)),
      whole(1),
      beta(block.take<A>(sizes.row_stride)),
      sums(block.take<double>(sizes.row_stride)),
      inner(block.tile<A>(sizes.row_stride, sizes.row_stride)),
      scores(block.tile<A>(sizes.row_stride, sizes.row_stride)),
      v(block.tile<A>(sizes.row_stride, sizes.value_stride)),
      u(block.tile<A>(sizes.row_stride, sizes.value_stride)),
      w(block.tile<A>(sizes.row_stride, sizes.key_stride)),
      corrected(block.tile<A>(sizes.row_stride, sizes.value_stride)) {}

template <class A>
void transpose(int rows, int columns, Tile<A> from, Tile<A> to) {
  constexpr int kSide = 8;
  rows = round_up(rows, kDeltaPad), columns = round_up(columns, kDeltaPad);
  for (int i = 0; i < rows; i += kSide) {
    for (int j = 0; j < columns; j += kSide) {
#pragma GCC unroll 8
      for (int r = 0; r < kSide; ++r) {
#pragma GCC unroll 8
        for (int c = 0; c < kSide; ++c) {
          to.data[(j + c) * to.stride + i + r] = from.data[(i + r) * from.stride + j + c];
        }
      }
    }
  }
}

template <class A>
void normalise(int rows, int columns, double scale, double epsilon, Tile<A> x, A* factors) {
  for (int i = 0; i < rows; ++i) {
    A* row = x.data + i * x.stride;
    const double factor = 1 / std::sqrt(row_product(columns, row, row) + epsilon);
    factors[i] = static_cast<A>(factor);
    const auto scaled = static_cast<A>(factor * scale);
    for (int j = 0; j < columns; ++j) row[j] *= scaled;
  }
}

template <class A>
void normalise_backward(int rows, int columns, double scale, const A* factors, Tile<A> y,
                        Tile<A> dy) {
  for (int i = 0; i < rows; ++i) {
    const A* __restrict unit = y.data + i * y.stride;
    A* __restrict row = dy.data + i * dy.stride;
    const auto along = static_cast<A>(row_product(columns, unit, row) / (scale * scale));
    const A factor = static_cast<A>(scale) * factors[i];
    for (int j = 0; j < columns; ++j) row[j] = factor * (row[j] - unit[j] * along);
  }
}

namespace {
template <class A>
void find_documents(const ChunkSizes& sizes, const DeltaShape& shape, std::int64_t row,
                    KeyChunk<A>& keys) {
  std::fill_n(keys.first, sizes.rows, 0);
  auto start = std::lower_bound(shape.starts.begin(), shape.starts.end(), row);
  keys.fresh = start != shape.starts.end() && *start == row;
  for (; start != shape.starts.end() && *start < row + sizes.rows; ++start) {
    const auto begin = static_cast<int>(*start - row);
    std::fill(keys.first + begin, keys.first + sizes.rows, begin);
  }
}
}  // namespace

template <class A>
void finish_keys(const ChunkSizes& sizes, const DeltaShape& shape, std::int64_t row,
                 KeyChunk<A>& keys) {
  find_documents(sizes, shape, row, keys);
  normalise(sizes.rows, sizes.keys, shape.scale, shape.epsilon, keys.q, keys.q_factors);
  normalise(sizes.rows, sizes.keys, 1, shape.epsilon, keys.k, keys.k_factors);
  transpose(sizes.rows, sizes.keys, keys.k, keys.k_columns);
  multiply(sizes.rows, sizes.rows, sizes.keys, keys.k, keys.k_columns, keys.kk);
  multiply(sizes.rows, sizes.rows, sizes.keys, keys.q, keys.k_columns, keys.qk);
}

namespace {

// Decays below this leave nothing in any type, and sums of them stay finite.
constexpr double kLeastLogDecay = -1000;

// Rows of D from sums of g, each over its own tokens: differences of long sums would lose digits.
template <class A>
void set_decay_rows(const ChunkSizes& sizes, const KeyChunk<A>& keys, const A* g,
                    std::int64_t stride, ValueChunk<A>& chunk) {
  double sum = 0;
  for (int i = 0; i < sizes.rows; ++i) {
    const double step = std::max(static_cast<double>(g[i * stride]), kLeastLogDecay);
    const int first = keys.first[i];
    A* __restrict row = chunk.decay.data + i * chunk.decay.stride;
    for (int j = first; j < i; ++j) chunk.sums[j] += step;
    chunk.sums[i] = 0;
    sum += step;
    std::fill_n(row, first, A{0});
    for (int j = first; j <= i; ++j) row[j] = exp_of(static_cast<A>(chunk.sums[j]));
    chunk.enter[i] = first == 0 && !keys.fresh ? exp_of(static_cast<A>(sum)) : A{0};
  }
  const A* last = chunk.decay.data + (sizes.rows - 1) * chunk.decay.stride;
  std::copy_n(last, sizes.rows, chunk.leave);
  chunk.whole = chunk.enter[sizes.rows - 1];
}

template <class A>
void set_inner_rows(const ChunkSizes& sizes, const KeyChunk<A>& keys, ValueChunk<A>& chunk) {
  const std::int64_t stride = sizes.row_stride;
  for (int i = 0; i < sizes.rows; ++i) {
    const A* __restrict decay = chunk.decay.data + i * stride;
    const A* __restrict kk = keys.kk.data + i * stride, * __restrict qk = keys.qk.data + i * stride;
    A* __restrict inner = chunk.inner.data + i * stride, * __restrict scores =
                                                             chunk.scores.data + i * stride;
    const A strength = -chunk.beta[i];
    for (int j = 0; j <= i; ++j) {
      scores[j] = qk[j] * decay[j];
      inner[j] = strength * kk[j] * decay[j];
    }
    std::fill(scores + i + 1, scores + stride, A{0});
    std::fill(inner + i, inner + stride, A{0});
  }
  const std::int64_t rest = (sizes.padded_rows() - sizes.rows) * stride;
  std::fill_n(chunk.inner.data + sizes.rows * stride, rest, A{0});
  std::fill_n(chunk.scores.data + sizes.rows * stride, rest, A{0});
}

// x += factor * y over whole strides.
template <class A>
BEV_INLINE void add_row(std::int64_t columns, A factor, const A* __restrict y, A* __restrict x) {
  for (std::int64_t j = 0; j < columns; ++j) x[j] += factor * y[j];
}

}  // namespace

template <class A>
void set_decays(const ChunkSizes& sizes, const KeyChunk<A>& keys, const A* g, const A* beta,
                std::int64_t stride, ValueChunk<A>& chunk) {
  for (int i = 0; i < sizes.rows; ++i) chunk.beta[i] = beta[i * stride];
  set_decay_rows(sizes, keys, g, stride, chunk);
  set_inner_rows(sizes, keys, chunk);
}

template <class A>
void solve(const ChunkSizes& sizes, int columns, Tile<A> inner, Tile<A> x) {
  for (int begin = 0; begin < sizes.rows; begin += kDeltaPad) {
    Tile<A> part{x.data + begin * x.stride, x.stride};
    const Tile<A> rows{inner.data + begin * inner.stride, inner.stride};
    if (begin > 0) multiply_add(kDeltaPad, columns, begin, rows, x, part);
    const int count = std::min(kDeltaPad, sizes.rows - begin);
    for (int i = 1; i < count; ++i) {
      for (int j = 0; j < i; ++j) {
        add_row(x.stride, rows.data[i * rows.stride + begin + j], part.data + j * x.stride,
                part.data + i * x.stride);
      }
    }
  }
}

template <class A>
void solve_transposed(const ChunkSizes& sizes, int columns, Tile<A> inner, Tile<A> x) {
  const int end = sizes.padded_rows();
  for (int begin = end - kDeltaPad; begin >= 0; begin -= kDeltaPad) {
    Tile<A> part{x.data + begin * x.stride, x.stride};
    const int after = begin + kDeltaPad;
    if (after < end) {
      multiply_transposed_add(kDeltaPad, columns, end - after,
                              {inner.data + after * inner.stride + begin, inner.stride},
                              {x.data + after * x.stride, x.stride}, part);
    }
    const Tile<A> rows{inner.data + begin * inner.stride + begin, inner.stride};
    for (int j = std::min(kDeltaPad, sizes.rows - begin) - 1; j > 0; --j) {
      for (int i = 0; i < j; ++i) {
        add_row(x.stride, rows.data[j * rows.stride + i], part.data + j * x.stride,
                part.data + i * x.stride);
      }
    }
  }
}

template <class A>
void solve_chunk(const ChunkSizes& sizes, const KeyChunk<A>& keys, ValueChunk<A>& chunk) {
  copy_rows(sizes.padded_rows(), chunk.v, chunk.u);
  copy_rows(sizes.padded_rows(), keys.k, chunk.w);
  scale_rows(sizes.rows, chunk.beta, chunk.u);
  for (int i = 0; i < sizes.rows; ++i) {
    const A factor = -chunk.beta[i] * chunk.enter[i];
    A* row = chunk.w.data + i * chunk.w.stride;
    for (std::int64_t j = 0; j < chunk.w.stride; ++j) row[j] *= factor;
  }
  solve(sizes, sizes.values, chunk.inner, chunk.u);
  solve(sizes, sizes.keys, chunk.inner, chunk.w);
}

template <class A>
void correct(const ChunkSizes& sizes, Tile<A> state, ValueChunk<A>& chunk) {
  copy_rows(sizes.padded_rows(), chunk.u, chunk.corrected);
  multiply_add(sizes.rows, sizes.values, sizes.keys, chunk.w, state, chunk.corrected);
}

template <class A>
void advance(const ChunkSizes& sizes, const KeyChunk<A>& keys, const ValueChunk<A>& chunk,
             int columns, Tile<A> x, Tile<A> state) {
  scale_rows(sizes.rows, chunk.leave, x);
  for (std::int64_t i = 0; i < state.stride * sizes.key_stride; ++i) state.data[i] *= chunk.whole;
  multiply_transposed_add(sizes.keys, columns, sizes.rows, keys.k, x, state);
}

#define BEV_DELTA_CHUNK(A)                                                                        \
  template struct KeyChunk<A>;                                                                    \
  template struct ValueChunk<A>;                                                                  \
  template void transpose<A>(int, int, Tile<A>, Tile<A>);                                         \
  template void normalise<A>(int, int, double, double, Tile<A>, A*);                              \
  template void normalise_backward<A>(int, int, double, const A*, Tile<A>, Tile<A>);              \
  template void finish_keys<A>(const ChunkSizes&, const DeltaShape&, std::int64_t, KeyChunk<A>&); \
  template void set_decays<A>(const ChunkSizes&, const KeyChunk<A>&, const A*, const A*,          \
                              std::int64_t, ValueChunk<A>&);                                      \
  template void solve_chunk<A>(const ChunkSizes&, const KeyChunk<A>&, ValueChunk<A>&);            \
  template void solve<A>(const ChunkSizes&, int, Tile<A>, Tile<A>);                               \
  template void solve_transposed<A>(const ChunkSizes&, int, Tile<A>, Tile<A>);                    \
  template void correct<A>(const ChunkSizes&, Tile<A>, ValueChunk<A>&);                           \
  template void advance<A>(const ChunkSizes&, const KeyChunk<A>&, const ValueChunk<A>&, int,      \
                           Tile<A>, Tile<A>);
BEV_DELTA_CHUNK(float)
BEV_DELTA_CHUNK(double)
#undef BEV_DELTA_CHUNK

}  // namespace bev::cpu::BEV_CPU_LEVEL
