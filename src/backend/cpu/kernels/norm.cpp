// RMSNorm, LayerNorm and QK norm, forward and backward.
#include "kernels/norm.h"

#include <array>
#include <cmath>
#include <type_traits>

#include "backend/cpu/kernels/amax.h"
#include "backend/cpu/kernels/lanes.h"
#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tables.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// Weight gradients: a piece owns some columns and sums all rows, kSumRows at a time.
constexpr int kNormColumns = 64;
constexpr int kHeadColumns = 16;
constexpr std::int64_t kSumRows = 64;

template <class A>
struct Statistics {
  A mean = 0, rstd = 1;
};

// Two passes for LayerNorm: the variance of centred values has no cancellation.
template <class T, class A = accumulate_t<T>>
BEV_INLINE Statistics<A> row_statistics(std::int64_t n, const T* s, bool centred, double epsilon) {
  Statistics<A> result;
  if (n == 0) return result;
  if (centred) {
    result.mean = sum_of<A>(n, [&](std::int64_t i) { return widen(s[i]); }) / static_cast<A>(n);
  }
  const A mean = result.mean;
  const A squares = sum_of<A>(n, [&](std::int64_t i) {
    const A x = widen(s[i]) - mean;
    return x * x;
  });
  result.rstd = 1 / std::sqrt(squares / static_cast<A>(n) + static_cast<A>(epsilon));
  return result;
}

template <class T, class S, class A = accumulate_t<T>>
BEV_INLINE void normalise_row(std::int64_t n, const S* s, Statistics<A> stats, A offset,
                              const T* weight, const T* bias, T* y) {
  if (bias != nullptr) {
    for (std::int64_t i = 0; i < n; ++i) {
      const A unit = (widen(s[i]) - stats.mean) * stats.rstd;
      y[i] = narrow<T>(unit * (offset + widen(weight[i])) + widen(bias[i]));
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      const A unit = (widen(s[i]) - stats.mean) * stats.rstd;
      y[i] = narrow<T>(unit * (offset + widen(weight[i])));
    }
  }
}

template <class T>
T* address(const View& view) {
  return view.empty() ? nullptr : view.as<T>();
}

// X is the dtype of x, S that of the normalised sum.
template <class T, class X, class S>
void run_forward(const Stream& stream, const NormForwardArgs& args) {
  using A = accumulate_t<T>;
  const std::int64_t rows = args.x.shape[0], n = args.x.shape.row_numel();
  const X* x = args.x.as<X>();
  const T *weight = args.weight.as<T>(), *bias = address<T>(args.bias);
  const S* residual = address<S>(args.residual);
  S* sum = address<S>(args.sum);
  T* y = address<T>(args.y);
  A *mean = address<A>(args.mean), *rstd = args.rstd.as<A>();
  for_ranges(stream, rows, rows_per_piece(n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const S* s = nullptr;
      if constexpr (std::is_same_v<X, S>) s = x + row * n;
      if (residual != nullptr) {
        for (std::int64_t i = row * n; i < (row + 1) * n; ++i) {
          sum[i] = narrow<S>(widen(x[i]) + widen(residual[i]));
        }
        s = sum + row * n;
      }
      const Statistics<A> stats = row_statistics(n, s, mean != nullptr, args.epsilon);
      if (mean != nullptr) mean[row] = stats.mean;
      rstd[row] = stats.rstd;
      if (y == nullptr) continue;
      normalise_row(n, s, stats, static_cast<A>(args.offset), weight, bias, y + row * n);
    }
  });
}

// dx = rstd * (g - mean(g) - unit * mean(g * unit)) + dsum with g = dy * (offset + weight); the
// first mean only for LayerNorm.
template <class T, class S, class A = accumulate_t<T>>
BEV_INLINE void backward_row(std::int64_t n, const T* dy, const S* s, const S* dsum,
                             const T* weight, Statistics<A> stats, bool centred, A offset, S* dx) {
  const auto unit = [&](std::int64_t i) { return (widen(s[i]) - stats.mean) * stats.rstd; };
  const auto scaled = [&](std::int64_t i) { return widen(dy[i]) * (offset + widen(weight[i])); };
  const A count = static_cast<A>(n);
  const A along = sum_of<A>(n, [&](std::int64_t i) { return scaled(i) * unit(i); }) / count;
  const A shift = centred ? sum_of<A>(n, scaled) / count : A{0};
  if (dsum != nullptr) {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) {
      dx[i] = narrow<S>(stats.rstd * (scaled(i) - shift - unit(i) * along) + widen(dsum[i]));
    }
  } else {
#pragma GCC ivdep
    for (std::int64_t i = 0; i < n; ++i) {
      dx[i] = narrow<S>(stats.rstd * (scaled(i) - shift - unit(i) * along));
    }
  }
}

