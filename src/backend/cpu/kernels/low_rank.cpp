// Norms of weight rows, and columns scaled by magnitude over norm, for DoRA.
#include "kernels/low_rank.h"

#include <cmath>

#include "backend/cpu/kernels/lanes.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

void row_squares(const Stream& stream, const View& x, const View& sums) {
  BEV_CHECK(x.shape.ndim() == 2 && sums.numel() == x.shape[0] && sums.dtype == x.dtype,
            "row_squares: ", x.shape, " to ", sums.shape);
  const std::int64_t columns = x.shape[1];
  visit_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* from = x.as<T>();
    T* to = sums.as<T>();
    for_ranges(stream, x.shape[0], rows_per_piece(columns),
               [=](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   const T* at = from + row * columns;
                   const double sum = sum_of<double>(columns, [&](std::int64_t i) {
                     const auto value = static_cast<double>(widen(at[i]));
                     return value * value;
                   });
                   to[row] = narrow<T>(static_cast<accumulate_t<T>>(sum));
                 }
               });
  });
}

void scale_columns(const Stream& stream, const ScaleColumnsArgs& args) {
  const std::int64_t width = args.x.shape[1], columns = args.magnitude.numel();
  BEV_CHECK(args.y.shape == args.x.shape && args.squares.numel() == columns &&
                args.first + columns <= width,
            "scale_columns: ", columns, " from ", args.first, " of ", args.x.shape);
  visit_float(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    using A = accumulate_t<T>;
    const T *x = args.x.as<T>() + args.first, *magnitude = args.magnitude.as<T>();
    T* y = args.y.as<T>() + args.first;
    const A* squares = args.squares.as<A>();
    for_ranges(stream, args.x.shape[0], rows_per_piece(width),
               [=](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   for (std::int64_t j = 0; j < columns; ++j) {
                     const A factor = static_cast<A>(widen(magnitude[j])) / std::sqrt(squares[j]);
                     y[row * width + j] = narrow<T>(widen(x[row * width + j]) * factor);
                   }
                 }
               });
  });
}

template <class X, class Y>
void column_dots_typed(const Stream& stream, const ColumnDotsArgs& args) {
  using A = accumulate_t<X>;
  const std::int64_t rows = args.a.shape[0], width = args.a.shape[1];
  const X *a = args.a.as<X>() + args.first, *b = args.b.as<X>() + args.first;
  const A* squares = args.squares.as<A>();
  Y* out = args.out.as<Y>();
  constexpr std::int64_t kColumns = 64;
  for_ranges(stream, args.out.numel(), kColumns, [=](std::int64_t begin, std::int64_t end) {
    double sums[kColumns] = {};
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t j = begin; j < end; ++j) {
        sums[j - begin] += static_cast<double>(widen(a[row * width + j])) *
                           static_cast<double>(widen(b[row * width + j]));
      }
    }
    for (std::int64_t j = begin; j < end; ++j) {
      double sum = sums[j - begin] / std::sqrt(static_cast<double>(squares[j]));
      if (args.beta != 0) sum += args.beta * static_cast<double>(widen(out[j]));
      out[j] = narrow<Y>(static_cast<accumulate_t<Y>>(sum));
    }
  });
}

void column_dots(const Stream& stream, const ColumnDotsArgs& args) {
  BEV_CHECK(args.a.shape == args.b.shape && args.squares.numel() == args.out.numel() &&
                args.first + args.out.numel() <= args.a.shape[1],
            "column_dots: ", args.out.shape, " from ", args.first, " of ", args.a.shape);
  visit_float(args.a.dtype, [&](auto from) {
    visit_float(args.out.dtype,
                [&](auto to) { column_dots_typed<decltype(from), decltype(to)>(stream, args); });
  });
}

}  // namespace

LowRankKernels kernel_table(Family<LowRankKernels>) {
  return {.row_squares = row_squares, .scale_columns = scale_columns, .column_dots = column_dots};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
