// A chunk of the gated delta rule as products of small matrices (the WY form), in the accumulate
// type A. With c the sums of g within the chunk, D_ij = exp(c_i - c_j) for i >= j, e_i = exp(c_i),
// f_i = exp(c_last - c_i), b = beta, and S the entering state:
//
//   N = -(strictly lower part of diag(b) K K^T o D)      P = lower part of Q K^T o D
//   U = (1 - N)^-1 diag(b) V      W = -(1 - N)^-1 diag(b e) K      V' = U + W S
//   O = diag(e) Q S + P V'        S <- e_last S + K^T diag(f) V'
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tile_gemm.h"
#include "base/divide.h"
#include "kernels/delta_rule.h"

namespace bev::cpu::BEV_CPU_LEVEL {

void delta_forward(const Stream& stream, const DeltaForwardArgs& args);
void delta_step(const Stream& stream, const DeltaStepArgs& args);
void delta_backward(const Stream& stream, const DeltaBackwardArgs& args);
void delta_gates(const Stream& stream, const DeltaGatesArgs& args);
void delta_gates_backward(const Stream& stream, const DeltaGatesBackwardArgs& args);

// Throws if shape and rows do not fit each other.
void check_delta(const char* kernel, const DeltaShape& shape, const View& qkv, const View& g,
                 const View& beta);

constexpr int kDeltaPad = 16;  // rows and columns are padded to multiples, with zeros

// Sizes of one chunk; strides are the padded sizes of a whole one.
struct ChunkSizes {
  int rows = 0, keys = 0, values = 0;
  int row_stride = 0, key_stride = 0, value_stride = 0;  // of [.., C], [.., K], [.., V]

  explicit ChunkSizes(const DeltaShape& shape)
      : rows(static_cast<int>(shape.chunk)),
        keys(static_cast<int>(shape.key_size)),
        values(static_cast<int>(shape.value_size)),
        row_stride(round_up(rows, kDeltaPad)),
        key_stride(round_up(keys, kDeltaPad)),
        value_stride(round_up(values, kDeltaPad)) {}
  int padded_rows() const { return round_up(rows, kDeltaPad); }
};

// Hands out 64-byte aligned parts of a block; without a block it only counts.
class ScratchBlock {
 public:
  explicit ScratchBlock(std::byte* block = nullptr) : block_(block) {}
  template <class A>
  A* take(std::int64_t count) {
    std::size_t at = bytes_;
    bytes_ += round_up(static_cast<std::size_t>(count) * sizeof(A), std::size_t{64});
    return block_ == nullptr ? nullptr : reinterpret_cast<A*>(block_ + at);
  }
  template <class A>
  Tile<A> tile(std::int64_t rows, std::int64_t stride) {
    return {take<A>(rows * stride), stride};
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* block_;
  std::size_t bytes_ = 0;
};

// What all value heads of a key head share.
template <class A>
struct KeyChunk {
  Tile<A> q, k, k_columns;   // [C, K] normalised, q also scaled; [K, C]
  Tile<A> qk, kk;            // [C, C]
  A *q_factors, *k_factors;  // 1 / length of each row
  int* first;                // of each row, the first row of its document in the chunk
  bool fresh = false;        // a document begins at the first row

  KeyChunk(const ChunkSizes& sizes, ScratchBlock& block);
};

// One value head.
template <class A>
struct ValueChunk {
  Tile<A> decay;            // D
  A *enter, *leave, whole;  // e, f, e_last
  A* beta;
  double* sums;             // of g, scratch
  Tile<A> inner, scores;    // N, P
  Tile<A> v;                // [C, V]
  Tile<A> u, w, corrected;  // U, W, V'