// Gradients of kColumns columns of the weight and of the bias.
template <class A, int kColumns>
struct ColumnSums {
  alignas(64) A weight[kColumns] = {}, bias[kColumns] = {};

  void add(const ColumnSums& other) {
    for (int c = 0; c < kColumns; ++c) weight[c] += other.weight[c];
    for (int c = 0; c < kColumns; ++c) bias[c] += other.bias[c];
  }
  template <class T, class S>
  BEV_INLINE void add_row(int columns, const T* dy, const S* s, Statistics<A> stats) {
    if (columns == kColumns) {
      add_columns(kColumns, dy, s, stats);
    } else {
      add_columns(columns, dy, s, stats);
    }
  }
  template <class T, class S>
  BEV_INLINE void add_columns(int columns, const T* __restrict dy, const S* __restrict s,
                              Statistics<A> stats) {
    for (int c = 0; c < columns; ++c) {
      const A grad = widen(dy[c]);
      weight[c] += grad * ((widen(s[c]) - stats.mean) * stats.rstd);
      bias[c] += grad;
    }
  }
};

// Elements of target from `begin` on = beta * old + sums; target has dtype A, or bf16 for f32 sums.
template <class A>
void store_columns(int columns, const A* sums, double beta, const View& target,
                   std::int64_t begin) {
  if (target.empty()) return;
  const auto store = [&](auto* to) {
    using G = std::remove_pointer_t<decltype(to)>;
    for (int c = 0; c < columns; ++c) {
      const A old = beta == 0 ? A{0} : static_cast<A>(widen(to[c]));
      const A sum = beta == 0 ? sums[c] : static_cast<A>(beta) * old + sums[c];
      to[c] = narrow<G>(static_cast<accumulate_t<G>>(sum));
    }
  };
  if (target.dtype == Dtype::kBf16) return store(target.as<Bf16>() + begin);
  store(target.as<A>() + begin);
}

template <class T, class S>
void norm_wgrad(const Stream& stream, const NormBackwardArgs& args) {
  using A = accumulate_t<T>;
  const std::int64_t rows = args.s.shape[0], n = args.s.shape.row_numel();
  const T* dy = args.dy.as<T>();
  const S* s = args.s.as<S>();
  const A *mean = address<A>(args.mean), *rstd = args.rstd.as<A>();
  for_ranges(stream, n, kNormColumns, [&](std::int64_t begin, std::int64_t end) {
    const int columns = static_cast<int>(end - begin);
    ColumnSums<A, kNormColumns> total;
    for (std::int64_t first = 0; first < rows; first += kSumRows) {
      ColumnSums<A, kNormColumns> part;
      for (std::int64_t row = first; row < std::min(rows, first + kSumRows); ++row) {
        const Statistics<A> stats = {mean != nullptr ? mean[row] : A{0}, rstd[row]};
        part.add_row(columns, dy + row * n + begin, s + row * n + begin, stats);
      }
      total.add(part);
    }
    store_columns(columns, total.weight, args.beta, args.dweight, begin);
    store_columns(columns, total.bias, args.beta, args.dbias, begin);
  });
}

