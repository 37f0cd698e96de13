// Emulated FP4 (NVFP4, MXFP4) quantisation.
#include "backend/cpu/kernels/fp4.h"

#include <cmath>
#include <limits>

#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/pieces.h"
#include "base/error.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
constexpr std::int64_t kMostRun = 32;

// Scale of a run from its amax and, for NVFP4, the scale of the tensor.
struct RunScale {
  bool power_of_two = false;
  float of_tensor = 1;

  float of(float amax) const {
    if (!std::isfinite(amax) || !std::isfinite(of_tensor)) {
      return std::numeric_limits<float>::quiet_NaN();
    }
    if (amax == 0) return 0;
    if (power_of_two) return std::ldexp(1.0f, std::max(std::ilogb(amax) - 2, -127));
    const float part = amax / kLargestFp4 / of_tensor;
    return from_fp8(Fp8Format::kE4m3, to_fp8<Fp8Format::kE4m3>(part)) * of_tensor;
  }
};

RunScale run_scale(const QuantizeArgs& args) {
  if (args.block == ScaleBlock::kMxfp4) return {.power_of_two = true};
  const float amax = *args.amax;
  return {.of_tensor = amax == 0 ? 1.0f : amax / (kLargestFp4 * largest_of(Fp8Format::kE4m3))};
}

// NaN is ignored in amax, and stays NaN in the result.
template <class T>
void emulate_run(const RunScale& how, const float* x, std::int64_t count, T* to) {
  float amax = 0;
  for (std::int64_t i = 0; i < count; ++i) amax = std::fabs(x[i]) > amax ? std::fabs(x[i]) : amax;
  const float scale = how.of(amax);
  for (std::int64_t i = 0; i < count; ++i) {
    const float zero = x[i] == x[i] ? 0.0f : x[i];
    to[i] = narrow<T>(scale == 0 ? zero : round_to_fp4(x[i] / scale) * scale);
  }
}

template <class T>
void emulate_typed(const Stream& stream, const QuantizeArgs& args) {
  const std::int64_t rows = args.x.shape[0], columns = args.x.shape[1];
  const std::int64_t run = emulated_run(args.block), padded = padded_rows(args.block, rows);
  const RunScale how = run_scale(args);
  const T* x = args.x.as<T>();
  T *by_rows = args.rows.empty() ? nullptr : args.rows.as<T>(),
    *by_columns = args.columns.empty() ? nullptr : args.columns.as<T>();
  for_ranges(stream, by_rows == nullptr ? 0 : rows, rows_per_piece(columns),
             [=](std::int64_t begin, std::int64_t end) {
               float values[kMostRun];
               for (std::int64_t i = begin * columns; i < end * columns; i += run) {
                 for (std::int64_t k = 0; k < run; ++k) values[k] = widen(x[i + k]);
                 emulate_run(how, values, run, by_rows + i);
               }
             });
  for_ranges(stream, by_columns == nullptr ? 0 : columns, rows_per_piece(padded),
             [=](std::int64_t begin, std::int64_t end) {
               float values[kMostRun];
               for (std::int64_t i = begin * padded; i < end * padded; i += run) {
                 const std::int64_t column = i / padded, row = i % padded;
                 for (std::int64_t k = 0; k < run; ++k) {
                   values[k] = row + k < rows ? widen(x[(row + k) * columns + column]) : 0.0f;
                 }
                 emulate_run(how, values, run, by_columns + i);
               }
             });
}
}  // namespace

void emulate_fp4(const Stream& stream, const QuantizeArgs& args) {
  BEV_CHECK(args.x.shape[1] % emulated_run(args.block) == 0, ErrorKind::kInternal,
            "emulate fp4: ", args.x.shape);
  visit_float(args.x.dtype, [&](auto type) {
    if constexpr (sizeof(type) <= sizeof(float)) {
      emulate_typed<decltype(type)>(stream, args);
    } else {
      BEV_FAIL(ErrorKind::kInternal, "emulate fp4: of f64");
    }
  });
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