  ValueChunk(const ChunkSizes& sizes, ScratchBlock& block);
};

// c = a b, c += a b, c += a^T b; sizes are rounded up to whole pads but for the inner one.
template <class A>
void multiply(int rows, int columns, int inner, Tile<A> a, Tile<A> b, Tile<A> c) {
  tile_gemm<A, false, false>(round_up(rows, kDeltaPad), round_up(columns, kDeltaPad), inner,
                             {a.data, a.stride}, {b.data, b.stride}, c);
}
template <class A>
void multiply_add(int rows, int columns, int inner, Tile<A> a, Tile<A> b, Tile<A> c) {
  tile_gemm<A, false, true>(round_up(rows, kDeltaPad), round_up(columns, kDeltaPad), inner,
                            {a.data, a.stride}, {b.data, b.stride}, c);
}
template <class A>
void multiply_transposed_add(int rows, int columns, int inner, Tile<A> a, Tile<A> b, Tile<A> c) {
  tile_gemm<A, true, true>(round_up(rows, kDeltaPad), round_up(columns, kDeltaPad), inner,
                           {a.data, a.stride}, {b.data, b.stride}, c);
}

template <class A>
void clear(int rows, Tile<A> x) {
  std::fill_n(x.data, std::int64_t{rows} * x.stride, A{0});
}
template <class A>
void copy_rows(int rows, Tile<A> from, Tile<A> to) {
  std::copy_n(from.data, std::int64_t{rows} * to.stride, to.data);
}
// Row i of x times factors[i].
template <class A>
void scale_rows(int rows, const A* factors, Tile<A> x) {
  for (int i = 0; i < rows; ++i) {
    A* __restrict row = x.data + i * x.stride;
    for (std::int64_t j = 0; j < x.stride; ++j) row[j] *= factors[i];
  }
}
// to = from^T, whole pads.
template <class A>
void transpose(int rows, int columns, Tile<A> from, Tile<A> to);
// Sum over j of a_ij b_ij in double.
template <class A>
double row_product(std::int64_t columns, const A* a, const A* b) {
  double sum = 0;
  for (std::int64_t j = 0; j < columns; ++j) {
    sum += static_cast<double>(a[j]) * static_cast<double>(b[j]);
  }
  return sum;
}

// Rows of a tensor as a matrix padded with zeros up to whole pads of rows.
template <class T, class A>
void load_matrix(const T* from, std::int64_t from_stride, int rows, int columns, Tile<A> to) {
  for (int i = 0; i < rows; ++i) {
    const T* __restrict source = from + i * from_stride;
    A* __restrict row = to.data + i * to.stride;
    for (int j = 0; j < columns; ++j) row[j] = static_cast<A>(widen(source[j]));
    std::fill(row + columns, row + to.stride, A{0});
  }
  std::fill(to.data + rows * to.stride, to.data + round_up(rows, kDeltaPad) * to.stride, A{0});
}
template <class T, class A>
void store_matrix(Tile<A> from, int rows, int columns, T* to, std::int64_t to_stride) {
  for (int i = 0; i < rows; ++i) {
    const A* __restrict source = from.data + i * from.stride;
    T* __restrict row = to + i * to_stride;
    for (int j = 0; j < columns; ++j) row[j] = narrow<T>(source[j]);
  }
}

// Divides rows by their length and multiplies them by scale; factors are 1 / length.
template <class A>
void normalise(int rows, int columns, double scale, double epsilon, Tile<A> x, A* factors);
// Given dy, the gradient of the result y, makes it that of the original rows.
template <class A>
void normalise_backward(int rows, int columns, double scale, const A* factors, Tile<A> y,
                        Tile<A> dy);

// Normalises the loaded keys and queries of rows from `row`, and multiplies them.
template <class A>
void finish_keys(const ChunkSizes& sizes, const DeltaShape& shape, std::int64_t row,
                 KeyChunk<A>& keys);
// Decays, N and P, given g and beta of the chunk (elements `stride` apart).
template <class A>
void set_decays(const ChunkSizes& sizes, const KeyChunk<A>& keys, const A* g, const A* beta,
                std::int64_t stride, ValueChunk<A>& chunk);
// U and W, given the loaded V.
template <class A>
void solve_chunk(const ChunkSizes& sizes, const KeyChunk<A>& keys, ValueChunk<A>& chunk);
// x <- (1 - N)^-1 x and x <- (1 - N^T)^-1 x for x [C, columns].
template <class A>
void solve(const ChunkSizes& sizes, int columns, Tile<A> inner, Tile<A> x);
template <class A>
void solve_transposed(const ChunkSizes& sizes, int columns, Tile<A> inner, Tile<A> x);
// V' of the entering state.
template <class A>
void correct(const ChunkSizes& sizes, Tile<A> state, ValueChunk<A>& chunk);
// state <- e_last state + K^T diag(f) x, for x [C, columns], which is scaled.
template <class A>
void advance(const ChunkSizes& sizes, const KeyChunk<A>& keys, const ValueChunk<A>& chunk,
             int columns, Tile<A> x, Tile<A> state);

// States of value head h as [K, V] matrices in a row of StateRows.
template <class A>
A* state_at(const StateRows& states, const DeltaShape& shape, std::int64_t row, std::int64_t head) {
  return states.rows.as<A>() + row * states.rows.shape[1] + states.first +
         head * shape.key_size * shape.value_size;
}
template <class A>
void load_state(const StateRows& states, const DeltaShape& shape, std::int64_t row,
                std::int64_t head, Tile<A> to) {
  const int keys = static_cast<int>(shape.key_size), values = static_cast<int>(shape.value_size);
  if (row < 0 || states.rows.empty()) return clear(round_up(keys, kDeltaPad), to);
  load_matrix(state_at<A>(states, shape, row, head), values, keys, values, to);
}

// Calls body(lane's memory, run, head) for every pair, on lanes with `bytes` of scratch each.
template <class Body>
void for_run_heads(const Stream& stream, const DeltaShape& shape, std::int64_t heads,
                   std::size_t bytes, const Body& body) {
  const std::int64_t tasks = static_cast<std::int64_t>(shape.runs.size()) * heads;
  const std::int64_t lanes = std::min<std::int64_t>(stream.pool->threads(), tasks);
  if (tasks == 0) return;
  std::byte* scratch = stream.pool->scratch(static_cast<std::size_t>(lanes) * bytes);
  std::atomic<std::int64_t> next{0};
  stream.pool->run(lanes, [&](std::int64_t lane) {
    std::byte* memory = scratch + static_cast<std::size_t>(lane) * bytes;
    for (std::int64_t task = next++; task < tasks; task = next++) {
      body(memory, task / heads, task % heads);
    }
  });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
