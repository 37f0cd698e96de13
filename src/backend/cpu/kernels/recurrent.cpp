// Depthwise causal convolution and the gated RMSNorm of recurrent mixers.
#include "kernels/recurrent.h"

#include <cmath>
#include <cstring>

#include "backend/cpu/kernels/lanes.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// Channels of a piece.
constexpr std::int64_t kChannels = 64;
// Tokens or rows whose sum is in the accumulate type before it joins the total in double.
constexpr std::int64_t kSumRows = 64;

template <class A>
BEV_INLINE A sigmoid(A x) {
  return 1 / (1 + exp_of(-x));
}

// dout[begin + i] = beta * old + sums[i]
void store_sums(const double* sums, std::int64_t count, double beta, const View& out,
                std::int64_t begin, std::int64_t stride = 1) {
  visit_float(out.dtype, [&](auto zero) {
    using Y = decltype(zero);
    Y* to = out.as<Y>();
    for (std::int64_t i = 0; i < count; ++i) {
      Y& at = to[(begin + i) * stride];
      const double old = beta != 0 ? beta * static_cast<double>(widen(at)) : 0;
      at = narrow<Y>(static_cast<accumulate_t<Y>>(old + sums[i]));
    }
  });
}

// The channels [begin, begin + count) of a convolution: weights by tap, and the last W tokens in a
// ring, oldest first after shift().
template <class T>
struct ConvPiece {
  using A = accumulate_t<T>;
  std::int64_t begin, count, channels, width;
  A weight[kConvWidthLimit][kChannels] = {};
  A bias[kChannels] = {};
  A window[kConvWidthLimit][kChannels] = {};

  template <class Args>
  ConvPiece(const Args& args, std::int64_t piece)
      : begin(piece * kChannels),
        count(std::min(kChannels, args.x.shape[1] - begin)),
        channels(args.x.shape[1]),
        width(args.weight.numel() / channels) {
    const T* from = args.weight.template as<T>() + begin * width;
    for (std::int64_t c = 0; c < count; ++c) {
      for (std::int64_t j = 0; j < width; ++j) weight[j][c] = widen(from[c * width + j]);
    }
    if (args.bias.empty()) return;
    const T* biases = args.bias.template as<T>() + begin;
    for (std::int64_t c = 0; c < count; ++c) bias[c] = widen(biases[c]);
  }

  // Begins a run: the window is what comes before it, and one free place for the next token.
  void enter(const StateRows& states, std::int64_t row) {
    std::memset(window, 0, sizeof window);
    if (row < 0 || states.rows.empty()) return;
    const A* from = state(states, row);
    for (std::int64_t j = 1; j < width; ++j) {
      std::memcpy(window[j], from + (j - 1) * channels,
                  sizeof(A) * static_cast<std::size_t>(count));
    }
  }
  void leave(const StateRows& states, std::int64_t row) const {
    if (row < 0 || states.rows.empty()) return;
    A* to = state(states, row);
    for (std::int64_t j = 1; j < width; ++j) {
      std::memcpy(to + (j - 1) * channels, window[j], sizeof(A) * static_cast<std::size_t>(count));
    }
  }
  A* state(const StateRows& states, std::int64_t row) const {
    return states.rows.as<A>() + row * states.rows.shape.row_numel() + states.first + begin;
  }
  void push(const T* x) {
    std::memmove(window[0], window[1], sizeof window[0] * static_cast<std::size_t>(width - 1));
    for (std::int64_t c = 0; c < count; ++c) window[width - 1][c] = widen(x[c]);
  }
  // Before the activation.
  void convolve(A* sums) const {
    for (std::int64_t c = 0; c < kChannels; ++c) sums[c] = bias[c];
    for (std::int64_t j = 0; j < width; ++j) {
      for (std::int64_t c = 0; c < kChannels; ++c) sums[c] += weight[j][c] * window[j][c];
    }
  }
};

