// Elementwise kernels, casts, dropout, strided row copies and sums.
#include "kernels/elementwise.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>

#include "backend/cpu/kernels/lanes.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/random.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"
#include "tensor/random_rows.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
template <class T>
void fill_with(const Stream& stream, const View& x, T value) {
  T* data = static_cast<T*>(x.data);
  for_ranges(stream, x.numel(), kFlatPiece, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) data[i] = value;
  });
}

}  // namespace

void fill(const Stream& stream, const View& x, double value) {
  switch (x.dtype) {
    case Dtype::kF64:
      return fill_with(stream, x, value);
    case Dtype::kF32:
      return fill_with(stream, x, static_cast<float>(value));
    case Dtype::kBf16:
      return fill_with(stream, x, Bf16(static_cast<float>(value)));
    case Dtype::kF16:
      return fill_with(stream, x, F16(static_cast<float>(value)));
    case Dtype::kI64:
      return fill_with(stream, x, static_cast<std::int64_t>(value));
    case Dtype::kI32:
      return fill_with(stream, x, static_cast<std::int32_t>(value));
    case Dtype::kU8:
      return fill_with(stream, x, static_cast<std::uint8_t>(value));
  }
}

namespace {
// Rounds to float so that a second rounding to 16 bits equals a single rounding: inexact results
// get an odd last bit (round to odd).
BEV_INLINE float round_to_odd(double x) {
  auto nearest = static_cast<float>(x);
  auto word = std::bit_cast<std::uint32_t>(nearest);
  std::uint32_t step = std::fabs(static_cast<double>(nearest)) < std::fabs(x) ? 1u : ~0u;
  bool adjust = static_cast<double>(nearest) != x && (word & 1u) == 0 && x == x;
  return std::bit_cast<float>(adjust ? word + step : word);
}

template <class From, class To>
BEV_INLINE To convert(From x) {
  if constexpr (std::is_same_v<From, double> && sizeof(To) == 2) {
    return narrow<To>(round_to_odd(x));
  } else {
    return narrow<To>(static_cast<accumulate_t<To>>(widen(x)));
  }
}

}  // namespace

void cast(const Stream& stream, const View& from, const View& to) {
  BEV_CHECK(from.numel() == to.numel(), "cast: ", from.shape, " to ", to.shape);
  visit_float(from.dtype, [&](auto from_type) {
    using From = decltype(from_type);
    visit_float(to.dtype, [&](auto to_type) {
      using To = decltype(to_type);
      const From* x = from.as<From>();
      To* y = to.as<To>();
      for_ranges(stream, from.numel(), kFlatPiece, [=](std::int64_t begin, std::int64_t end) {
        if constexpr (std::is_same_v<From, To>) {
          std::memmove(y + begin, x + begin, static_cast<std::size_t>(end - begin) * sizeof(To));
        } else {
          for (std::int64_t i = begin; i < end; ++i) y[i] = convert<From, To>(x[i]);
        }
      });
    });
  });
}

namespace {
template <class T, class B>
void add_typed(const Stream& stream, const View& a, const View& b, const View& out) {
  const T* x = a.as<T>();
  const B* y = b.as<B>();
  T* z = out.as<T>();
  for_ranges(stream, a.numel(), kFlatPiece, [=](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
    for (std::int64_t i = begin; i < end; ++i) z[i] = narrow<T>(widen(x[i]) + widen(y[i]));
  });
}

void add(const Stream& stream, const View& a, const View& b, const View& out) {
  BEV_CHECK(a.numel() == b.numel() && a.numel() == out.numel(), "add: ", a.shape, " + ", b.shape,
            " to ", out.shape);
  visit_float(b.dtype, [&](auto type) {
    using T = decltype(type);
    if constexpr (sizeof(T) == 2) {
      if (out.dtype == Dtype::kF32) return add_typed<float, T>(stream, a, b, out);
    }
    add_typed<T, T>(stream, a, b, out);
  });
}

template <class X, class Y>
void axpby_typed(const Stream& stream, double alpha, const View& from, double beta,
                 const View& to) {
  using A = accumulate_t<Y>;
  const X* x = from.as<X>();
  Y* y = to.as<Y>();
  const A a = static_cast<A>(alpha), b = static_cast<A>(beta);
  for_ranges(stream, from.numel(), kFlatPiece, [=](std::int64_t begin, std::int64_t end) {
    if (b == 0) {
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) {
        y[i] = narrow<Y>(a * static_cast<A>(widen(x[i])));
      }
    } else {
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) {
        y[i] = narrow<Y>(b * widen(y[i]) + a * static_cast<A>(widen(x[i])));
      }
    }
  });
}

