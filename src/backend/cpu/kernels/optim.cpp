// Adam, AdamW, SGD and sign updates with master weights, gradient norm and clipping, and
// initialisation.
#include "kernels/optim.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "backend/cpu/kernels/lanes.h"
#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tables.h"
#include "backend/cpu/normal.h"
#include "base/error.h"
#include "base/philox.h"
#include "tensor/moment8.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
// Writes the copy of the model for range [begin, end) of main.
template <class M>
void write_values(const M* main, const View& values, std::int64_t begin, std::int64_t end) {
  if (values.empty() || values.data == main) return;
  visit_float(values.dtype, [&](auto type) {
    using T = decltype(type);
    T* to = static_cast<T*>(values.data);
    for (std::int64_t i = begin; i < end; ++i) {
      to[i] = narrow<T>(static_cast<accumulate_t<T>>(main[i]));
    }
  });
}

// Calls body(M{}, G{}) with the types of main and of the gradient.
template <class Body>
void visit_main(const char* op, const View& main, const View& grad, const Body& body) {
  const auto with_main = [&](auto main_type) {
    using M = decltype(main_type);
    if (grad.dtype == Dtype::kF64) return body(M{}, double{});
    if (grad.dtype == Dtype::kF32) return body(M{}, float{});
    BEV_CHECK(grad.dtype == Dtype::kBf16, ErrorKind::kInternal, op,
              ": a gradient of f32, bf16 or f64 is needed, got ", name_of(grad.dtype));
    body(M{}, Bf16{});
  };
  if (main.dtype == Dtype::kF64) return with_main(double{});
  BEV_CHECK(main.dtype == Dtype::kF32, ErrorKind::kInternal, op, ": f32 or f64 is needed, got ",
            name_of(main.dtype));
  with_main(float{});
}

void check_sizes(const char* op, const View& main, const View& grad, const View& values) {
  BEV_CHECK(main.numel() == grad.numel() && (values.empty() || values.numel() == main.numel()), op,
            ": main ", main.shape, ", grad ", grad.shape, ", values ", values.shape);
  if (!is_float(values.dtype)) fail_not_float(values.dtype);
}

// Coefficients of a step: main = keep main - step m / (sqrt(v) root + epsilon).
template <class M>
struct AdamFactors {
  M multiplier, decay, beta1, rest1, beta2, rest2, keep, step, root, epsilon;
};

template <class M>
AdamFactors<M> adam_factors(const AdamRule& rule, const AdamRange& range) {
  const StepState& state = *rule.state;
  const double update = static_cast<double>(state.update - range.updates_before);
  const double lr = state.lr.values[range.lr_index] * range.lr_mult;
  const double decay = state.weight_decay * range.wd_mult;
  return {.multiplier = static_cast<M>(state.grad_multiplier),
          .decay = static_cast<M>(rule.decoupled ? 0 : decay),
          .beta1 = static_cast<M>(rule.beta1),
          .rest1 = static_cast<M>(1 - rule.beta1),
          .beta2 = static_cast<M>(rule.beta2),
          .rest2 = static_cast<M>(1 - rule.beta2),
          .keep = static_cast<M>(rule.decoupled ? 1 - lr * decay : 1),
          .step = static_cast<M>(lr / (1 - std::pow(rule.beta1, update))),
          .root = static_cast<M>(1 / std::sqrt(1 - std::pow(rule.beta2, update))),
          .epsilon = static_cast<M>(rule.epsilon * range.eps_mult)};
}

template <class M, class G>
void adam_range(M* __restrict main, const G* __restrict grad, M* __restrict m, M* __restrict v,
                std::int64_t count, const AdamFactors<M>& factors) {
  const AdamFactors<M> f = factors;
  for (std::int64_t i = 0; i < count; ++i) {
    const M g = static_cast<M>(widen(grad[i])) * f.multiplier + f.decay * main[i];
    m[i] = f.beta1 * m[i] + f.rest1 * g;
    v[i] = f.beta2 * v[i] + f.rest2 * g * g;
    main[i] = f.keep * main[i] - f.step * m[i] / (std::sqrt(v[i]) * f.root + f.epsilon);
  }
}

