// Gated delta rule, token by token: one pass over the state reads it, a second writes it. And the
// gates: decays and strengths.
#include <cmath>
#include <limits>

#include "backend/cpu/kernels/delta_chunk.h"
#include "base/error.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// One run and value head.
template <class T>
class StepTask {
 public:
  using A = accumulate_t<T>;

  StepTask(const DeltaStepArgs& args, const RecurrentRun& run, std::int64_t head, std::byte* memory)
      : args_(args),
        shape_(args.shape),
        head_(head),
        keys_(shape_.key_size),
        values_(shape_.value_size),
        state_(state_at<A>(args.leaving, shape_, run.leave, head)),
        q_(reinterpret_cast<A*>(memory)),
        k_(q_ + keys_),
        u_(k_ + keys_),
        read_(u_ + values_) {
    const A* from = run.enter < 0 ? nullptr : state_at<A>(args.entering, shape_, run.enter, head);
    if (from == nullptr) std::fill_n(state_, keys_ * values_, A{0});
    if (from != nullptr && from != state_) std::copy_n(from, keys_ * values_, state_);
  }

  static std::size_t bytes(const DeltaShape& shape) {
    const std::int64_t elements = 2 * (shape.key_size + shape.value_size);
    return round_up(static_cast<std::size_t>(elements) * sizeof(A), std::size_t{64});
  }

  void token(std::int64_t row) {
    const T* q = args_.qkv.as<T>() + row * shape_.columns() +
                 head_ / (shape_.value_heads / shape_.key_heads) * keys_;
    unit(q, shape_.scale, q_);
    unit(q + shape_.key_columns(), 1, k_);
    const std::int64_t gate = row * shape_.value_heads + head_;
    decay(exp_of(args_.g.as<A>()[gate]));
    correct(row, args_.beta.as<A>()[gate]);
    write(args_.out.as<T>() + (row * shape_.value_heads + head_) * values_);
  }

 private:
  void unit(const T* from, double scale, A* to) const {
    for (std::int64_t i = 0; i < keys_; ++i) to[i] = static_cast<A>(widen(from[i]));
    const double factor = 1 / std::sqrt(row_product(keys_, to, to) + shape_.epsilon);
    for (std::int64_t i = 0; i < keys_; ++i) to[i] *= static_cast<A>(factor * scale);
  }

  // The state decays; read = S^T k.
  void decay(A factor) {
    std::fill_n(read_, values_, A{0});
    for (std::int64_t i = 0; i < keys_; ++i) {
      A* __restrict row = state_ + i * values_;
      A* __restrict read = read_;
      const A key = k_[i];
      for (std::int64_t j = 0; j < values_; ++j) {
        row[j] *= factor;
        read[j] += key * row[j];
      }
    }
  }

  void correct(std::int64_t row, A beta) {
    const T* v =
        args_.qkv.as<T>() + row * shape_.columns() + 2 * shape_.key_columns() + head_ * values_;
    for (std::int64_t j = 0; j < values_; ++j) {
      u_[j] = beta * (static_cast<A>(widen(v[j])) - read_[j]);
    }
  }

  void write(T* out) {
    std::fill_n(read_, values_, A{0});
    for (std::int64_t i = 0; i < keys_; ++i) {
      A* __restrict row = state_ + i * values_;
      A* __restrict read = read_;
      const A key = k_[i], query = q_[i];
      for (std::int64_t j = 0; j < values_; ++j) {
        row[j] += key * u_[j];
        read[j] += query * row[j];
      }
    }
    for (std::int64_t j = 0; j < values_; ++j) out[j] = narrow<T>(read_[j]);
  }

  const DeltaStepArgs& args_;
  const DeltaShape& shape_;
  const std::int64_t head_, keys_, values_;
  A *state_, *q_, *k_, *u_, *read_;
};

}  // namespace

void delta_step(const Stream& stream, const DeltaStepArgs& args) {
  check_delta("delta rule step", args.shape, args.qkv, args.g, args.beta);
  visit_float(args.qkv.dtype, [&](auto type) {
    using Task = StepTask<decltype(type)>;
    for_run_heads(stream, args.shape, args.shape.value_heads, Task::bytes(args.shape),
                  [&](std::byte* memory, std::int64_t index, std::int64_t head) {
                    const RecurrentRun& run = args.shape.runs[static_cast<std::size_t>(index)];
                    Task task(args, run, head, memory);
                    for (std::int64_t t = 0; t < run.count; ++t) task.token(run.row + t);
                  });
  });
}

