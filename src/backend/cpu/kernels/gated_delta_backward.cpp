// Gated delta rule: the backward. A first pass over the chunks of a run stores the state that
// enters each, a second one goes back over them. Within a chunk, with the names of delta_chunk.h,
// dS the gradient of the leaving state, and X' for a transposed X:
//
//   dV' = P' dO + diag(f) K dS      dP = lower part of dO V''       F = dP o D
//   dW = dV' S'                     Y = (1 - N')^-1 dV'             Z = (1 - N')^-1 dW
//   dN = strictly lower part of Y U' + Z W'                         E = -dN o D
//   dQ = diag(e) dO S' + F K        dV = diag(b) Y
//   dK = F' Q + diag(f) V' dS' - diag(b e) Z + (diag(b) E + E' diag(b)) K
//   dbeta = rows of Y o V - e rows of Z o K + rows of E o K K'
//   dS <- e_last dS + Q' diag(e) dO + W' dV'
//
// The gradient of c is gathered from rows and columns of the products; that of g is its suffix sum
// within a document.
#include "backend/cpu/kernels/delta_chunk.h"
#include "base/error.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

template <class A>
struct BackwardLane {
  KeyChunk<A> keys;
  ValueChunk<A> chunk;
  Tile<A> dq, dk;                    // [C, K], of all value heads together
  Tile<A> dout, dcorrected, values;  // [C, V]
  Tile<A> by_keys, dw;               // [C, K]
  Tile<A> squares, dscores;          // [C, C]
  Tile<A> columns;                   // [K or V, C or K], transposes
  Tile<A> state, dstates;            // [K, V], [heads, K, V]
  double *dc, *dbeta;
  std::int64_t state_size;

  BackwardLane(const ChunkSizes& s, std::int64_t heads, ScratchBlock& block)
      : keys(s, block),
        chunk(s, block),
        dq(block.tile<A>(s.row_stride, s.key_stride)),
        dk(block.tile<A>(s.row_stride, s.key_stride)),
        dout(block.tile<A>(s.row_stride, s.value_stride)),
        dcorrected(block.tile<A>(s.row_stride, s.value_stride)),
        values(block.tile<A>(s.row_stride, s.value_stride)),
        by_keys(block.tile<A>(s.row_stride, s.key_stride)),
        dw(block.tile<A>(s.row_stride, s.key_stride)),
        squares(block.tile<A>(s.row_stride, s.row_stride)),
        dscores(block.tile<A>(s.row_stride, s.row_stride)),
        columns(block.tile<A>(std::max(s.key_stride, s.value_stride),
                              std::max(s.key_stride, s.row_stride))),
        state(block.tile<A>(s.key_stride, s.value_stride)),
        dstates(block.tile<A>(heads * s.key_stride, s.value_stride)),
        dc(block.take<double>(s.row_stride)),
        dbeta(block.take<double>(s.row_stride)),
        state_size(std::int64_t{s.key_stride} * s.value_stride) {}

  Tile<A> dstate(std::int64_t head) const {
    return {dstates.data + head * state_size, dstates.stride};
  }
  Tile<A> transposed(std::int64_t stride) const { return {columns.data, stride}; }
};

// One run and key head of the arguments.
template <class T>
class BackwardTask {
 public:
  using A = accumulate_t<T>;

  BackwardTask(const DeltaBackwardArgs& args, std::int64_t run, std::int64_t key_head,
               std::byte* memory)
      : args_(args),
        shape_(args.shape),
        run_(args.shape.runs[static_cast<std::size_t>(run)]),
        key_head_(key_head),
        group_(shape_.value_heads / shape_.key_heads),
        sizes_(shape_),
        block_(memory),
        lane_(sizes_, group_, block_) {
    for (std::int64_t i = 0; i < run; ++i) {
      first_chunk_ += ceil_div(shape_.runs[static_cast<std::size_t>(i)].count, shape_.chunk);
    }
  }

  static std::size_t bytes(const DeltaShape& shape) {
    ScratchBlock count;
    BackwardLane<A>(ChunkSizes(shape), shape.value_heads / shape.key_heads, count);
    return count.bytes();
  }

  void run() {
    if (whole()) store_states();
    for (std::int64_t h = 0; h < group_; ++h) {
      load_state(args_.dleaving, shape_, run_.leave, head(h), lane_.dstate(h));
    }
    const std::int64_t chunks = ceil_div(run_.count, shape_.chunk);
    for (std::int64_t at = chunks - 1; at >= 0; --at) back(at);
    if (args_.dentering.rows.empty() || run_.enter < 0) return;
    for (std::int64_t h = 0; h < group_; ++h) {
      store_matrix(lane_.dstate(h), sizes_.keys, sizes_.values,
                   state_at<A>(args_.dentering, shape_, run_.enter, head(h)), shape_.value_size);
    }
  }