// Stochastic rounding to bf16: rounds up in magnitude with the probability of the truncated
// fraction.
BEV_INLINE float round_stochastic(float x, std::uint32_t noise) {
  const auto word = std::bit_cast<std::uint32_t>(x);
  const bool finite = (word & 0x7f800000u) != 0x7f800000u;
  return finite ? std::bit_cast<float>((word + noise) & 0xffff0000u) : x;
}

void load_run(const View& from, std::int64_t begin, std::int64_t count, float* to) {
  visit_float(from.dtype, [&](auto type) {
    const auto* data = from.as<decltype(type)>() + begin;
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(widen(data[i]));
  });
}
void store_run(const float* from, std::int64_t begin, std::int64_t count, const View& to) {
  visit_float(to.dtype, [&](auto type) {
    using T = decltype(type);
    T* data = to.as<T>() + begin;
    for (std::int64_t i = 0; i < count; ++i) data[i] = narrow<T>(from[i]);
  });
}

constexpr std::int64_t kRun = 2 * kMomentBlock;

void load_moment(MomentFormat format, const View& from, const View& scales, std::int64_t begin,
                 std::int64_t count, float* to) {
  if (from.dtype != Dtype::kU8) return load_run(from, begin, count, to);
  unpack_moments(format, from.as<std::uint8_t>() + begin,
                 scales.as<std::uint8_t>() + begin / kMomentBlock, count, to);
}
void store_moment(MomentFormat format, const float* from, const std::uint32_t* noise,
                  std::int64_t begin, std::int64_t count, const View& to, const View& scales) {
  if (to.dtype != Dtype::kU8) return store_run(from, begin, count, to);
  pack_moments(format, from, noise, count, to.as<std::uint8_t>() + begin,
               scales.as<std::uint8_t>() + begin / kMomentBlock);
}

// Random words of `count` elements starting at `first`.
void draw_noise(std::uint64_t key, std::int64_t first, std::int64_t count, std::uint32_t* noise) {
  PhiloxCounter words{};
  for (std::int64_t i = 0; i < count; ++i) {
    const auto element = static_cast<std::uint64_t>(first + i), block = element / 4;
    if (i == 0 || element % 4 == 0) {
      words = philox(
          {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0}, key);
    }
    noise[i] = words[element % 4];
  }
}

// bf16 and 8-bit state is widened to f32 and updated in runs of whole moment blocks.
void adam_in_runs(const AdamRule& rule, const AdamRange& range, std::int64_t begin,
                  std::int64_t end) {
  constexpr MomentFormat kSigned = MomentFormat::kSigned, kPositive = MomentFormat::kPositive;
  const AdamFactors<float> factors = adam_factors<float>(rule, range);
  const std::uint64_t key = mix_bits(rule.state->random_key, range.random_stream);
  const bool round_main = range.main.dtype == Dtype::kBf16, round_v = range.v.dtype == Dtype::kBf16;
  for (std::int64_t at = begin; at < end; at += kRun) {
    const std::int64_t count = std::min(kRun, end - at);
    float main[kRun], grad[kRun], m[kRun], v[kRun];
    std::uint32_t noise[kRun], m_noise[kRun], v_noise[kRun];
    load_run(range.main, at, count, main);
    load_run(range.grad, at, count, grad);
    load_moment(kSigned, range.m, range.m_scales, at, count, m);
    load_moment(kPositive, range.v, range.v_scales, at, count, v);
    adam_range<float, float>(main, grad, m, v, count, factors);
    draw_noise(key, range.first + at, count, noise);
    for (std::int64_t i = 0; i < count; ++i) {
      m_noise[i] = (noise[i] * kMomentNoise) >> 16;
      v_noise[i] = noise[i] >> 16;
      if (round_main) main[i] = round_stochastic(main[i], noise[i] & 0xffffu);
      if (round_v) v[i] = round_stochastic(v[i], v_noise[i]);
    }
    store_run(main, at, count, range.main);
    store_moment(kSigned, m, m_noise, at, count, range.m, range.m_scales);
    store_moment(kPositive, v, v_noise, at, count, range.v, range.v_scales);
    if (!range.values.empty() && range.values.data != range.main.data) {
      store_run(main, at, count, range.values);
    }
  }
}

