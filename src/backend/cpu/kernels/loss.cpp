// Cross entropy over vocabulary-parallel logits.
#include "kernels/loss.h"

#include <algorithm>

#include "backend/cpu/kernels/lanes.h"
#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
// Logits of -infinity mark vocabulary padding; they stay -infinity under a softcap and get no
// gradient.
template <class A>
BEV_INLINE A lowest() {
  return -static_cast<A>(__builtin_inf());
}

void check_chunk(const LossChunk& chunk, std::int64_t statistics) {
  BEV_CHECK(chunk.logits.shape.ndim() == 2 && statistics == chunk.logits.shape[0] &&
                chunk.columns() <= chunk.logits.shape[1],
            "loss: logits ", chunk.logits.shape, " of ", chunk.columns(), " columns with ",
            statistics, " rows of statistics");
}

// Calls body(A{}) for the type of the logits, which is an accumulate type.
template <class Body>
void visit_logits(const LossChunk& chunk, const Body& body) {
  if (chunk.logits.dtype == Dtype::kF64) return body(double{});
  BEV_CHECK(chunk.logits.dtype == Dtype::kF32, ErrorKind::kInternal,
            "loss: logits must be f32 or f64, are ", name_of(chunk.logits.dtype));
  body(float{});
}

// A long row is a piece of its own; short rows are grouped.
template <class Body>
void for_rows(const Stream& stream, const LossChunk& chunk, const Body& body) {
  for_ranges(stream, chunk.logits.shape[0], rows_per_piece(chunk.columns()),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t row = begin; row < end; ++row) body(row);
             });
}

// Column of the target in this shard of the vocabulary, or -1.
std::int64_t local_target(const LossChunk& chunk, std::int64_t row) {
  const std::int64_t target = chunk.targets[row];
  const std::int64_t local = target - chunk.first_row;
  return target >= 0 && local >= 0 && local < chunk.columns() ? local : -1;
}

template <class A>
void transform_row(A* z, std::int64_t columns, const LossChunk& chunk) {
  const A scale = static_cast<A>(chunk.logit_scale);
  if (chunk.softcap > 0) {
    const A cap = static_cast<A>(chunk.softcap);
    const A inner = static_cast<A>(chunk.logit_scale / chunk.softcap);
    for (std::int64_t j = 0; j < columns; ++j) {
      A capped = cap * tanh_of(inner * z[j]);
      z[j] = z[j] == lowest<A>() ? lowest<A>() : capped;
    }
  } else if (scale != 1) {
    for (std::int64_t j = 0; j < columns; ++j) z[j] *= scale;
  }
}

template <class A>
A* row_of(const LossChunk& chunk, std::int64_t row) {
  return chunk.logits.as<A>() + row * chunk.logits.shape[1];
}

void row_max(const Stream& stream, const LossMaxArgs& args) {
  check_chunk(args.chunk, args.row_max.numel());
  visit_logits(args.chunk, [&](auto type) {
    using A = decltype(type);
    A* most = args.row_max.as<A>();
    const std::int64_t columns = args.chunk.columns();
    for_rows(stream, args.chunk, [&](std::int64_t row) {
      A* z = row_of<A>(args.chunk, row);
      transform_row(z, columns, args.chunk);
      most[row] = max_of(z, columns);
    });
  });
}

// Exponentials of a run are written to a buffer, which vectorises, and summed from there.
constexpr std::int64_t kRun = 256;

template <class A>
A sum_exp(const A* z, std::int64_t columns, A most) {
  A sum = 0;
  for (std::int64_t begin = 0; begin < columns; begin += kRun) {
    A buffer[kRun];
    const std::int64_t count = std::min(kRun, columns - begin);
    for (std::int64_t j = 0; j < count; ++j) buffer[j] = exp_of(z[begin + j] - most);
    sum += sum_of<A>(count, [&](std::int64_t j) { return buffer[j]; });
  }
  return sum;
}

void row_sum(const Stream& stream, const LossSumArgs& args) {
  check_chunk(args.chunk, args.row_max.numel());
  BEV_CHECK(args.stats.numel() == 2 * args.row_max.numel(), "loss: stats ", args.stats.shape);
  visit_logits(args.chunk, [&](auto type) {
    using A = decltype(type);
    const A* most = args.row_max.as<A>();
    A* stats = args.stats.as<A>();
    const std::int64_t rows = args.chunk.logits.shape[0], columns = args.chunk.columns();
    for_rows(stream, args.chunk, [&](std::int64_t row) {
      const A* z = row_of<A>(args.chunk, row);
      const std::int64_t target = local_target(args.chunk, row);
      stats[row] = sum_exp(z, columns, most[row]);
      stats[rows + row] = target >= 0 ? z[target] : A{0};
    });
  });
}

template <class A>
struct RowStatistics {
  A most, sum, target_logit;
};