 private:
  std::int64_t head(std::int64_t h) const { return key_head_ * group_ + h; }
  bool whole() const { return !args_.dqkv.empty(); }
  // Column of q in a row; that of k is key_columns() further.
  std::int64_t key_column() const { return key_head_ * shape_.key_size; }
  std::int64_t value_column(std::int64_t h) const {
    return 2 * shape_.key_columns() + head(h) * shape_.value_size;
  }
  A* state_of(std::int64_t chunk, std::int64_t h) const {
    return args_.states.as<A>() + ((first_chunk_ + chunk) * shape_.value_heads + head(h)) *
                                      shape_.key_size * shape_.value_size;
  }

  void load_keys(std::int64_t chunk) {
    row_ = run_.row + chunk * shape_.chunk;
    sizes_.rows = static_cast<int>(std::min(shape_.chunk, run_.row + run_.count - row_));
    const T* q = args_.qkv.as<T>() + row_ * shape_.columns() + key_column();
    load_matrix(q, shape_.columns(), sizes_.rows, sizes_.keys, lane_.keys.q);
    load_matrix(q + shape_.key_columns(), shape_.columns(), sizes_.rows, sizes_.keys, lane_.keys.k);
    finish_keys(sizes_, shape_, row_, lane_.keys);
  }

  // Everything of the forward but the state.
  void load_values(std::int64_t h) {
    const std::int64_t gates = row_ * shape_.value_heads + head(h);
    set_decays(sizes_, lane_.keys, args_.g.as<A>() + gates, args_.beta.as<A>() + gates,
               shape_.value_heads, lane_.chunk);
    load_matrix(args_.qkv.as<T>() + row_ * shape_.columns() + value_column(h), shape_.columns(),
                sizes_.rows, sizes_.values, lane_.chunk.v);
    solve_chunk(sizes_, lane_.keys, lane_.chunk);
  }

  // The first pass; the states of the heads are where their gradients will be.
  void store_states() {
    for (std::int64_t h = 0; h < group_; ++h) {
      load_state(args_.entering, shape_, run_.enter, head(h), lane_.dstate(h));
    }
    for (std::int64_t at = 0; at < ceil_div(run_.count, shape_.chunk); ++at) {
      load_keys(at);
      for (std::int64_t h = 0; h < group_; ++h) {
        const Tile<A> state = lane_.dstate(h);
        store_matrix(state, sizes_.keys, sizes_.values, state_of(at, h), shape_.value_size);
        load_values(h);
        correct(sizes_, state, lane_.chunk);
        advance(sizes_, lane_.keys, lane_.chunk, sizes_.values, lane_.chunk.corrected, state);
      }
    }
  }

  void back(std::int64_t at) {
    load_keys(at);
    clear(sizes_.padded_rows(), lane_.dq);
    clear(sizes_.padded_rows(), lane_.dk);
    for (std::int64_t h = 0; h < group_; ++h) back(at, h);
    if (whole()) store_keys();
  }

  void back(std::int64_t at, std::int64_t h) {
    load_values(h);
    load_dout(h);
    std::fill_n(lane_.dc, sizes_.rows, 0.0);
    std::fill_n(lane_.dbeta, sizes_.rows, 0.0);
    if (whole()) {
      load_matrix(state_of(at, h), shape_.value_size, sizes_.keys, sizes_.values, lane_.state);
      correct(sizes_, lane_.state, lane_.chunk);
    }
    corrected_gradient(h);
    if (whole()) {
      score_gradients();
      state_products(h);
      inner_gradients();
      store_values(h);
    }
    state_gradient(h);
  }

  void load_dout(std::int64_t h) {
    const std::int64_t columns = shape_.value_heads * shape_.value_size;
    load_matrix(args_.dout.as<T>() + row_ * columns + head(h) * shape_.value_size, columns,
                sizes_.rows, sizes_.values, lane_.dout);
  }