bool is_narrow(const View& view) { return view.dtype == Dtype::kBf16 || view.dtype == Dtype::kU8; }

void check_moment(const char* name, const View& moment, const View& scales, const View& main) {
  const bool packed = moment.dtype == Dtype::kU8;
  BEV_CHECK(
      moment.numel() == main.numel() && (!packed || scales.numel() == moment_blocks(main.numel())),
      "adam: ", name, " ", moment.shape, " with scales ", scales.shape, ", main ", main.shape);
}

void adam_one(const Stream& stream, const AdamRule& rule, const AdamRange& range) {
  check_sizes("adam", range.main, range.grad, range.values);
  check_moment("m", range.m, range.m_scales, range.main);
  check_moment("v", range.v, range.v_scales, range.main);
  if (is_narrow(range.main) || is_narrow(range.m) || is_narrow(range.v)) {
    for (const View* view : {&range.main, &range.grad, &range.m, &range.v}) {
      BEV_CHECK(is_narrow(*view) || view->dtype == Dtype::kF32, ErrorKind::kInternal,
                "adam: supported dtypes are bf16, 8 bits and f32, got ", name_of(view->dtype));
    }
    static_assert(kFlatPiece % kRun == 0);
    return for_ranges(
        stream, range.main.numel(), kFlatPiece,
        [&](std::int64_t begin, std::int64_t end) { adam_in_runs(rule, range, begin, end); });
  }
  visit_main("adam", range.main, range.grad, [&](auto main_type, auto grad_type) {
    using M = decltype(main_type);
    using G = decltype(grad_type);
    M *main = range.main.as<M>(), *m = range.m.as<M>(), *v = range.v.as<M>();
    const G* grad = range.grad.as<G>();
    const AdamFactors<M> factors = adam_factors<M>(rule, range);
    for_ranges(stream, range.main.numel(), kFlatPiece, [&](std::int64_t begin, std::int64_t end) {
      adam_range<M, G>(main + begin, grad + begin, m + begin, v + begin, end - begin, factors);
      write_values(main, range.values, begin, end);
    });
  });
}

void adam(const Stream& stream, const AdamRule& rule, std::span<const AdamRange> ranges) {
  if (rule.state->skip != 0) return;
  for (const AdamRange& range : ranges) adam_one(stream, rule, range);
}

template <class M, class G>
void sgd_range(M* __restrict main, const G* __restrict grad, M* __restrict m, std::int64_t count,
               const SgdArgs& args) {
  const StepState& state = *args.state;
  const M multiplier = static_cast<M>(state.grad_multiplier);
  const M decay = static_cast<M>(state.weight_decay * args.wd_mult);
  const M lr = static_cast<M>(state.lr.values[args.lr_index] * args.lr_mult);
  const M momentum = static_cast<M>(args.momentum);
  if (m == nullptr) {
    for (std::int64_t i = 0; i < count; ++i) {
      main[i] -= lr * (static_cast<M>(widen(grad[i])) * multiplier + decay * main[i]);
    }
    return;
  }
  const bool first = state.update <= 1;
  for (std::int64_t i = 0; i < count; ++i) {
    const M g = static_cast<M>(widen(grad[i])) * multiplier + decay * main[i];
    m[i] = first ? g : momentum * m[i] + g;
    main[i] -= lr * m[i];
  }
}