template <class T, class S>
void run_backward(const Stream& stream, const NormBackwardArgs& args) {
  using A = accumulate_t<T>;
  // dx may alias dy, so the sums over dy come first.
  if (!args.dweight.empty() || !args.dbias.empty()) norm_wgrad<T, S>(stream, args);
  if (args.dx.empty()) return;
  const std::int64_t rows = args.s.shape[0], n = args.s.shape.row_numel();
  const T *dy = args.dy.as<T>(), *weight = args.weight.as<T>();
  const S *s = args.s.as<S>(), *dsum = address<S>(args.dsum);
  const A *mean = address<A>(args.mean), *rstd = args.rstd.as<A>();
  S* dx = args.dx.as<S>();
  for_ranges(stream, rows, rows_per_piece(n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const Statistics<A> stats = {mean != nullptr ? mean[row] : A{0}, rstd[row]};
      backward_row(n, dy + row * n, s + row * n, dsum ? dsum + row * n : nullptr, weight, stats,
                   mean != nullptr, static_cast<A>(args.offset), dx + row * n);
    }
  });
}

template <class T>
void run_head_forward(const Stream& stream, const HeadNormForwardArgs& args) {
  using A = accumulate_t<T>;
  const std::int64_t normed = args.q_heads + args.kv_heads, heads = normed + args.kv_heads;
  const std::int64_t size = args.head_size;
  const T *x = args.x.as<T>(), *q_weight = args.q_weight.as<T>(), *k_weight = args.k_weight.as<T>();
  T* y = args.y.as<T>();
  A* rstd = args.rstd.as<A>();
  for_ranges(stream, args.x.shape[0], rows_per_piece(heads * size),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t row = begin; row < end; ++row) {
                 const T* from = x + row * heads * size;
                 T* to = y + row * heads * size;
                 for (std::int64_t h = 0; h < normed; ++h) {
                   const Statistics<A> stats =
                       row_statistics(size, from + h * size, false, args.epsilon);
                   rstd[row * normed + h] = stats.rstd;
                   normalise_row<T>(size, from + h * size, stats, static_cast<A>(args.offset),
                                    h < args.q_heads ? q_weight : k_weight, nullptr, to + h * size);
                 }
                 if (from != to)
                   std::copy(from + normed * size, from + heads * size, to + normed * size);
               }
             });
}

// Gradient dweight [D] of the weight that heads [head_begin, head_end) share.
template <class T>
void head_norm_wgrad(const Stream& stream, const HeadNormBackwardArgs& args,
                     std::int64_t head_begin, std::int64_t head_end, double beta,
                     const View& dweight) {
  using A = accumulate_t<T>;
  if (dweight.empty()) return;
  const std::int64_t rows = args.x.shape[0], size = args.head_size;
  const std::int64_t normed = args.q_heads + args.kv_heads,
                     stride = (normed + args.kv_heads) * size;
  const T *dy = args.dy.as<T>(), *x = args.x.as<T>();
  const A* rstd = args.rstd.as<A>();
  for_ranges(stream, size, kHeadColumns, [&](std::int64_t begin, std::int64_t end) {
    const int columns = static_cast<int>(end - begin);
    ColumnSums<A, kHeadColumns> total;
    for (std::int64_t first = 0; first < rows; first += kSumRows) {
      ColumnSums<A, kHeadColumns> part;
      for (std::int64_t row = first; row < std::min(rows, first + kSumRows); ++row) {
        for (std::int64_t h = head_begin; h < head_end; ++h) {
          const std::int64_t at = row * stride + h * size + begin;
          part.add_row(columns, dy + at, x + at, Statistics<A>{0, rstd[row * normed + h]});
        }
      }
      total.add(part);
    }
    store_columns(columns, total.weight, beta, dweight, begin);
  });
}

template <class T>
void run_head_backward(const Stream& stream, const HeadNormBackwardArgs& args) {
  using A = accumulate_t<T>;
  const std::int64_t normed = args.q_heads + args.kv_heads, heads = normed + args.kv_heads;
  const std::int64_t size = args.head_size;
  head_norm_wgrad<T>(stream, args, 0, args.q_heads, args.q_beta, args.dq_weight);
  head_norm_wgrad<T>(stream, args, args.q_heads, normed, args.k_beta, args.dk_weight);
  const T *dy = args.dy.as<T>(), *x = args.x.as<T>();
  const T *q_weight = args.q_weight.as<T>(), *k_weight = args.k_weight.as<T>();
  const A* rstd = args.rstd.as<A>();
  T* dx = args.dx.as<T>();
  for_ranges(stream, args.x.shape[0], rows_per_piece(heads * size),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t row = begin; row < end; ++row) {
                 const std::int64_t at = row * heads * size;
                 for (std::int64_t h = 0; h < normed; ++h) {
                   backward_row<T, T>(size, dy + at + h * size, x + at + h * size, nullptr,
                                      h < args.q_heads ? q_weight : k_weight,
                                      Statistics<A>{0, rstd[row * normed + h]}, false,
                                      static_cast<A>(args.offset), dx + at + h * size);
                 }
                 if (dy != dx) {
                   std::copy(dy + at + normed * size, dy + at + heads * size,
                             dx + at + normed * size);
                 }
               }
             });
}