  // dV'; also the terms of dc from the leaving state.
  void corrected_gradient(std::int64_t h) {
    const ValueChunk<A>& chunk = lane_.chunk;
    multiply(sizes_.rows, sizes_.values, sizes_.keys, lane_.keys.k, lane_.dstate(h),
             lane_.dcorrected);
    scale_rows(sizes_.rows, chunk.leave, lane_.dcorrected);
    if (whole()) {
      double sum = row_product(lane_.state_size, lane_.state.data, lane_.dstate(h).data) *
                   static_cast<double>(chunk.whole);
      for (int i = 0; i < sizes_.rows; ++i) {
        const double term =
            row_product(sizes_.values, row(lane_.dcorrected, i), row(chunk.corrected, i));
        lane_.dc[i] -= term;
        sum += term;
      }
      lane_.dc[sizes_.rows - 1] += sum;
    }
    multiply_transposed_add(sizes_.rows, sizes_.values, sizes_.rows, chunk.scores, lane_.dout,
                            lane_.dcorrected);
  }

  // dP and what follows from it.
  void score_gradients() {
    const ValueChunk<A>& chunk = lane_.chunk;
    const Tile<A> columns = lane_.transposed(sizes_.row_stride);
    transpose(sizes_.rows, sizes_.values, chunk.corrected, columns);
    multiply(sizes_.rows, sizes_.rows, sizes_.values, lane_.dout, columns, lane_.dscores);
    for (int i = 0; i < sizes_.rows; ++i) {
      A *dp = row(lane_.dscores, i), *p = row(chunk.scores, i), *decay = row(chunk.decay, i);
      for (int j = 0; j <= i; ++j) {
        add_decay(i, j, dp[j] * p[j]);
        dp[j] *= decay[j];
      }
      std::fill(dp + i + 1, dp + sizes_.row_stride, A{0});
    }
    multiply_add(sizes_.rows, sizes_.keys, sizes_.rows, lane_.dscores, lane_.keys.k, lane_.dq);
    multiply_transposed_add(sizes_.rows, sizes_.keys, sizes_.rows, lane_.dscores, lane_.keys.q,
                            lane_.dk);
  }

  // Products with the transposed states: dQ and dK, and dW.
  void state_products(std::int64_t h) {
    const ValueChunk<A>& chunk = lane_.chunk;
    const Tile<A> columns = lane_.transposed(sizes_.key_stride);
    transpose(sizes_.keys, sizes_.values, lane_.dstate(h), columns);
    copy_rows(sizes_.padded_rows(), chunk.corrected, lane_.values);
    scale_rows(sizes_.rows, chunk.leave, lane_.values);
    multiply_add(sizes_.rows, sizes_.keys, sizes_.values, lane_.values, columns, lane_.dk);
    transpose(sizes_.keys, sizes_.values, lane_.state, columns);
    multiply(sizes_.rows, sizes_.keys, sizes_.values, lane_.dcorrected, columns, lane_.dw);
    copy_rows(sizes_.padded_rows(), lane_.dout, lane_.values);
    scale_rows(sizes_.rows, chunk.enter, lane_.values);
    multiply(sizes_.rows, sizes_.keys, sizes_.values, lane_.values, columns, lane_.by_keys);
    for (int i = 0; i < sizes_.rows; ++i) {
      A *from = row(lane_.by_keys, i), *dq = row(lane_.dq, i);
      lane_.dc[i] += row_product(sizes_.keys, from, row(lane_.keys.q, i));
      for (int j = 0; j < sizes_.keys; ++j) dq[j] += from[j];
    }
  }

  // Y, Z, dN and what follows from them. `values` has dV then.
  void inner_gradients() {
    const ValueChunk<A>& chunk = lane_.chunk;
    copy_rows(sizes_.padded_rows(), lane_.dcorrected, lane_.values);
    solve_transposed(sizes_, sizes_.values, chunk.inner, lane_.values);
    solve_transposed(sizes_, sizes_.keys, chunk.inner, lane_.dw);
    const Tile<A> columns = lane_.transposed(sizes_.row_stride);
    transpose(sizes_.rows, sizes_.values, chunk.u, columns);
    multiply(sizes_.rows, sizes_.rows, sizes_.values, lane_.values, columns, lane_.squares);
    transpose(sizes_.rows, sizes_.keys, chunk.w, columns);
    multiply_add(sizes_.rows, sizes_.rows, sizes_.keys, lane_.dw, columns, lane_.squares);
    for (int i = 0; i < sizes_.rows; ++i) strength_gradients(i);
    multiply_add(sizes_.rows, sizes_.keys, sizes_.rows, lane_.squares, lane_.keys.k, lane_.dk);
    multiply_transposed_add(sizes_.rows, sizes_.keys, sizes_.rows, lane_.squares, lane_.keys.k,
                            lane_.dk);
  }