void sgd(const Stream& stream, const SgdArgs& args) {
  check_sizes("sgd", args.main, args.grad, args.values);
  BEV_CHECK(args.m.empty() || args.m.numel() == args.main.numel(), "sgd: m ", args.m.shape,
            ", main ", args.main.shape);
  if (args.state->skip != 0) return;
  visit_main("sgd", args.main, args.grad, [&](auto main_type, auto grad_type) {
    using M = decltype(main_type);
    using G = decltype(grad_type);
    M *main = args.main.as<M>(), *m = args.m.empty() ? nullptr : args.m.as<M>();
    const G* grad = args.grad.as<G>();
    for_ranges(stream, args.main.numel(), kFlatPiece, [&](std::int64_t begin, std::int64_t end) {
      sgd_range<M, G>(main + begin, grad + begin, m == nullptr ? nullptr : m + begin, end - begin,
                      args);
      write_values(main, args.values, begin, end);
    });
  });
}

template <class M, class G>
void lion_range(M* __restrict main, const G* __restrict grad, M* __restrict m, std::int64_t count,
                const LionArgs& args) {
  const StepState& state = *args.state;
  const double lr = state.lr.values[args.lr_index] * args.lr_mult;
  const M multiplier = static_cast<M>(state.grad_multiplier);
  const M keep = static_cast<M>(1 - lr * state.weight_decay * args.wd_mult);
  const M rate = static_cast<M>(lr);
  const M rest1 = static_cast<M>(1 - args.beta1), rest2 = static_cast<M>(1 - args.beta2);
  for (std::int64_t i = 0; i < count; ++i) {
    const M g = static_cast<M>(widen(grad[i])) * multiplier;
    const M mixed = m[i] + rest1 * (g - m[i]);
    main[i] = keep * main[i] - rate * static_cast<M>((mixed > 0) - (mixed < 0));
    m[i] += rest2 * (g - m[i]);
  }
}

void lion(const Stream& stream, const LionArgs& args) {
  check_sizes("lion", args.main, args.grad, args.values);
  BEV_CHECK(args.m.numel() == args.main.numel(), "lion: m ", args.m.shape, ", main ",
            args.main.shape);
  if (args.state->skip != 0) return;
  visit_main("lion", args.main, args.grad, [&](auto main_type, auto grad_type) {
    using M = decltype(main_type);
    using G = decltype(grad_type);
    M *main = args.main.as<M>(), *m = args.m.as<M>();
    const G* grad = args.grad.as<G>();
    for_ranges(stream, args.main.numel(), kFlatPiece, [&](std::int64_t begin, std::int64_t end) {
      lion_range<M, G>(main + begin, grad + begin, m + begin, end - begin, args);
      write_values(main, args.values, begin, end);
    });
  });
}

template <class M, class G, class T>
void direction_range(const DirectionArgs& args, std::int64_t begin, std::int64_t end) {
  const G* grad = args.grad.as<G>();
  M* m = args.m.empty() ? nullptr : args.m.as<M>();
  T* out = args.out.as<T>();
  const M multiplier = static_cast<M>(args.state->grad_multiplier);
  const M rest = static_cast<M>(1 - args.momentum), momentum = static_cast<M>(args.momentum);
  for (std::int64_t i = begin; i < end; ++i) {
    const M g = static_cast<M>(widen(grad[i])) * multiplier;
    M to = g;
    if (m != nullptr) {
      m[i] += rest * (g - m[i]);
      to = args.nesterov ? g + momentum * (m[i] - g) : m[i];
    }
    out[i] = narrow<T>(static_cast<accumulate_t<T>>(to));
  }
}

void direction(const Stream& stream, const DirectionArgs& args) {
  check_sizes("direction", args.out, args.grad, {});
  BEV_CHECK(args.m.empty() || args.m.numel() == args.grad.numel(), "direction: m ", args.m.shape,
            ", grad ", args.grad.shape);
  if (args.state->skip != 0) return;
  // Without m, numbers are computed in the dtype of the gradient.
  View main = args.m.empty() ? View{nullptr, wide_of(args.grad.dtype), args.grad.shape} : args.m;
  visit_main("direction", main, args.grad, [&](auto main_type, auto grad_type) {
    visit_float(args.out.dtype, [&](auto out_type) {
      for_ranges(stream, args.grad.numel(), kFlatPiece, [&](std::int64_t begin, std::int64_t end) {
        direction_range<decltype(main_type), decltype(grad_type), decltype(out_type)>(args, begin,
                                                                                      end);
      });
    });
  });
}

