#include "backend/cpu/kernels/scaled_product.h"

#include <memory>

#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// All 256 numbers of a format.
struct Numbers {
  explicit Numbers(Fp8Format format) {
    for (int i = 0; i < 256; ++i) of[i] = from_fp8(format, static_cast<std::uint8_t>(i));
  }
  float of[256];
};

// The scale of element k of row r.
float scale_at(const ScaledView& from, std::int64_t row, std::int64_t k) {
  const float* scales = from.scales.as<float>();
  if (from.block == ScaleBlock::kTensor) return scales[0];
  const std::int64_t line = from.block == ScaleBlock::kRun ? k / kScaleBlock : row / kScaleBlock;
  const std::int64_t at = from.block == ScaleBlock::kRun ? row : k / kScaleBlock;
  return scales[line * from.scales.shape[1] + at];
}

// The payload in T: as it is, for one scale, or with the scales of its blocks.
template <class T>
class Widened {
 public:
  Widened(const Stream& stream, const ScaledView& from)
      : values_(
            std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(from.payload.numel()))),
        shape_(from.payload.shape) {
    const Numbers numbers(from.format);
    const auto* bytes = from.payload.as<std::uint8_t>();
    const std::int64_t width = shape_[1];
    const bool whole = from.block == ScaleBlock::kTensor;
    for_ranges(stream, shape_[0], rows_per_piece(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        for (std::int64_t run = 0; run < width; run += kScaleBlock) {
          const float scale = whole ? 1.0f : scale_at(from, row, run);
          const std::int64_t last = std::min(width, run + kScaleBlock);
          for (std::int64_t k = run; k < last; ++k) {
            values_[static_cast<std::size_t>(row * width + k)] =
                narrow<T>(numbers.of[bytes[row * width + k]] * scale);
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
void finish(const Stream& stream, const ScaledProductArgs& args, float scale, const float* sums) {
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

}  // namespace

// Every number of either format is one of bf16, so one scale for all of a tensor leaves the product
// to that; numbers with scales of their own are those of f32.
void scaled_product(const Stream& stream, const ScaledProductArgs& args) {
  const View& c = args.c;
  BEV_CHECK(args.a.payload.shape == Shape({c.shape[0], args.b.payload.shape[1]}) &&
                args.b.payload.shape[0] == c.shape[1] && c.shape[1] % 16 == 0 &&
                args.b.payload.shape[1] % 16 == 0,
            ErrorKind::kInternal, "scaled product: ", args.a.payload.shape, " and ",
            args.b.payload.shape, " to ", c.shape);
  if (is_emulated(args.a.block)) {
    gemm_kernels().gemm(stream,
                        {args.a.payload, args.b.payload, c, false, true, 1, args.beta, args.bias});
    return;
  }
  auto sums = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(c.numel()));
  View to{sums.get(), Dtype::kF32, c.shape};
  auto multiply = [&](auto type) {
    Widened<decltype(type)> a(stream, args.a), b(stream, args.b);
    gemm_kernels().gemm(stream, {a.view(), b.view(), to, false, true, 1, 0, {}});
  };
  float scale = 1;
  if (args.a.block == ScaleBlock::kTensor && args.b.block == ScaleBlock::kTensor) {
    scale = *args.a.scales.as<float>() * *args.b.scales.as<float>();
    multiply(Bf16{});
  } else {
    multiply(float{});
  }
  visit_float(c.dtype, [&](auto type) {
    if constexpr (sizeof(type) <= sizeof(float)) {
      finish<decltype(type)>(stream, args, scale, sums.get());
    } else {
      BEV_FAIL(ErrorKind::kInternal, "scaled product: to f64");
    }
  });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