  // Row i: `squares` becomes diag(b) E, `values` diag(b) Y.
  void strength_gradients(int i) {
    const ValueChunk<A>& chunk = lane_.chunk;
    const A beta = chunk.beta[i], factor = -beta * chunk.enter[i];
    A *dn = row(lane_.squares, i), *inner = row(chunk.inner, i), *decay = row(chunk.decay, i);
    double sum = 0;
    for (int j = 0; j < i; ++j) {
      add_decay(i, j, dn[j] * inner[j]);
      const A e = -dn[j] * decay[j];
      sum += static_cast<double>(e) * static_cast<double>(row(lane_.keys.kk, i)[j]);
      dn[j] = beta * e;
    }
    std::fill(dn + i, dn + sizes_.row_stride, A{0});
    A *y = row(lane_.values, i), *z = row(lane_.dw, i), *dk = row(lane_.dk, i);
    const double by_keys = row_product(sizes_.keys, z, row(lane_.keys.k, i));
    lane_.dbeta[i] += sum + row_product(sizes_.values, y, row(chunk.v, i)) -
                      static_cast<double>(chunk.enter[i]) * by_keys;
    lane_.dc[i] += static_cast<double>(factor) * by_keys;
    for (int j = 0; j < sizes_.keys; ++j) dk[j] += factor * z[j];
    for (int j = 0; j < sizes_.values; ++j) y[j] *= beta;
  }

  void state_gradient(std::int64_t h) {
    const Tile<A> dstate = lane_.dstate(h);
    for (std::int64_t i = 0; i < lane_.state_size; ++i) dstate.data[i] *= lane_.chunk.whole;
    multiply_transposed_add(sizes_.keys, sizes_.values, sizes_.rows, lane_.chunk.w,
                            lane_.dcorrected, dstate);
    scale_rows(sizes_.rows, lane_.chunk.enter, lane_.dout);
    multiply_transposed_add(sizes_.keys, sizes_.values, sizes_.rows, lane_.keys.q, lane_.dout,
                            dstate);
  }

  void store_values(std::int64_t h) {
    store_matrix(lane_.values, sizes_.rows, sizes_.values,
                 args_.dqkv.as<T>() + row_ * shape_.columns() + value_column(h), shape_.columns());
    const std::int64_t gates = row_ * shape_.value_heads + head(h);
    A *dg = args_.dg.as<A>() + gates, *dbeta = args_.dbeta.as<A>() + gates;
    double sum = 0;
    for (int i = sizes_.rows - 1; i >= 0; --i) {
      sum += lane_.dc[i];
      dg[i * shape_.value_heads] = static_cast<A>(sum);
      dbeta[i * shape_.value_heads] = static_cast<A>(lane_.dbeta[i]);
      if (lane_.keys.first[i] == i) sum = 0;
    }
  }

  void store_keys() {
    T* dq = args_.dqkv.as<T>() + row_ * shape_.columns() + key_column();
    normalise_backward(sizes_.rows, sizes_.keys, shape_.scale, lane_.keys.q_factors, lane_.keys.q,
                       lane_.dq);
    normalise_backward(sizes_.rows, sizes_.keys, 1.0, lane_.keys.k_factors, lane_.keys.k, lane_.dk);
    store_matrix(lane_.dq, sizes_.rows, sizes_.keys, dq, shape_.columns());
    store_matrix(lane_.dk, sizes_.rows, sizes_.keys, dq + shape_.key_columns(), shape_.columns());
  }

  static A* row(Tile<A> x, int i) { return x.data + i * x.stride; }
  // c_i - c_j has this gradient.
  void add_decay(int i, int j, A gradient) {
    lane_.dc[i] += static_cast<double>(gradient);
    lane_.dc[j] -= static_cast<double>(gradient);
  }

  const DeltaBackwardArgs& args_;
  const DeltaShape& shape_;
  const RecurrentRun& run_;
  const std::int64_t key_head_, group_;
  ChunkSizes sizes_;
  ScratchBlock block_;
  BackwardLane<A> lane_;
  std::int64_t first_chunk_ = 0, row_ = 0;
};

}  // namespace

void delta_backward(const Stream& stream, const DeltaBackwardArgs& args) {
  check_delta("delta rule backward", args.shape, args.qkv, args.g, args.beta);
  visit_float(args.qkv.dtype, [&](auto type) {
    using Task = BackwardTask<decltype(type)>;
    for_run_heads(stream, args.shape, args.shape.key_heads, Task::bytes(args.shape),
                  [&](std::byte* memory, std::int64_t run, std::int64_t head) {
                    Task(args, run, head, memory).run();
                  });
  });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