template <class M, class G>
void matrix_update_range(M* __restrict main, const G* __restrict update, std::int64_t count,
                         const MatrixUpdateArgs& args) {
  const double lr = args.state->lr.values[args.lr_index] * args.lr_mult;
  const M keep = static_cast<M>(1 - lr * args.state->weight_decay * args.wd_mult);
  const M rate = static_cast<M>(args.update_has_lr ? args.factor : lr * args.factor);
  for (std::int64_t i = 0; i < count; ++i) {
    main[i] = keep * main[i] - rate * static_cast<M>(widen(update[i]));
  }
}

void matrix_update(const Stream& stream, const MatrixUpdateArgs& args) {
  check_sizes("matrix update", args.main, args.update, args.values);
  if (args.state->skip != 0) return;
  visit_main("matrix update", args.main, args.update, [&](auto main_type, auto update_type) {
    using M = decltype(main_type);
    using G = decltype(update_type);
    M* main = args.main.as<M>();
    const G* update = args.update.as<G>();
    for_ranges(stream, args.main.numel(), kFlatPiece, [&](std::int64_t begin, std::int64_t end) {
      matrix_update_range<M, G>(main + begin, update + begin, end - begin, args);
      write_values(main, args.values, begin, end);
    });
  });
}

void inverse_norm(const Stream&, const double* square_sum, double least, const View& factor) {
  const double value = 1 / std::max(std::sqrt(*square_sum), least);
  visit_float(factor.dtype, [&](auto type) {
    using T = decltype(type);
    factor.as<T>()[0] = narrow<T>(static_cast<accumulate_t<T>>(value));
  });
}

// Sum of term(value) over all elements, in an order that depends only on the length.
template <class Term>
double sum_terms(const Stream& stream, const View& x, const Term& term) {
  constexpr std::int64_t kPiece = 4 * kFlatPiece;
  const std::int64_t pieces = ceil_div(x.numel(), kPiece);
  auto* sums = reinterpret_cast<double*>(
      stream.pool->scratch(static_cast<std::size_t>(pieces) * sizeof(double)));
  visit_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* data = x.as<T>();
    for_ranges(stream, x.numel(), kPiece, [&](std::int64_t begin, std::int64_t end) {
      sums[begin / kPiece] = sum_of<double>(
          end - begin, [&](std::int64_t i) { return term(double{widen(data[begin + i])}); });
    });
  });
  double total = 0;
  for (std::int64_t piece = 0; piece < pieces; ++piece) total += sums[piece];
  return total;
}

void sum_squares(const Stream& stream, std::span<const View> tensors, double* sum) {
  for (const View& x : tensors) {
    *sum += sum_terms(stream, x, [](double value) { return value * value; });
  }
}

void count_zeros(const Stream& stream, std::span<const View> tensors, double* count) {
  for (const View& x : tensors) {
    *count += sum_terms(stream, x, [](double value) { return value == 0 ? 1.0 : 0.0; });
  }
}

void clip(const Stream&, const ClipArgs& args) {
  StepState& state = *args.state;
  const double norm = std::sqrt(*args.square_sum) / state.loss_scale;
  const bool lost = args.lost_rows != nullptr && *args.lost_rows > 0;
  if (!std::isfinite(norm) || !std::isfinite(*args.loss) || lost) state.failed = 1;
  state.skip = state.failed;
  if (state.skip) return;
  ++state.update;
  const double factor = args.max_norm > 0 ? std::min(1.0, args.max_norm / (norm + 1e-6)) : 1.0;
  state.grad_multiplier = factor / state.loss_scale;
}

