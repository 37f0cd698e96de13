// FP8 quantisation by squares of 128 x 128: each is handled by one thread and contains whole blocks
// of every scale type.
#include "kernels/quantize.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/kernels/amax.h"
#include "backend/cpu/kernels/fp4.h"
#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/nf4.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/scaled_gemm.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"
#include "kernels/activation.h"
#include "kernels/norm.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
constexpr std::int64_t kSide = kScaleBlock;

struct Scale {
  float scale = 1, inverse = 1;
};

Scale scale_of(float amax, Fp8Format format, int margin) {
  if (!std::isfinite(amax)) return {1, std::numeric_limits<float>::quiet_NaN()};
  if (amax == 0) return {};
  float scale = std::ldexp(largest_of(format) / amax, -margin);
  if (!std::isfinite(scale)) scale = std::numeric_limits<float>::max();
  return {scale, 1 / scale};
}

// Magnitudes of floats order like their bits. NaN counts as 0.
BEV_INLINE std::uint32_t size_bits(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
  return bits > 0x7f800000u ? 0 : bits;
}

void raise_to(float* largest, std::uint32_t bits) {
  std::atomic_ref<float> shared(*largest);
  const float value = std::bit_cast<float>(bits);
  float known = shared.load(std::memory_order_relaxed);
  while (value > known && !shared.compare_exchange_weak(known, value, std::memory_order_relaxed)) {
  }
}

template <class T>
std::uint32_t largest_bits(const T* x, std::int64_t count) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = size_bits(widen(x[i]));
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

template <class T>
void amax_typed(const Stream& stream, const View& x, float* amax) {
  const T* data = x.as<T>();
  for_ranges(stream, x.numel(), kFlatPiece, [=](std::int64_t begin, std::int64_t end) {
    raise_to(amax, largest_bits(data + begin, end - begin));
  });
}

// Calls f(T{}) for the dtypes that FP8 models have.
template <class F>
void visit_narrow(Dtype dtype, const F& f) {
  visit_float(dtype, [&](auto type) {
    if constexpr (std::is_same_v<decltype(type), double>) {
      BEV_FAIL(ErrorKind::kInternal, "quantize: of f64");
    } else {
      f(type);
    }
  });
}

void amax(const Stream& stream, const View& x, float* amax) {
  *amax = 0;
  raise_amax(stream, x, amax);
}

// Elements of a square, zero outside the matrix or the rows of the expert.
struct Square {
  std::int64_t row = 0, column = 0, rows = 0, columns = 0;
  std::int64_t turned = 0;  // column of its first row in the transpose
  float values[kSide][kSide];
};

// The row of x that row r is gathered from.
std::int64_t source_row(const QuantizeGroups& groups, std::int64_t r) {
  return groups.order == nullptr ? r : groups.order[r] / groups.topk;
}

template <class T>
void load(const QuantizeArgs& args, Square& square) {
  const std::int64_t columns = args.x.shape[1];
  for (std::int64_t i = 0; i < kSide; ++i) {
    const std::int64_t row = i < square.rows ? source_row(args.groups, square.row + i) : -1;
    const T* x = args.x.as<T>() + std::max<std::int64_t>(row, 0) * columns + square.column;
    for (std::int64_t j = 0; j < kSide; ++j) {
      square.values[i][j] = row >= 0 && j < square.columns ? widen(x[j]) : 0.0f;
    }
  }
}

template <Fp8Format kFormat>
BEV_INLINE std::uint8_t quantized(float x, float scale) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7fffffffu;
  const std::uint8_t rounded = to_fp8<kFormat>(x * scale);
  return bits >= 0x7f800000u ? kFp8Nan : rounded;
}

// Scales of the square's lines: one each, the same for all, or the given one of the tensor.
struct LineScales {
  Scale of[kSide];
};

LineScales line_scales(const QuantizeArgs& args, const Square& square, bool transposed) {
  std::uint32_t largest[kSide] = {}, most = 0;
  LineScales out;
  if (args.block == ScaleBlock::kTensor) {
    const Scale scale = scale_of(*args.amax, args.format, args.margin);
    for (Scale& line : out.of) line = scale;
    return out;
  }
  for (std::int64_t i = 0; i < kSide; ++i) {
    for (std::int64_t j = 0; j < kSide; ++j) {
      const std::uint32_t bits = size_bits(square.values[i][j]);
      std::uint32_t& line = largest[transposed ? j : i];
      line = bits > line ? bits : line;
      most = bits > most ? bits : most;
    }
  }
  for (std::int64_t i = 0; i < kSide; ++i) {
    const std::uint32_t bits = args.block == ScaleBlock::kSquare ? most : largest[i];
    out.of[i] = scale_of(std::bit_cast<float>(bits), args.format, args.margin);
  }
  return out;
}