template <class T>
void run_conv_forward(const Stream& stream, const CausalConvForwardArgs& args) {
  using A = accumulate_t<T>;
  const std::int64_t channels = args.x.shape[1], pieces = ceil_div(channels, kChannels);
  const auto runs = static_cast<std::int64_t>(args.shape.runs.size());
  for_ranges(stream, pieces * runs, 1, [&](std::int64_t index, std::int64_t) {
    const RecurrentRun& run = args.shape.runs[static_cast<std::size_t>(index / pieces)];
    ConvPiece<T> piece(args, index % pieces);
    piece.enter(args.shape.entering, run.enter);
    const T* x = args.x.as<T>() + run.row * channels + piece.begin;
    T* y = args.y.as<T>() + run.row * channels + piece.begin;
    for (std::int64_t t = 0; t < run.count; ++t, x += channels, y += channels) {
      A sums[kChannels];
      piece.push(x);
      piece.convolve(sums);
      if (args.shape.silu) {
        for (std::int64_t c = 0; c < kChannels; ++c) sums[c] *= sigmoid(sums[c]);
      }
      for (std::int64_t c = 0; c < piece.count; ++c) y[c] = narrow<T>(sums[c]);
    }
    piece.leave(args.leaving, run.leave);
  });
}

// The backward of one piece. The gradient of a token is complete when W later outputs were seen.
template <class T>
class ConvGradient {
 public:
  using A = accumulate_t<T>;
  ConvGradient(const CausalConvBackwardArgs& args, std::int64_t index)
      : args_(args), piece_(args, index) {}

  void pass(const RecurrentRun& run) {
    const std::int64_t channels = piece_.channels, width = piece_.width;
    piece_.enter(args_.shape.entering, run.enter);
    std::memset(after_, 0, sizeof after_);
    const std::int64_t at = run.row * channels + piece_.begin;
    const T *x = args_.x.as<T>() + at, *dy = args_.dy.as<T>() + at;
    for (std::int64_t t = 0; t < run.count + width - 1; ++t) {
      A d[kChannels] = {};
      if (t < run.count) {
        piece_.push(x + t * channels);
        output_gradient(dy + t * channels, d);
        add_weight_gradient(d);
      }
      std::memmove(after_[0], after_[1], sizeof after_[0] * static_cast<std::size_t>(width - 1));
      std::memcpy(after_[width - 1], d, sizeof d);
      emit(run, t - width + 1);
    }
    flush();
  }

  void store() {
    const std::int64_t width = piece_.width;
    for (std::int64_t j = 0; j < width && !args_.dweight.empty(); ++j) {
      View taps = args_.dweight;
      taps.data = taps.address(j);
      store_sums(weight_total_[j], piece_.count, args_.weight_beta, taps, piece_.begin, width);
    }
    if (args_.dbias.empty()) return;
    store_sums(bias_total_, piece_.count, args_.bias_beta, args_.dbias, piece_.begin);
  }

 private:
  void output_gradient(const T* dy, A* d) const {
    for (std::int64_t c = 0; c < piece_.count; ++c) d[c] = widen(dy[c]);
    if (!args_.shape.silu) return;
    A sums[kChannels];
    piece_.convolve(sums);
    for (std::int64_t c = 0; c < kChannels; ++c) {
      const A s = sigmoid(sums[c]);
      d[c] *= s * (1 + sums[c] * (1 - s));
    }
  }
  void add_weight_gradient(const A* d) {
    for (std::int64_t j = 0; j < piece_.width; ++j) {
      for (std::int64_t c = 0; c < kChannels; ++c) weight_[j][c] += d[c] * piece_.window[j][c];
    }
    for (std::int64_t c = 0; c < kChannels; ++c) bias_[c] += d[c];
    if (++summed_ == kSumRows) flush();
  }
  void flush() {
    summed_ = 0;
    for (std::int64_t j = 0; j < piece_.width; ++j) {
      for (std::int64_t c = 0; c < kChannels; ++c) {
        weight_total_[j][c] += static_cast<double>(weight_[j][c]);
        weight_[j][c] = 0;
      }
    }
    for (std::int64_t c = 0; c < kChannels; ++c) {
      bias_total_[c] += static_cast<double>(bias_[c]);
      bias_[c] = 0;
    }
  }
  // The gradient of token t of the run; those before 0 are of its entering state.
  void emit(const RecurrentRun& run, std::int64_t t) {
    const std::int64_t width = piece_.width, before = t + width - 1;
    if (t < 0 && (run.enter < 0 || args_.dentering.rows.empty())) return;
    A sums[kChannels] = {};
    for (std::int64_t j = 0; j < width; ++j) {
      for (std::int64_t c = 0; c < kChannels; ++c) {
        sums[c] += piece_.weight[width - 1 - j][c] * after_[j][c];
      }
    }
    if (t < 0) {
      A* to = piece_.state(args_.dentering, run.enter) + before * piece_.channels;
      for (std::int64_t c = 0; c < piece_.count; ++c) to[c] = sums[c];
      return;
    }
    T* dx = args_.dx.as<T>() + (run.row + t) * piece_.channels + piece_.begin;
    for (std::int64_t c = 0; c < piece_.count; ++c) dx[c] = narrow<T>(sums[c]);
  }