void normal(const Stream& stream, const NormalArgs& args) {
  BEV_CHECK(args.first >= 0, ErrorKind::kInternal, "normal: first element ", args.first);
  visit_float(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    T* x = args.x.as<T>();
    for_ranges(stream, args.x.numel(), kFlatPiece, [&](std::int64_t begin, std::int64_t end) {
      float numbers[kRun];
      for (std::int64_t i = begin; i < end; i += kRun) {
        const std::int64_t count = std::min(kRun, end - i);
        const auto range = args.uniform ? uniform_range : normal_range;
        range(args.key, args.first + i, count, args.mean, args.std, numbers);
        for (std::int64_t j = 0; j < count; ++j) x[i + j] = narrow<T>(numbers[j]);
      }
    });
  });
}
void sign(const Stream&, const SignArgs& args) {
  check_sizes("sign", args.main, args.grad, args.values);
  if (args.state->skip != 0) return;
  visit_float(args.main.dtype, [&](auto main_type) {
    using M = decltype(main_type);
    using A = accumulate_t<M>;
    visit_float(args.grad.dtype, [&](auto grad_type) {
      const auto* grad = args.grad.as<decltype(grad_type)>();
      M* main = args.main.as<M>();
      for (std::int64_t i = 0; i < args.main.numel(); ++i) {
        const auto g = widen(grad[i]);
        const A by = static_cast<A>(args.rate) * static_cast<A>((g > 0) - (g < 0));
        main[i] = narrow<M>(widen(main[i]) - by);
      }
    });
    visit_float(args.values.dtype, [&](auto type) {
      using T = decltype(type);
      if (args.values.data == args.main.data) return;
      for (std::int64_t i = 0; i < args.main.numel(); ++i) {
        args.values.as<T>()[i] =
            narrow<T>(static_cast<accumulate_t<T>>(widen(args.main.as<M>()[i])));
      }
    });
  });
}

// eta of the group of heads of a row, to the row's power.
double row_factor(const QkClipArgs& args, std::int64_t row) {
  const std::int64_t begin = args.groups[row] * args.group_heads;
  double largest = 0;
  visit_float(args.max_logits.dtype, [&](auto type) {
    const auto* logits = args.max_logits.as<decltype(type)>() + begin;
    for (std::int64_t h = 0; h < args.group_heads; ++h) {
      largest = std::max(largest, static_cast<double>(widen(logits[h])));
    }
  });
  return largest > args.threshold ? std::pow(args.threshold / largest, args.powers[row]) : 1;
}

void scale_range(const View& x, std::int64_t begin, std::int64_t end, double factor) {
  visit_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    T* at = x.as<T>();
    const auto by = static_cast<accumulate_t<T>>(factor);
    for (std::int64_t i = begin; i < end; ++i) at[i] = narrow<T>(by * widen(at[i]));
  });
}

void qk_clip(const Stream& stream, const QkClipArgs& args) {
  if (args.state->skip != 0) return;
  const std::int64_t count = args.main.numel(), first_row = args.first / args.columns;
  const std::int64_t rows = ceil_div(args.first + count, args.columns) - first_row;
  for_ranges(stream, rows, rows_per_piece(args.columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = first_row + begin; row < first_row + end; ++row) {
      if (args.groups[row] < 0) continue;
      const double factor = row_factor(args, row);
      if (factor == 1) continue;
      const std::int64_t from = std::max<std::int64_t>(0, row * args.columns - args.first);
      const std::int64_t to = std::min(count, (row + 1) * args.columns - args.first);
      scale_range(args.main, from, to, factor);
      if (args.values.empty() || args.values.data == args.main.data) continue;
      visit_float(args.main.dtype, [&](auto type) {
        write_values(args.main.as<decltype(type)>(), args.values, from, to);
      });
    }
  });
}

}  // namespace

OptimKernels kernel_table(Family<OptimKernels>) {
  return {.adam = adam,
          .sgd = sgd,
          .lion = lion,
          .direction = direction,
          .matrix_update = matrix_update,
          .inverse_norm = inverse_norm,
          .sign = sign,
          .sum_squares = sum_squares,
          .count_zeros = count_zeros,
          .clip = clip,
          .qk_clip = qk_clip,
          .normal = normal};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