// The q or the k part of the rows of a width norm.
template <class T, class A = accumulate_t<T>>
struct WidthPart {
  std::int64_t begin, columns, width;  // columns of this rank from `begin`; of all ranks
  const T* weight;
  int index;  // among the sums of a row

  A rstd(const A* squares, std::int64_t row, double epsilon) const {
    const A mean = squares[2 * row + index] / static_cast<A>(width);
    return 1 / std::sqrt(mean + static_cast<A>(epsilon));
  }
};
template <class T, class Args>
std::array<WidthPart<T>, 2> width_parts(const Args& args) {
  const WidthNormShape& s = args.shape;
  return {WidthPart<T>{0, s.q_columns, s.q_width, address<T>(args.q_weight), 0},
          WidthPart<T>{s.q_columns, s.k_columns, s.k_width, address<T>(args.k_weight), 1}};
}

template <class T>
void run_width_sums(const Stream& stream, const WidthNormSumsArgs& args) {
  using A = accumulate_t<T>;
  const std::int64_t row_size = args.x.shape.row_numel();
  const T *x = args.x.as<T>(), *dy = address<T>(args.dy);
  const A offset = static_cast<A>(args.shape.offset);
  A* sums = args.sums.as<A>();
  for_ranges(stream, args.x.shape[0], rows_per_piece(row_size),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t row = begin; row < end; ++row) {
                 for (const WidthPart<T>& part : width_parts<T>(args)) {
                   const std::int64_t at = row * row_size + part.begin;
                   sums[2 * row + part.index] = sum_of<A>(part.columns, [&](std::int64_t i) {
                     const A value = widen(x[at + i]);
                     if (dy == nullptr) return value * value;
                     return widen(dy[at + i]) * (offset + widen(part.weight[i])) * value;
                   });
                 }
               }
             });
}

template <class T>
void run_width_forward(const Stream& stream, const WidthNormForwardArgs& args) {
  using A = accumulate_t<T>;
  const std::int64_t row_size = args.x.shape.row_numel();
  const std::int64_t normed = args.shape.q_columns + args.shape.k_columns;
  const T* x = args.x.as<T>();
  const A* squares = args.squares.as<A>();
  T* y = args.y.as<T>();
  for_ranges(stream, args.x.shape[0], rows_per_piece(row_size),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t row = begin; row < end; ++row) {
                 const T* from = x + row * row_size;
                 T* to = y + row * row_size;
                 for (const WidthPart<T>& part : width_parts<T>(args)) {
                   const Statistics<A> stats{0, part.rstd(squares, row, args.shape.epsilon)};
                   normalise_row<T>(part.columns, from + part.begin, stats,
                                    static_cast<A>(args.shape.offset), part.weight, nullptr,
                                    to + part.begin);
                 }
                 if (from != to) std::copy(from + normed, from + row_size, to + normed);
               }
             });
}

template <class T>
void width_wgrad(const Stream& stream, const WidthNormBackwardArgs& args, const WidthPart<T>& part,
                 double beta, const View& dweight) {
  using A = accumulate_t<T>;
  if (dweight.empty()) return;
  const std::int64_t rows = args.x.shape[0], row_size = args.x.shape.row_numel();
  const T *dy = args.dy.as<T>(), *x = args.x.as<T>();
  const A* squares = args.squares.as<A>();
  for_ranges(stream, part.columns, kNormColumns, [&](std::int64_t begin, std::int64_t end) {
    const int columns = static_cast<int>(end - begin);
    ColumnSums<A, kNormColumns> total;
    for (std::int64_t first = 0; first < rows; first += kSumRows) {
      ColumnSums<A, kNormColumns> sums;
      for (std::int64_t row = first; row < std::min(rows, first + kSumRows); ++row) {
        const std::int64_t at = row * row_size + part.begin + begin;
        const Statistics<A> stats{0, part.rstd(squares, row, args.shape.epsilon)};
        sums.add_row(columns, dy + at, x + at, stats);
      }
      total.add(sums);
    }
    store_columns(columns, total.weight, beta, dweight, begin);
  });
}