void axpby(const Stream& stream, double alpha, const View& x, double beta, const View& y) {
  BEV_CHECK(x.numel() == y.numel(), "axpby: ", x.shape, " onto ", y.shape);
  visit_float(x.dtype, [&](auto from) {
    visit_float(y.dtype, [&](auto to) {
      axpby_typed<decltype(from), decltype(to)>(stream, alpha, x, beta, y);
    });
  });
}

void scale(const Stream& stream, const View& x, const View& factor, const View& y) {
  BEV_CHECK(x.numel() == y.numel() && factor.numel() == 1, "scale: ", x.shape, " by ", factor.shape,
            " to ", y.shape);
  visit_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* from = x.as<T>();
    T* to = y.as<T>();
    const auto by = *factor.as<accumulate_t<T>>();
    for_ranges(stream, x.numel(), kFlatPiece, [=](std::int64_t begin, std::int64_t end) {
#pragma GCC ivdep
      for (std::int64_t i = begin; i < end; ++i) to[i] = narrow<T>(by * widen(from[i]));
    });
  });
}

void add_rows(const Stream& stream, const View& x, const View& row) {
  BEV_CHECK(x.shape.ndim() == 2 && row.numel() == x.shape[1], "add_rows: ", row.shape, " to ",
            x.shape);
  const std::int64_t columns = x.shape[1];
  visit_float(x.dtype, [&](auto type) {
    using T = decltype(type);
    T* to = x.as<T>();
    const T* from = row.as<T>();
    for_ranges(stream, x.shape[0], rows_per_piece(columns),
               [=](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   T* y = to + i * columns;
#pragma GCC ivdep
                   for (std::int64_t j = 0; j < columns; ++j) {
                     y[j] = narrow<T>(widen(y[j]) + widen(from[j]));
                   }
                 }
               });
  });
}

template <class T>
void dropout_row(const T* x, T* y, std::int64_t columns, const DropoutArgs& args,
                 std::int64_t row) {
  using A = accumulate_t<T>;
  constexpr std::int64_t kWords = 4 * kPhiloxBlocks;
  const std::uint32_t threshold = keep_threshold(args.p);
  const A scale = static_cast<A>(1 / (1 - args.p));
  const RandomRows& random = args.random;
  std::uint32_t words[kWords];
  const std::int64_t before = random.first_column % 4;  // words of a block left of the first column
  for (std::int64_t begin = -before; begin < columns; begin += kWords) {
    philox_blocks(static_cast<std::uint32_t>((random.first_column + begin) / 4),
                  static_cast<std::uint32_t>(random.position[row]),
                  static_cast<std::uint32_t>(random.sample[row]), random.stream, *random.random_key,
                  words);
    const std::int64_t count = std::min(kWords, columns - begin);
#pragma GCC ivdep
    for (std::int64_t i = begin < 0 ? -begin : 0; i < count; ++i) {
      A scaled = widen(x[begin + i]) * scale;
      y[begin + i] = narrow<T>((words[i] >> 9) >= threshold ? scaled : A{0});
    }
  }
}

void dropout(const Stream& stream, const DropoutArgs& args) {
  BEV_CHECK(args.x.shape == args.y.shape && args.x.shape.ndim() == 2, "dropout: ", args.x.shape,
            " to ", args.y.shape);
  const std::int64_t columns = args.x.shape[1];
  visit_float(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.as<T>();
    T* y = args.y.as<T>();
    for_ranges(stream, args.x.shape[0], rows_per_piece(columns),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   dropout_row(x + row * columns, y + row * columns, columns, args, row);
                 }
               });
  });
}

void copy_rows(const Stream& stream, const CopyRowsArgs& args) {
  const std::size_t size = size_of(args.dtype);
  const auto* src = static_cast<const std::byte*>(args.src);
  auto* dst = static_cast<std::byte*>(args.dst);
  for_ranges(stream, args.rows, rows_per_piece(args.columns),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t row = begin; row < end && args.columns > 0; ++row) {
                 const std::int64_t to = args.dst_rows != nullptr ? args.dst_rows[row] : row;
                 std::memcpy(dst + static_cast<std::size_t>(to * args.dst_stride) * size,
                             src + static_cast<std::size_t>(row * args.src_stride) * size,
                             static_cast<std::size_t>(args.columns) * size);
               }
             });
}

// True if any word has all exponent bits set.
template <class Word>
bool holds_nonfinite(const Word* x, std::int64_t count, Word mask) {
  Word found = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    found = static_cast<Word>(found | ((x[i] & mask) == mask ? 1 : 0));
  }
  return found != 0;
}

