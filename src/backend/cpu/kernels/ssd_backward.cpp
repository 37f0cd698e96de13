#include "backend/cpu/kernels/ssd_backward.h"

#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/small_products.h"
#include "backend/cpu/kernels/ssd_chunk.h"
#include "backend/cpu/kernels/tables.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// What a chunk adds to the gradients of a head's parameters.
struct HeadSums {
  double a_log = 0, bias = 0, skip = 0;
};

// Gradients of one group of heads in one chunk. With e_i and f_i the decays from before the chunk
// to token i and from i to its end, L_ij those from j to i, u = dt x, M = (C B^T) o L:
//   dM = tril(dY U^T)    dU = M^T dY + f B dS1    dC = (dM o L) B + e dY S0^T
//   dB = (dM o L)^T C + f U dS1^T
template <class T>
class GroupGradient {
 public:
  using A = accumulate_t<T>;
  GroupGradient(const SsdBackwardArgs& args, std::int64_t index, const SsdGroup<T>& group)
      : args_(args),
        group_(group),
        chunk_(group.chunk),
        index_(index),
        q_(chunk_.count),
        n_(args.shape.state_size),
        p_(args.shape.head_size),
        steps_(q_) {
    SsdBuffer<A> b_columns(q_ * n_);
    read_columns<T>(args.in.xbc, chunk_, group.b_column, n_, b_.get());
    read_columns<T>(args.in.xbc, chunk_, group.c_column, n_, c_.get());
    transpose(q_, n_, b_.get(), b_columns.get());
    add_product<A>(q_, q_, n_, {c_, n_}, b_columns, q_, products_, q_);
  }

  HeadSums head(std::int64_t h) {
    const SsdHead<T> head(args_.shape, args_.in, h);
    steps_.read(head, chunk_);
    read_columns<T>(args_.in.xbc, chunk_, h * p_, p_, x_.get());
    read_columns<T>(args_.dy, chunk_, h * p_, p_, dy_.get());
    const std::int64_t place = (index_ * args_.shape.heads + h) * n_ * p_;
    const A* before = args_.states.template as<A>() + place;
    const A* after = args_.dstates.template as<A>() + place;
    for (std::int64_t t = 0; t < q_; ++t) {
      const A dt = steps_.dt[static_cast<std::size_t>(t)];
      for (std::int64_t i = t * p_; i < (t + 1) * p_; ++i) u_[i] = dt * x_[i];
    }
    std::fill(decays_.begin(), decays_.end(), 0.0);
    within_chunk();
    from_state(before);
    to_state(after);
    add_decay_of_state(before, after);
    return finish(head, h);
  }

  // After all heads.
  void store() {
    add_product<A>(q_, n_, q_, {dproducts_, q_}, b_, n_, dc_, n_);
    add_product<A>(q_, n_, q_, {dproducts_, 1, q_}, c_, n_, db_, n_);
    write_columns<T>(db_.get(), chunk_, group_.b_column, n_, args_.dxbc);
    write_columns<T>(dc_.get(), chunk_, group_.c_column, n_, args_.dxbc);
  }

 private:
  // dM, then dU = M^T dY, and dM o M for the decays, whose sums over rectangles i >= t > j are
  // added up without subtractions.
  void within_chunk() {
    transpose(q_, p_, u_.get(), u_columns_.get());
    dm_.clear();
    add_product<A>(q_, q_, p_, {dy_, p_}, u_columns_, q_, dm_, q_);
    for (std::int64_t i = 0; i < q_; ++i) {
      double before = 0;
      for (std::int64_t j = 0; j < q_; ++j) {
        const std::int64_t at = i * q_ + j;
        if (j > i || j < chunk_.first_of(i)) {
          m_[at] = 0;
          continue;
        }
        const A decay = exp_of(static_cast<A>(steps_.sums[static_cast<std::size_t>(i)] -
                                              steps_.sums[static_cast<std::size_t>(j)]));
        m_[at] = products_[at] * decay;
        dproducts_[at] += dm_[at] * decay;
        decays_[static_cast<std::size_t>(j)] += before;
        before += static_cast<double>(dm_[at] * m_[at]);
      }
    }
    du_.clear();
    add_product<A>(q_, p_, q_, {m_, 1, q_}, dy_, p_, du_, p_);
  }

  // Outputs read the state before the chunk.
  void from_state(const A* before) {
    transpose(n_, p_, before, state_columns_.get());
    rows_.clear();
    add_product<A>(q_, n_, p_, {dy_, p_}, state_columns_, n_, rows_, n_);
    double later = 0;
    for (std::int64_t t = q_ - 1; t >= 0; --t) {
      const A factor = steps_.from_before(t, chunk_);
      later += static_cast<double>(factor * dot<A>(n_, rows_ + t * n_, c_ + t * n_));
      for (std::int64_t i = t * n_; i < (t + 1) * n_; ++i) dc_[i] += factor * rows_[i];
      decays_[static_cast<std::size_t>(t)] += later;
    }
  }