  const CausalConvBackwardArgs& args_;
  ConvPiece<T> piece_;
  A after_[kConvWidthLimit][kChannels] = {};  // gradients of the last W outputs
  A weight_[kConvWidthLimit][kChannels] = {}, bias_[kChannels] = {};
  double weight_total_[kConvWidthLimit][kChannels] = {}, bias_total_[kChannels] = {};
  std::int64_t summed_ = 0;
};

template <class T>
void run_conv_backward(const Stream& stream, const CausalConvBackwardArgs& args) {
  for_ranges(stream, ceil_div(args.x.shape[1], kChannels), 1,
             [&](std::int64_t index, std::int64_t) {
               ConvGradient<T> gradient(args, index);
               for (const RecurrentRun& run : args.shape.runs) gradient.pass(run);
               gradient.store();
             });
}

template <class Args>
void check_conv(const Args& args) {
  const std::int64_t channels = args.x.shape[1];
  const std::int64_t width = channels > 0 ? args.weight.numel() / channels : 0;
  BEV_CHECK(width >= 1 && width <= kConvWidthLimit && width * channels == args.weight.numel(),
            "causal convolution: weight ", args.weight.shape, " for ", channels,
            " channels; a channel has 1 to ", kConvWidthLimit, " taps");
}

void conv_forward(const Stream& stream, const CausalConvForwardArgs& args) {
  check_conv(args);
  visit_float(args.x.dtype, [&](auto zero) { run_conv_forward<decltype(zero)>(stream, args); });
}
void conv_backward(const Stream& stream, const CausalConvBackwardArgs& args) {
  check_conv(args);
  visit_float(args.x.dtype, [&](auto zero) { run_conv_backward<decltype(zero)>(stream, args); });
}

// A gated norm of rows of C columns.
template <class T>
struct GatedRows {
  using A = accumulate_t<T>;
  const GatedNormShape& shape;
  std::int64_t columns;
  const T *x, *z, *weight;  // weight null: none
  std::int64_t weights;

  GatedRows(const GatedNormShape& of, const View& x_view, const View& z_view, const View& w)
      : shape(of),
        columns(x_view.shape.row_numel()),
        x(x_view.as<T>()),
        z(z_view.as<T>()),
        weight(w.empty() ? nullptr : w.as<T>()),
        weights(w.empty() ? 1 : w.numel()) {}

  bool norms() const { return shape.group_width > 0; }
  A gate(std::int64_t at) const {
    const A v = widen(z[at]);
    return v * sigmoid(v);
  }
  A gate_slope(std::int64_t at) const {
    const A v = widen(z[at]), s = sigmoid(v);
    return s * (1 + v * (1 - s));
  }
  // What the norm reads.
  A input(std::int64_t at) const {
    return shape.gate_first ? widen(x[at]) * gate(at) : widen(x[at]);
  }
  A scale(std::int64_t column) const {
    return static_cast<A>(shape.offset) + widen(weight[column % weights]);
  }
  // What the norm's result is multiplied by.
  A factor(std::int64_t at, std::int64_t column) const {
    return shape.gate_first ? scale(column) : scale(column) * gate(at);
  }
  A rstd(A squares) const {
    const A mean = squares / static_cast<A>(shape.group_width);
    return 1 / std::sqrt(mean + static_cast<A>(shape.epsilon));
  }
  // Calls body(group, begin, end) for the columns of each group.
  template <class Body>
  void for_groups(const Body& body) const {
    for (std::int64_t begin = 0; begin < columns;) {
      const std::int64_t group = (shape.first_column + begin) / shape.group_width;
      const std::int64_t end =
          std::min(columns, (group + 1) * shape.group_width - shape.first_column);
      body(group, begin, end);
      begin = end;
    }
  }
};