template <class Word>
void find_in_words(const Stream& stream, const View& x, Word mask, std::int32_t* flag) {
  const Word* words = static_cast<const Word*>(x.data);
  for_ranges(stream, x.numel(), kFlatPiece, [=](std::int64_t begin, std::int64_t end) {
    if (holds_nonfinite(words + begin, end - begin, mask)) {
      std::atomic_ref<std::int32_t>(*flag).store(1, std::memory_order_relaxed);
    }
  });
}

void find_nonfinite(const Stream& stream, const View& x, std::int32_t* flag) {
  switch (x.dtype) {
    case Dtype::kF64:
      return find_in_words(stream, x, std::uint64_t{0x7ff0000000000000}, flag);
    case Dtype::kF32:
      return find_in_words(stream, x, std::uint32_t{0x7f800000}, flag);
    case Dtype::kBf16:
      return find_in_words(stream, x, std::uint16_t{0x7f80}, flag);
    case Dtype::kF16:
      return find_in_words(stream, x, std::uint16_t{0x7c00}, flag);
    default:
      fail_not_float(x.dtype);
  }
}

// A thread sums runs of kSumRows rows, then the runs are added; this also keeps the rounding error
// small.
constexpr std::int64_t kSumRows = 32;

template <class X, class A>
void sum_rows(const X* x, std::int64_t rows, std::int64_t columns, A* __restrict sums) {
  for (std::int64_t j = 0; j < columns; ++j) sums[j] = static_cast<A>(widen(x[j]));
  for (std::int64_t row = 1; row < rows; ++row) {
    const X* values = x + row * columns;
    for (std::int64_t j = 0; j < columns; ++j) sums[j] += static_cast<A>(widen(values[j]));
  }
}

template <class X, class Y>
void column_sum_typed(const Stream& stream, const View& from, double beta, const View& to) {
  using A = std::conditional_t<std::is_same_v<X, double>, double, accumulate_t<Y>>;
  const X* x = from.as<X>();
  Y* y = to.as<Y>();
  const std::int64_t rows = from.shape[0], columns = from.shape[1];
  const std::int64_t runs = ceil_div(rows, kSumRows);
  A* sums = reinterpret_cast<A*>(
      stream.pool->scratch(static_cast<std::size_t>(runs * columns) * sizeof(A)));
  for_ranges(stream, columns == 0 ? 0 : rows, kSumRows, [=](std::int64_t begin, std::int64_t end) {
    sum_rows(x + begin * columns, end - begin, columns, sums + begin / kSumRows * columns);
  });
  constexpr std::int64_t kColumns = 512;
  for_ranges(stream, columns, kColumns, [=](std::int64_t begin, std::int64_t end) {
    A total[kColumns] = {};
    for (std::int64_t run = 0; run < runs; ++run) {
      for (std::int64_t j = begin; j < end; ++j) total[j - begin] += sums[run * columns + j];
    }
    for (std::int64_t j = begin; j < end; ++j) {
      A sum = total[j - begin];
      if (beta != 0) sum += static_cast<A>(beta) * static_cast<A>(widen(y[j]));
      y[j] = narrow<Y>(static_cast<accumulate_t<Y>>(sum));
    }
  });
}

void column_sum(const Stream& stream, const View& x, double beta, const View& out) {
  BEV_CHECK(x.shape.ndim() == 2 && out.numel() == x.shape[1], "column_sum: ", x.shape, " to ",
            out.shape);
  visit_float(x.dtype, [&](auto from) {
    visit_float(out.dtype, [&](auto to) {
      column_sum_typed<decltype(from), decltype(to)>(stream, x, beta, out);
    });
  });
}

void segment_sum(const Stream& stream, const SegmentSumArgs& args) {
  const std::int32_t *first = args.segment, *last = first + args.x.numel();
  visit_float(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const T* x = args.x.as<T>();
    T* sums = args.sums.as<T>();
    for_ranges(stream, args.sums.numel(), 1, [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t s = begin; s < end; ++s) {
        auto [from, to] = std::equal_range(first, last, static_cast<std::int32_t>(s));
        const T* values = x + (from - first);
        const double sum = sum_of<double>(
            to - from, [&](std::int64_t i) { return static_cast<double>(widen(values[i])); });
        sums[s] = convert<double, T>(sum);
      }
    });
  });
}
}  // namespace

ElementwiseKernels kernel_table(Family<ElementwiseKernels>) {
  return {.add = add,
          .axpby = axpby,
          .scale = scale,
          .add_rows = add_rows,
          .dropout = dropout,
          .copy_rows = copy_rows,
          .find_nonfinite = find_nonfinite,
          .column_sum = column_sum,
          .segment_sum = segment_sum};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