  // Tokens add to the state after the chunk.
  void to_state(const A* after) {
    transpose(n_, p_, after, state_columns_.get());
    rows_.clear();
    add_product<A>(q_, n_, p_, {u_, p_}, state_columns_, n_, rows_, n_);
    double earlier = 0;
    for (std::int64_t t = 0; t < q_; ++t) {
      const A factor = steps_.to_end(t, chunk_);
      decays_[static_cast<std::size_t>(t)] += earlier;
      earlier += static_cast<double>(factor * dot<A>(n_, rows_ + t * n_, b_ + t * n_));
      for (std::int64_t i = t * n_; i < (t + 1) * n_; ++i) {
        db_[i] += factor * rows_[i];
        scaled_b_[i] = factor * b_[i];
      }
    }
    add_product<A>(q_, p_, n_, {scaled_b_, n_}, after, p_, du_, p_);
  }

  // The state before the chunk decays to the one after it.
  void add_decay_of_state(const A* before, const A* after) {
    const A factor = exp_of(static_cast<A>(steps_.total(chunk_)));
    const auto kept = static_cast<double>(factor * dot<A>(n_ * p_, before, after));
    for (double& decay : decays_) decay += kept;
  }

  HeadSums finish(const SsdHead<T>& head, std::int64_t h) {
    HeadSums sums;
    T* draw = args_.ddt.template as<T>() + chunk_.row * args_.shape.heads + h;
    for (std::int64_t t = 0; t < q_; ++t, draw += args_.shape.heads) {
      const A dt = steps_.dt[static_cast<std::size_t>(t)];
      const A* x = x_ + t * p_;
      A* du = du_ + t * p_;
      const double ddecay = decays_[static_cast<std::size_t>(t)];
      const double along = static_cast<double>(dot<A>(p_, du, x));
      sums.skip += static_cast<double>(dot<A>(p_, dy_ + t * p_, x));
      sums.a_log += static_cast<double>(head.a) * static_cast<double>(dt) * ddecay;
      const double raw = (static_cast<double>(head.a) * ddecay + along) *
                         static_cast<double>(head.slope(chunk_.row + t));
      sums.bias += raw;
      *draw = narrow<T>(static_cast<A>(raw));
      for (std::int64_t i = 0; i < p_; ++i) du[i] = dt * du[i] + head.skip * dy_[t * p_ + i];
    }
    write_columns<T>(du_.get(), chunk_, h * p_, p_, args_.dxbc);
    return sums;
  }

  const SsdBackwardArgs& args_;
  const SsdGroup<T>& group_;
  const SsdChunk& chunk_;
  std::int64_t index_, q_, n_, p_;
  SsdSteps<A> steps_;
  SsdBuffer<A> b_{q_ * n_}, c_{q_ * n_}, products_{q_ * q_}, dproducts_{q_ * q_};
  SsdBuffer<A> db_{q_ * n_}, dc_{q_ * n_}, rows_{q_ * n_}, scaled_b_{q_ * n_};
  SsdBuffer<A> x_{q_ * p_}, u_{q_ * p_}, u_columns_{q_ * p_}, dy_{q_ * p_}, du_{q_ * p_};
  SsdBuffer<A> m_{q_ * q_}, dm_{q_ * q_}, state_columns_{n_ * p_};
  std::vector<double> decays_ = std::vector<double>(static_cast<std::size_t>(q_));
};

// Adds the chunks' sums to the gradients of the heads, in order.
void store_head_sums(const std::vector<HeadSums>& sums, std::int64_t heads, double HeadSums::*part,
                     double beta, const View& out) {
  if (out.empty()) return;
  visit_float(out.dtype, [&](auto zero) {
    using Y = decltype(zero);
    for (std::int64_t h = 0; h < heads; ++h) {
      double sum = 0;
      for (std::size_t at = static_cast<std::size_t>(h); at < sums.size();
           at += static_cast<std::size_t>(heads)) {
        sum += sums[at].*part;
      }
      Y& to = out.as<Y>()[h];
      if (beta != 0) sum += beta * static_cast<double>(widen(to));
      to = narrow<Y>(static_cast<accumulate_t<Y>>(sum));
    }
  });
}

template <class T>
void run_backward(const Stream& stream, const SsdBackwardArgs& args) {
  const SsdShape& shape = args.shape;
  const std::vector<SsdChunk> chunks = ssd_chunks(shape);
  std::vector<HeadSums> sums(chunks.size() * static_cast<std::size_t>(shape.heads));
  for_ranges(stream, std::ssize(chunks) * shape.groups, 1, [&](std::int64_t piece, std::int64_t) {
    const std::int64_t chunk = piece / shape.groups;
    const SsdGroup<T> group(shape, chunks[static_cast<std::size_t>(chunk)], piece % shape.groups);
    GroupGradient<T> gradient(args, chunk, group);
    for (std::int64_t h = group.first_head; h < group.end_head; ++h) {
      sums[static_cast<std::size_t>(chunk * shape.heads + h)] = gradient.head(h);
    }
    gradient.store();
  });
  store_head_sums(sums, shape.heads, &HeadSums::bias, args.dt_bias_beta, args.ddt_bias);
  store_head_sums(sums, shape.heads, &HeadSums::a_log, args.a_log_beta, args.da_log);
  store_head_sums(sums, shape.heads, &HeadSums::skip, args.d_beta, args.dd);
}

}  // namespace

void ssd_backward(const Stream& stream, const SsdBackwardArgs& args) {
  visit_float(args.in.xbc.dtype, [&](auto zero) { run_backward<decltype(zero)>(stream, args); });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
