// Emulated FP8 GEMMs: operands are dequantised to bf16 or f32 and multiplied as such.
#include "backend/cpu/kernels/scaled_gemm.h"

#include <algorithm>
#include <memory>

#include "backend/cpu/kernels/gemm_problem.h"
#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"
#include "kernels/gemm.h"
#include "kernels/optim.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// All 256 values of a format.
struct Numbers {
  explicit Numbers(Fp8Format format) {
    for (int i = 0; i < 256; ++i) of[i] = from_fp8(format, static_cast<std::uint8_t>(i));
  }
  float of[256];
};

// Scale of element k of a row.
float scale_at(const ScaledView& from, std::int64_t row, std::int64_t k) {
  const float* scales = from.scales.as<float>();
  if (from.block == ScaleBlock::kTensor) return scales[0];
  const std::int64_t line = from.block == ScaleBlock::kRun ? k / kScaleBlock : row / kScaleBlock;
  const std::int64_t at = from.block == ScaleBlock::kRun ? row : k / kScaleBlock;
  return scales[line * from.scales.shape[1] + at];
}

// A submatrix of a payload; its first column is the start of a run.
struct Part {
  std::int64_t row = 0, column = 0;
  Shape shape;
};

// A submatrix in T: without the scale for kTensor, else multiplied by its block scales.
template <class T>
class Widened {
 public:
  Widened(const Stream& stream, const ScaledView& from)
      : Widened(stream, from, {0, 0, from.payload.shape}) {}
  Widened(const Stream& stream, const ScaledView& from, const Part& part)
      : values_(std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(part.shape.numel()))),
        shape_(part.shape) {
    const Numbers numbers(from.format);
    const std::int64_t width = shape_[1];
    const bool whole = from.block == ScaleBlock::kTensor;
    for_ranges(stream, shape_[0], rows_per_piece(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const auto* bytes = from.payload.as<std::uint8_t>() +
                            (part.row + row) * from.payload.shape[1] + part.column;
        T* to = values_.get() + row * width;
        for (std::int64_t run = 0; run < width; run += kScaleBlock) {
          const float scale = whole ? 1.0f : scale_at(from, part.row + row, part.column + run);
          const std::int64_t last = std::min(width, run + kScaleBlock);
          for (std::int64_t k = run; k < last; ++k) {
            to[k] = narrow<T>(numbers.of[bytes[k]] * scale);
          }
        }
      }
    });
  }
  View view() { return {values_.get(), DtypeOf<T>::value, shape_}; }

 private:
  std::unique_ptr<T[]> values_;
  Shape shape_;
};

template <class C>
void finish(const Stream& stream, const ScaledGemmArgs& args, float scale, const float* sums) {
  const std::int64_t columns = args.c.shape[1];
  C* c = args.c.as<C>();
  const C* bias = args.bias.empty() ? nullptr : args.bias.as<C>();
  for_ranges(stream, args.c.shape[0], rows_per_piece(columns),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t row = begin; row < end; ++row) {
                 for (std::int64_t j = 0; j < columns; ++j) {
                   float value = scale * sums[row * columns + j];
                   if (args.beta != 0) {
                     value += static_cast<float>(args.beta) * widen(c[row * columns + j]);
                   }
                   if (bias != nullptr) value += widen(bias[j]);
                   c[row * columns + j] = narrow<C>(value);
                 }
               }
             });
}

void multiply_plain(const Stream& stream, const GemmArgs& args, bool exact) {
  if (exact) return gemm_exact(stream, args);
  kernels().gemm.gemm(stream, args);
}

// c, beta and bias are those of `args`.
void multiply_and_finish(const Stream& stream, const View& a, const View& b, float scale,
                         const ScaledGemmArgs& args, bool exact) {
  auto sums = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(args.c.numel()));
  const View to{sums.get(), Dtype::kF32, args.c.shape};
  multiply_plain(stream, {.a = a, .b = b, .c = to, .transpose_b = true}, exact);
  visit_float(args.c.dtype, [&](auto type) {
    if constexpr (sizeof(type) <= sizeof(float)) {
      finish<decltype(type)>(stream, args, scale, sums.get());
    } else {
      BEV_FAIL(ErrorKind::kInternal, "scaled product: to f64");
    }
  });
}