template <class T>
void run_width_backward(const Stream& stream, const WidthNormBackwardArgs& args) {
  using A = accumulate_t<T>;
  const std::array<WidthPart<T>, 2> parts = width_parts<T>(args);
  width_wgrad<T>(stream, args, parts[0], args.q_beta, args.dq_weight);
  width_wgrad<T>(stream, args, parts[1], args.k_beta, args.dk_weight);
  const std::int64_t row_size = args.x.shape.row_numel();
  const std::int64_t normed = args.shape.q_columns + args.shape.k_columns;
  const A *squares = args.squares.as<A>(), *products = args.products.as<A>();
  const A offset = static_cast<A>(args.shape.offset);
  T* dx = args.dx.as<T>();
  for_ranges(
      stream, args.x.shape[0], rows_per_piece(row_size), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const T *dy = args.dy.as<T>() + row * row_size, *x = args.x.as<T>() + row * row_size;
          T* to = dx + row * row_size;
          for (const WidthPart<T>& part : parts) {
            const A rstd = part.rstd(squares, row, args.shape.epsilon);
            const A along =
                rstd * rstd * products[2 * row + part.index] / static_cast<A>(part.width);
            for (std::int64_t i = 0; i < part.columns; ++i) {
              const std::int64_t at = part.begin + i;
              const A scaled = widen(dy[at]) * (offset + widen(part.weight[i]));
              to[at] = narrow<T>(rstd * (scaled - widen(x[at]) * along));
            }
          }
          if (dy != to) std::copy(dy + normed, dy + row_size, to + normed);
        }
      });
}

void width_sums(const Stream& stream, const WidthNormSumsArgs& args) {
  visit_float(args.x.dtype, [&](auto zero) { run_width_sums<decltype(zero)>(stream, args); });
}
void width_forward(const Stream& stream, const WidthNormForwardArgs& args) {
  visit_float(args.x.dtype, [&](auto zero) { run_width_forward<decltype(zero)>(stream, args); });
}
void width_backward(const Stream& stream, const WidthNormBackwardArgs& args) {
  visit_float(args.x.dtype, [&](auto zero) { run_width_backward<decltype(zero)>(stream, args); });
}

void forward(const Stream& stream, const NormForwardArgs& args) {
  visit_float(args.weight.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) {
      if (args.x.dtype == Dtype::kF32) return run_forward<T, float, float>(stream, args);
      const bool wide_sum = !args.sum.empty() && args.sum.dtype == Dtype::kF32;
      if (wide_sum) return run_forward<T, T, float>(stream, args);
    }
    run_forward<T, T, T>(stream, args);
  });
  if (args.amax != nullptr) raise_amax(stream, args.y, args.amax);
}
void backward(const Stream& stream, const NormBackwardArgs& args) {
  visit_float(args.dy.dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) == 2) {
      if (args.s.dtype == Dtype::kF32) return run_backward<T, float>(stream, args);
    }
    run_backward<T, T>(stream, args);
  });
  if (args.amax != nullptr) raise_amax(stream, args.dx, args.amax);
}
void head_forward(const Stream& stream, const HeadNormForwardArgs& args) {
  visit_float(args.x.dtype, [&](auto zero) { run_head_forward<decltype(zero)>(stream, args); });
}
void head_backward(const Stream& stream, const HeadNormBackwardArgs& args) {
  visit_float(args.x.dtype, [&](auto zero) { run_head_backward<decltype(zero)>(stream, args); });
}

}  // namespace

NormKernels kernel_table(Family<NormKernels>) {
  return {.forward = forward,
          .backward = backward,
          .head_forward = head_forward,
          .head_backward = head_backward,
          .width_sums = width_sums,
          .width_forward = width_forward,
          .width_backward = width_backward};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