// `line` and `run` are the position of the square's first element in the payload [lines, ..].
void write_scales(const View& scales, ScaleBlock block, const LineScales& from, std::int64_t line,
                  std::int64_t run, std::int64_t lines) {
  float* to = scales.as<float>();
  switch (block) {
    default:  // kTensor: already written
      return;
    case ScaleBlock::kRun:
      for (std::int64_t i = 0; i < std::min(kSide, lines - line); ++i) {
        to[run / kSide * scales.shape[1] + line + i] = from.of[i].inverse;
      }
      return;
    case ScaleBlock::kSquare:
      to[line / kSide * scales.shape[1] + run / kSide] = from.of[0].inverse;
      return;
  }
}

template <Fp8Format kFormat>
void write_rows(const QuantizeArgs& args, const Square& square) {
  const std::int64_t columns = args.rows.shape[1];
  const LineScales scales = line_scales(args, square, false);
  for (std::int64_t i = 0; i < square.rows; ++i) {
    std::uint8_t* to = args.rows.as<std::uint8_t>() + (square.row + i) * columns + square.column;
    const float scale = scales.of[i].scale;
#pragma GCC ivdep
    for (std::int64_t j = 0; j < square.columns; ++j) {
      to[j] = quantized<kFormat>(square.values[i][j], scale);
    }
  }
  write_scales(args.row_scales, args.block, scales, square.row, square.column,
               square.row + square.rows);
}

template <Fp8Format kFormat>
void write_columns(const QuantizeArgs& args, const Square& square) {
  const std::int64_t width = args.columns.shape[1];
  const std::int64_t count = std::min(kSide, width - square.turned);
  const LineScales scales = line_scales(args, square, true);
  for (std::int64_t j = 0; j < square.columns; ++j) {
    std::uint8_t* to =
        args.columns.as<std::uint8_t>() + (square.column + j) * width + square.turned;
    for (std::int64_t i = 0; i < count; ++i) {
      to[i] = quantized<kFormat>(square.values[i][j], scales.of[j].scale);
    }
  }
  write_scales(args.column_scales, args.block, scales, square.column, square.turned,
               args.x.shape[1]);
}

// Bands of at most 128 rows that share the runs of their columns.
struct Band {
  std::int64_t row, rows, turned;
};

void add_bands(std::int64_t begin, std::int64_t end, std::int64_t turned, std::vector<Band>& out) {
  for (std::int64_t row = begin; row < end; row += kSide) {
    out.push_back({row, std::min(kSide, end - row), turned + row - begin});
  }
}

std::vector<Band> bands_of(const QuantizeArgs& args) {
  std::vector<Band> out;
  const QuantizeGroups& groups = args.groups;
  if (!groups.used()) add_bands(0, args.x.shape[0], 0, out);
  for (std::int64_t e = 0; groups.used() && e < groups.experts; ++e) {
    const std::int64_t begin = groups.offsets[e];
    add_bands(begin, groups.offsets[e + 1], run_begin(begin, e), out);
  }
  return out;
}

template <class T, Fp8Format kFormat>
void quantize_typed(const Stream& stream, const QuantizeArgs& args) {
  const std::int64_t columns = args.x.shape[1], across = ceil_div(columns, kSide);
  const std::vector<Band> bands = bands_of(args);
  stream.pool->run(static_cast<std::int64_t>(bands.size()) * across, [&](std::int64_t piece) {
    const Band& band = bands[static_cast<std::size_t>(piece / across)];
    Square square;
    square.row = band.row;
    square.rows = band.rows;
    square.turned = band.turned;
    square.column = piece % across * kSide;
    square.columns = std::min(kSide, columns - square.column);
    load<T>(args, square);
    if (args.seen != nullptr)
      raise_to(args.seen, largest_bits(&square.values[0][0], kSide * kSide));
    if (!args.rows.empty()) write_rows<kFormat>(args, square);
    if (!args.columns.empty()) write_columns<kFormat>(args, square);
  });
}