namespace {

template <class A>
A sigmoid(A x) {
  const A small = exp_of(-std::fabs(x));
  return (x >= 0 ? A{1} : small) / (1 + small);
}
template <class A>
A softplus(A x) {
  return x > 20 ? x : std::log1p(exp_of(x));
}
template <class A>
A element(const View& x, std::int64_t at) {
  return visit_float(x.dtype,
                     [&](auto type) { return static_cast<A>(widen(x.as<decltype(type)>()[at])); });
}
// -exp(a_log), finite.
template <class A>
A decay_rate(const View& a_log, std::int64_t head) {
  return -std::min(exp_of(element<A>(a_log, head)), std::numeric_limits<A>::max() / 1024);
}

// Sums over rows of a column in the order of the rows.
template <class A>
struct GateSums {
  double a_log = 0, dt_bias = 0;
};

template <class T, class A = accumulate_t<T>>
GateSums<A> gate_gradients(const DeltaGatesBackwardArgs& args, std::int64_t rows,
                           std::int64_t heads, std::int64_t head) {
  const T* gates = args.gates.as<T>() + head;
  T* dgates = args.dgates.as<T>() + head;
  const A *dg = args.dg.as<A>() + head, *dbeta = args.dbeta.as<A>() + head;
  const A rate = decay_rate<A>(args.a_log, head), bias = element<A>(args.dt_bias, head);
  GateSums<A> sums;
  for (std::int64_t row = 0; row < rows; ++row) {
    const A beta = sigmoid(static_cast<A>(widen(gates[2 * row * heads])));
    dgates[2 * row * heads] = narrow<T>(dbeta[row * heads] * beta * (1 - beta));
    const A x = static_cast<A>(widen(gates[(2 * row + 1) * heads])) + bias;
    const A dx = dg[row * heads] * rate * (x > 20 ? A{1} : sigmoid(x));
    dgates[(2 * row + 1) * heads] = narrow<T>(dx);
    sums.dt_bias += static_cast<double>(dx);
    sums.a_log += static_cast<double>(dg[row * heads] * (rate * softplus(x)));
  }
  return sums;
}

void add_sum(const View& to, std::int64_t at, double beta, double sum) {
  if (to.empty()) return;
  visit_float(to.dtype, [&](auto type) {
    using Y = decltype(type);
    Y* value = to.as<Y>() + at;
    if (beta != 0) sum += beta * static_cast<double>(widen(*value));
    *value = narrow<Y>(static_cast<accumulate_t<Y>>(sum));
  });
}

void check_gates(const View& gates, const View& a_log, const View& g) {
  BEV_CHECK(gates.shape.ndim() == 2 && gates.shape[1] == 2 * a_log.numel() &&
                g.shape == (Shape{gates.shape[0], a_log.numel()}),
            "delta gates: rows ", gates.shape, " and decays ", g.shape, " for ", a_log.numel(),
            " heads");
}

}  // namespace

void delta_gates(const Stream& stream, const DeltaGatesArgs& args) {
  check_gates(args.gates, args.a_log, args.g);
  const std::int64_t heads = args.a_log.numel();
  visit_float(args.gates.dtype, [&](auto type) {
    using T = decltype(type);
    using A = accumulate_t<T>;
    const T* gates = args.gates.as<T>();
    A *g = args.g.as<A>(), *beta = args.beta.as<A>();
    stream.pool->run(heads, [=, &args](std::int64_t head) {
      const A rate = decay_rate<A>(args.a_log, head), bias = element<A>(args.dt_bias, head);
      for (std::int64_t row = 0; row < args.gates.shape[0]; ++row) {
        const T* at = gates + 2 * row * heads + head;
        beta[row * heads + head] = sigmoid(static_cast<A>(widen(at[0])));
        g[row * heads + head] = rate * softplus(static_cast<A>(widen(at[heads])) + bias);
      }
    });
  });
}

void delta_gates_backward(const Stream& stream, const DeltaGatesBackwardArgs& args) {
  check_gates(args.gates, args.a_log, args.dg);
  const std::int64_t heads = args.a_log.numel();
  visit_float(args.gates.dtype, [&](auto type) {
    using T = decltype(type);
    stream.pool->run(heads, [&](std::int64_t head) {
      const auto sums = gate_gradients<T>(args, args.gates.shape[0], heads, head);
      add_sum(args.da_log, head, args.a_log_beta, sums.a_log);
      add_sum(args.ddt_bias, head, args.dt_bias_beta, sums.dt_bias);
    });
  });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