// Inputs of a row's gradient: p = exp(z - most) * inverse_sum, dlogit = factor * (p - [target]).
template <class A>
struct GradientRow {
  A most, inverse_sum, factor;
  std::int64_t target;
};

template <class A>
void gradient_row(A* z, std::int64_t columns, double softcap, const GradientRow<A>& row) {
  const A probability_factor = row.inverse_sum * row.factor;
  const A target_logit = row.target >= 0 ? z[row.target] : A{0};
  if (softcap > 0) {
    const A inverse = static_cast<A>(1 / softcap);
    for (std::int64_t j = 0; j < columns; ++j) {
      A ratio = z[j] * inverse;
      A slope = probability_factor * (1 - ratio * ratio);
      z[j] = z[j] == lowest<A>() ? A{0} : exp_of(z[j] - row.most) * slope;
    }
    if (row.target >= 0) {
      const A ratio = target_logit * inverse;
      if (target_logit != lowest<A>()) z[row.target] -= row.factor * (1 - ratio * ratio);
    }
  } else {
    for (std::int64_t j = 0; j < columns; ++j) z[j] = exp_of(z[j] - row.most) * probability_factor;
    if (row.target >= 0) z[row.target] -= row.factor;
  }
}

// Arguments of the gradient in addition to the chunk.
struct GradientWanted {
  const View& weights;
  const double* loss_factor;
  bool wanted;

  // d objective / d token_loss[row].
  double factor(std::int64_t row) const {
    const double weight = weights.dtype == Dtype::kF64
                              ? weights.as<double>()[row]
                              : static_cast<double>(weights.as<float>()[row]);
    return loss_factor != nullptr ? *loss_factor * weight : weight;
  }
};

// Returns the loss of a row of z, given its maximum, the sum of exp(z - most) and z of the target.
// If requested, the row is overwritten with its gradient.
template <class A>
A finish_row(const LossChunk& chunk, std::int64_t row, const GradientWanted& gradient,
             const RowStatistics<A>& statistics) {
  const bool ignored = chunk.targets[row] < 0;
  if (gradient.wanted) {
    const std::int64_t columns = chunk.columns();
    A* z = row_of<A>(chunk, row);
    const double factor = ignored ? 0 : gradient.factor(row) * chunk.logit_scale;
    if (factor == 0) {
      std::fill(z, z + columns, A{0});
    } else {
      gradient_row<A>(z, columns, chunk.softcap,
                      {.most = statistics.most,
                       .inverse_sum = 1 / statistics.sum,
                       .factor = static_cast<A>(factor),
                       .target = local_target(chunk, row)});
    }
  }
  return ignored ? A{0} : std::log(statistics.sum) + statistics.most - statistics.target_logit;
}

void gradient(const Stream& stream, const LossGradArgs& args) {
  check_chunk(args.chunk, args.row_max.numel());
  BEV_CHECK(args.stats.numel() == 2 * args.row_max.numel(), "loss: stats ", args.stats.shape);
  visit_logits(args.chunk, [&](auto type) {
    using A = decltype(type);
    A* token_loss = args.token_loss.as<A>();
    const A *most = args.row_max.as<A>(), *stats = args.stats.as<A>();
    const std::int64_t rows = args.chunk.logits.shape[0];
    for_rows(stream, args.chunk, [&](std::int64_t row) {
      token_loss[row] =
          finish_row<A>(args.chunk, row, {args.weights, args.loss_factor, args.with_gradient},
                        {most[row], stats[row], stats[rows + row]});
    });
  });
}

void whole(const Stream& stream, const LossWholeArgs& args) {
  check_chunk(args.chunk, args.token_loss.numel());
  visit_logits(args.chunk, [&](auto type) {
    using A = decltype(type);
    A* token_loss = args.token_loss.as<A>();
    const std::int64_t columns = args.chunk.columns();
    for_rows(stream, args.chunk, [&](std::int64_t row) {
      A* z = row_of<A>(args.chunk, row);
      const std::int64_t target = local_target(args.chunk, row);
      transform_row(z, columns, args.chunk);
      const A most = max_of(z, columns), sum = sum_exp(z, columns, most);
      token_loss[row] =
          finish_row<A>(args.chunk, row, {args.weights, args.loss_factor, args.with_gradient},
                        {most, sum, target >= 0 ? z[target] : A{0}});
    });
  });
}

void total(const Stream&, const LossTotalArgs& args) {
  visit_float(args.token_loss.dtype, [&](auto type) {
    const auto* losses = args.token_loss.as<decltype(type)>();
    for (std::int64_t row = 0; row < args.token_loss.numel(); ++row) {
      *args.total += static_cast<double>(args.weights[row]) * static_cast<double>(losses[row]);
    }
  });
}
}  // namespace

LossKernels kernel_table(Family<LossKernels>) {
  return {
      .row_max = row_max, .row_sum = row_sum, .gradient = gradient, .whole = whole, .total = total};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