void check_quantize(const QuantizeArgs& args) {
  const View& x = args.x;
  BEV_CHECK(x.shape.ndim() == 2, ErrorKind::kInternal, "quantize: ", x.shape);
  const std::int64_t rows = args.groups.rows_of(x), columns = x.shape[1];
  const bool whole = args.block == ScaleBlock::kTensor;
  BEV_CHECK(columns % 16 == 0 && (!whole || args.amax != nullptr) &&
                (!args.groups.used() || args.block == ScaleBlock::kRun),
            ErrorKind::kInternal, "quantize: ", x.shape);
  BEV_CHECK(args.rows.empty() || (args.rows.shape == Shape{rows, columns} &&
                                  args.row_scales.shape == scale_shape(args.block, rows, columns)),
            ErrorKind::kInternal, "quantize: ", x.shape, " to rows ", args.rows.shape);
  const std::int64_t padded = args.groups.padded_of(x, args.block);
  BEV_CHECK(args.columns.empty() ||
                (args.columns.shape == Shape{columns, padded} &&
                 args.column_scales.shape == scale_shape(args.block, columns, padded)),
            ErrorKind::kInternal, "quantize: ", x.shape, " to columns ", args.columns.shape);
}

// Materialises the op's output in `x`, which is good enough for an emulation.
void make(const Stream& stream, const QuantizeMaker& maker, const View& x) {
  if (maker.norm != nullptr) {
    NormForwardArgs args = *maker.norm;
    args.y = x;
    kernels().norm.forward(stream, args);
  } else if (maker.activation != nullptr) {
    ActivationForwardArgs args = *maker.activation;
    args.y = x;
    kernels().activation.forward(stream, args);
  } else {
    ActivationBackwardArgs args = *maker.activation_gradient;
    args.dx = x;
    kernels().activation.backward(stream, args);
  }
}

void quantize(const Stream& stream, const QuantizeArgs& args) {
  if (args.maker.used()) {
    QuantizeArgs made = args;
    made.x.data = stream.pool->scratch(args.x.bytes());
    made.maker = {};
    make(stream, args.maker, made.x);
    return quantize(stream, made);
  }
  if (is_emulated(args.block)) return emulate_fp4(stream, args);
  check_quantize(args);
  if (args.block == ScaleBlock::kTensor) {
    const float inverse = scale_of(*args.amax, args.format, args.margin).inverse;
    if (!args.rows.empty()) *args.row_scales.as<float>() = inverse;
    if (!args.columns.empty()) *args.column_scales.as<float>() = inverse;
  }
  visit_narrow(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.format == Fp8Format::kE4m3) {
      quantize_typed<T, Fp8Format::kE4m3>(stream, args);
    } else {
      quantize_typed<T, Fp8Format::kE5m2>(stream, args);
    }
  });
}

void transpose(const Stream& stream, const View& x, const View& columns) {
  const std::int64_t rows = x.shape[0], width = x.shape[1], padded = columns.shape[1];
  BEV_CHECK((columns.shape == Shape{width, padded_rows(ScaleBlock::kTensor, rows)}),
            ErrorKind::kInternal, "transpose: ", x.shape, " to ", columns.shape);
  const auto* from = x.as<std::uint8_t>();
  auto* to = columns.as<std::uint8_t>();
  for_ranges(stream, width, rows_per_piece(padded), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t column = begin; column < end; ++column) {
      for (std::int64_t i = 0; i < padded; ++i) {
        to[column * padded + i] = i < rows ? from[i * width + column] : std::uint8_t{0};
      }
    }
  });
}

void update_amax(const Stream&, const AmaxUpdateArgs& args) {
  const StepState& state = *args.state;
  if (state.skip != 0) return;
  const std::int64_t steps = args.history.shape[1];
  const float* seen = args.seen.as<float>();
  float *history = args.history.as<float>(), *used = args.used.as<float>();
  for (std::int64_t i = 0; i < args.seen.numel(); ++i) {
    float* entries = history + i * steps;
    entries[state.update % steps] = seen[i];
    if (state.update % args.interval != 0) continue;
    float next = seen[i];
    for (std::int64_t k = 0; args.largest && k < steps; ++k) {
      next = entries[k] > next ? entries[k] : next;
    }
    if (next > 0 && std::isfinite(next)) used[i] = next;
  }
}
}  // namespace

void raise_amax(const Stream& stream, const View& x, float* amax) {
  visit_narrow(x.dtype, [&](auto type) { amax_typed<decltype(type)>(stream, x, amax); });
}

QuantizeKernels kernel_table(Family<QuantizeKernels>) {
  return {.amax = amax,
          .quantize = quantize,
          .transpose = transpose,
          .scaled_gemm = scaled_gemm,
          .grouped_gemm = grouped_scaled,
          .grouped_wgrad = grouped_scaled_wgrad,
          .update_amax = update_amax,
          .dequantize_nf4 = dequantize_nf4,
          .takes_nf4 = nullptr,
          .nf4_gemm = nullptr};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