template <class T>
void run_norm_sums(const Stream& stream, const GatedNormSumsArgs& args) {
  using A = accumulate_t<T>;
  const GatedRows<T> rows(args.shape, args.x, args.z, args.weight);
  const std::int64_t groups = args.sums.shape.row_numel();
  const T* dy = args.dy.empty() ? nullptr : args.dy.as<T>();
  A* sums = args.sums.as<A>();
  for_ranges(stream, args.x.shape[0], rows_per_piece(rows.columns),
             [&](std::int64_t first, std::int64_t last) {
               std::fill(sums + first * groups, sums + last * groups, A(0));
               for (std::int64_t row = first; row < last; ++row) {
                 const std::int64_t at = row * rows.columns;
                 rows.for_groups([&](std::int64_t group, std::int64_t begin, std::int64_t end) {
                   sums[row * groups + group] = sum_of<A>(end - begin, [&](std::int64_t i) {
                     const std::int64_t column = begin + i;
                     const A v = rows.input(at + column);
                     if (dy == nullptr) return v * v;
                     return widen(dy[at + column]) * rows.factor(at + column, column) * v;
                   });
                 });
               }
             });
}

template <class T>
void run_norm_forward(const Stream& stream, const GatedNormForwardArgs& args) {
  using A = accumulate_t<T>;
  const GatedRows<T> rows(args.shape, args.x, args.z, args.weight);
  T* y = args.y.as<T>();
  const std::int64_t groups = rows.norms() ? args.squares.shape.row_numel() : 0;
  const A* squares = rows.norms() ? args.squares.as<A>() : nullptr;
  for_ranges(stream, args.x.shape[0], rows_per_piece(rows.columns),
             [&](std::int64_t first, std::int64_t last) {
               for (std::int64_t row = first; row < last; ++row) {
                 const std::int64_t at = row * rows.columns;
                 if (!rows.norms()) {
                   for (std::int64_t i = 0; i < rows.columns; ++i) {
                     y[at + i] = narrow<T>(widen(rows.x[at + i]) * rows.gate(at + i));
                   }
                   continue;
                 }
                 rows.for_groups([&](std::int64_t group, std::int64_t begin, std::int64_t end) {
                   const A rstd = rows.rstd(squares[row * groups + group]);
                   for (std::int64_t i = begin; i < end; ++i) {
                     y[at + i] = narrow<T>(rows.input(at + i) * rstd * rows.factor(at + i, i));
                   }
                 });
               }
             });
}

// Gradients of one element: of the norm's input v, then of x and z.
template <class T>
struct ElementGradient {
  using A = accumulate_t<T>;
  A dx, dz;
};

template <class T>
BEV_INLINE ElementGradient<T> norm_element(const GatedRows<T>& rows, std::int64_t at,
                                           std::int64_t column, accumulate_t<T> dy,
                                           accumulate_t<T> rstd, accumulate_t<T> along) {
  using A = accumulate_t<T>;
  const A v = rows.input(at);
  const A dv = rstd * (dy * rows.factor(at, column) - v * along);
  if (rows.shape.gate_first) {
    return {dv * rows.gate(at), dv * widen(rows.x[at]) * rows.gate_slope(at)};
  }
  return {dv, dy * rows.scale(column) * v * rstd * rows.gate_slope(at)};
}

template <class T>
void norm_input_gradients(const Stream& stream, const GatedNormBackwardArgs& args,
                          const GatedRows<T>& rows) {
  using A = accumulate_t<T>;
  const T* dy = args.dy.as<T>();
  T *dx = args.dx.as<T>(), *dz = args.dz.as<T>();
  const std::int64_t groups = args.squares.shape.row_numel();
  const A *squares = args.squares.as<A>(), *products = args.products.as<A>();
  for_ranges(stream, args.x.shape[0], rows_per_piece(rows.columns),
             [&](std::int64_t first, std::int64_t last) {
               for (std::int64_t row = first; row < last; ++row) {
                 const std::int64_t at = row * rows.columns;
                 rows.for_groups([&](std::int64_t group, std::int64_t begin, std::int64_t end) {
                   const A rstd = rows.rstd(squares[row * groups + group]);
                   const A along = rstd * rstd * products[row * groups + group] /
                                   static_cast<A>(args.shape.group_width);
                   for (std::int64_t i = begin; i < end; ++i) {
                     const auto d =
                         norm_element<T>(rows, at + i, i, widen(dy[at + i]), rstd, along);
                     dx[at + i] = narrow<T>(d.dx);
                     dz[at + i] = narrow<T>(d.dz);
                   }
                 });
               }
             });
}