// Every value of either format is exact in bf16, so with tensor scales the GEMM runs in bf16;
// values times block scales need f32.
void run_scaled(const Stream& stream, const ScaledGemmArgs& args, bool exact) {
  const View& c = args.c;
  BEV_CHECK(args.a.payload.shape == Shape({c.shape[0], args.b.payload.shape[1]}) &&
                args.b.payload.shape[0] == c.shape[1] && c.shape[1] % 16 == 0 &&
                args.b.payload.shape[1] % 16 == 0,
            ErrorKind::kInternal, "scaled product: ", args.a.payload.shape, " and ",
            args.b.payload.shape, " to ", c.shape);
  if (is_emulated(args.a.block)) {
    const GemmArgs plain{.a = args.a.payload,
                         .b = args.b.payload,
                         .c = c,
                         .transpose_b = true,
                         .beta = args.beta,
                         .bias = args.bias};
    return multiply_plain(stream, plain, exact);
  }
  auto multiply = [&](auto type, float scale) {
    Widened<decltype(type)> a(stream, args.a), b(stream, args.b);
    multiply_and_finish(stream, a.view(), b.view(), scale, args, exact);
  };
  if (args.a.block == ScaleBlock::kTensor && args.b.block == ScaleBlock::kTensor) {
    multiply(Bf16{}, *args.a.scales.as<float>() * *args.b.scales.as<float>());
  } else {
    multiply(float{}, 1);
  }
}

void run_grouped(const Stream& stream, const GroupedScaledGemmArgs& args, bool exact) {
  const std::int64_t columns = args.c.shape[1], depth = args.a.payload.shape[1];
  const bool side_by_side = args.side_by_side();
  for (std::int64_t e = 0; e < args.experts; ++e) {
    const std::int64_t begin = args.offsets[e], end = args.offsets[e + 1];
    if (begin == end) continue;
    Widened<float> a(stream, args.a, {begin, 0, {end - begin, depth}});
    Widened<float> b(
        stream, args.b,
        {side_by_side ? 0 : e * columns, side_by_side ? e * depth : 0, {columns, depth}});
    ScaledGemmArgs to;
    to.c = args.c.rows(begin, end);
    if (!args.bias.empty()) to.bias = args.bias.rows(e, e + 1).flat();
    multiply_and_finish(stream, a.view(), b.view(), 1, to, exact);
  }
  const View unused = args.c.rows(args.offsets[args.experts], args.c.shape[0]);
  std::fill_n(unused.address(0), unused.bytes(), std::byte{0});
}

}  // namespace

void scaled_gemm(const Stream& stream, const ScaledGemmArgs& args) {
  run_scaled(stream, args, false);
}
void scaled_gemm_exact(const Stream& stream, const ScaledGemmArgs& args) {
  run_scaled(stream, args, true);
}
void grouped_scaled(const Stream& stream, const GroupedScaledGemmArgs& args) {
  run_grouped(stream, args, false);
}
void grouped_scaled_exact(const Stream& stream, const GroupedScaledGemmArgs& args) {
  run_grouped(stream, args, true);
}

void grouped_scaled_wgrad(const Stream& stream, const GroupedScaledWgradArgs& args) {
  const View& w = args.w;
  for (std::int64_t e = 0; e < w.shape[0]; ++e) {
    const std::int64_t begin = run_begin(args.offsets[e], e);
    const std::int64_t depth = padded_rows(ScaleBlock::kRun, args.offsets[e + 1] - args.offsets[e]);
    Widened<float> dy(stream, args.dy, {0, begin, {w.shape[1], depth}});
    Widened<float> x(stream, args.x, {0, begin, {w.shape[2], depth}});
    ScaledGemmArgs to;
    to.c = w.rows(e, e + 1).reshape({w.shape[1], w.shape[2]});
    to.beta = args.beta;
    multiply_and_finish(stream, dy.view(), x.view(), 1, to, false);
  }
  if (args.squares != nullptr) kernels().optim.sum_squares(stream, {&w, 1}, args.squares);
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