// Only the gate.
template <class T>
void gate_gradients(const Stream& stream, const GatedNormBackwardArgs& args,
                    const GatedRows<T>& rows) {
  using A = accumulate_t<T>;
  const T* dy = args.dy.as<T>();
  T *dx = args.dx.as<T>(), *dz = args.dz.as<T>();
  for_ranges(stream, args.x.numel(), kFlatPiece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const A d = widen(dy[i]);
      const A to_x = d * rows.gate(i), to_z = d * widen(rows.x[i]) * rows.gate_slope(i);
      dx[i] = narrow<T>(to_x);
      dz[i] = narrow<T>(to_z);
    }
  });
}

// A piece owns some weights and sums over all rows, and over all columns that share the weight.
template <class T>
void norm_weight_gradient(const Stream& stream, const GatedNormBackwardArgs& args,
                          const GatedRows<T>& rows) {
  using A = accumulate_t<T>;
  const T* dy = args.dy.as<T>();
  const std::int64_t groups = args.squares.shape.row_numel(), count = args.x.shape[0];
  const A* squares = args.squares.as<A>();
  for_ranges(stream, rows.weights, kChannels, [&](std::int64_t begin, std::int64_t end) {
    double total[kChannels] = {};
    for (std::int64_t first = 0; first < count; first += kSumRows) {
      A sums[kChannels] = {};
      for (std::int64_t row = first; row < std::min(count, first + kSumRows); ++row) {
        for (std::int64_t from = begin; from < rows.columns; from += rows.weights) {
          for (std::int64_t i = 0; i < end - begin && from + i < rows.columns; ++i) {
            const std::int64_t column = from + i, at = row * rows.columns + column;
            const std::int64_t group = (args.shape.first_column + column) / args.shape.group_width;
            const A unit = rows.input(at) * rows.rstd(squares[row * groups + group]);
            const A gate = args.shape.gate_first ? A(1) : rows.gate(at);
            sums[i] += widen(dy[at]) * unit * gate;
          }
        }
      }
      for (std::int64_t i = 0; i < end - begin; ++i) total[i] += static_cast<double>(sums[i]);
    }
    store_sums(total, end - begin, args.beta, args.dweight, begin);
  });
}

// The weight's gradient first: dx or dz may be the memory of dy.
template <class T>
void run_norm_backward(const Stream& stream, const GatedNormBackwardArgs& args) {
  const GatedRows<T> rows(args.shape, args.x, args.z, args.weight);
  if (!rows.norms()) return gate_gradients<T>(stream, args, rows);
  if (!args.dweight.empty()) norm_weight_gradient<T>(stream, args, rows);
  norm_input_gradients<T>(stream, args, rows);
}

void norm_sums(const Stream& stream, const GatedNormSumsArgs& args) {
  visit_float(args.x.dtype, [&](auto zero) { run_norm_sums<decltype(zero)>(stream, args); });
}
void norm_forward(const Stream& stream, const GatedNormForwardArgs& args) {
  visit_float(args.x.dtype, [&](auto zero) { run_norm_forward<decltype(zero)>(stream, args); });
}
void norm_backward(const Stream& stream, const GatedNormBackwardArgs& args) {
  visit_float(args.x.dtype, [&](auto zero) { run_norm_backward<decltype(zero)>(stream, args); });
}

}  // namespace

RecurrentKernels kernel_table(Family<RecurrentKernels>) {
  return {.conv_forward = conv_forward,
          .conv_backward = conv_backward,
          .norm_sums = norm_sums,
          .norm_forward = norm_forward,
          .norm_backward = norm_backward};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
