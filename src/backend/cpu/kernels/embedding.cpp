// Embedding lookup, and its gradient by sorted token lists (deterministic).
#include "kernels/embedding.h"

#include <span>

#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
template <class T>
void forward_row(const T* from, T* to, std::int64_t columns, const EmbeddingForwardArgs& args) {
  using A = accumulate_t<T>;
  const A scale = static_cast<A>(args.scale);
  if (from == nullptr) {
    for (std::int64_t j = 0; !args.accumulate && j < columns; ++j) to[j] = narrow<T>(0);
  } else if (args.accumulate) {
#pragma GCC ivdep
    for (std::int64_t j = 0; j < columns; ++j) {
      to[j] = narrow<T>(widen(to[j]) + scale * widen(from[j]));
    }
  } else {
#pragma GCC ivdep
    for (std::int64_t j = 0; j < columns; ++j) to[j] = narrow<T>(scale * widen(from[j]));
  }
}

void forward(const Stream& stream, const EmbeddingForwardArgs& args) {
  const View &weight = args.weight, &out = args.out;
  BEV_CHECK(weight.shape.ndim() == 2 && out.shape.ndim() == 2 && weight.shape[1] == out.shape[1],
            "embedding: weight ", weight.shape, ", output ", out.shape);
  const std::int64_t rows = weight.shape[0], columns = out.shape[1];
  visit_float(out.dtype, [&](auto type) {
    using T = decltype(type);
    const T* embedding_weight = weight.as<T>();
    T* to = out.as<T>();
    for_ranges(stream, out.shape[0], rows_per_piece(columns),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t t = begin; t < end; ++t) {
                   const std::int64_t row = args.index[t] - args.first_row;
                   const bool here = row >= 0 && row < rows;
                   forward_row<T>(here ? embedding_weight + row * columns : nullptr,
                                  to + t * columns, columns, args);
                 }
               });
  });
}

// Tokens that contribute to each row of the table, in token order: those of row r are [begins[r],
// begins[r + 1]) of tokens. Stored in the pool's scratch memory.
struct TokensByRow {
  std::int32_t *begins = nullptr, *tokens = nullptr;

  std::span<const std::int32_t> of(std::int64_t row) const {
    return {tokens + begins[row], tokens + begins[row + 1]};
  }
};

TokensByRow tokens_by_row(const Stream& stream, const EmbeddingBackwardArgs& args) {
  const std::int64_t rows = args.dweight.shape[0], count = args.dy.shape[0];
  const auto row_of = [&](std::int64_t t) {
    const std::int64_t row = args.index[t] - args.first_row;
    const bool counts = row >= 0 && row < rows && args.index[t] != args.skip_index;
    return counts ? row : std::int64_t{-1};
  };
  TokensByRow out;
  out.begins = reinterpret_cast<std::int32_t*>(
      stream.pool->scratch(static_cast<std::size_t>(rows + 2 + count) * sizeof(std::int32_t)));
  out.tokens = out.begins + rows + 2;
  // Counting sort. Row r is counted at index r + 2, so that after the prefix sum its begin is at r
  // + 1 and serves as the write cursor; when all tokens are placed, begins[r] is the begin of row
  // r.
  std::fill_n(out.begins, rows + 2, 0);
  for (std::int64_t t = 0; t < count; ++t) {
    if (row_of(t) >= 0) ++out.begins[row_of(t) + 2];
  }
  for (std::int64_t row = 2; row < rows + 2; ++row) out.begins[row] += out.begins[row - 1];
  for (std::int64_t t = 0; t < count; ++t) {
    if (row_of(t) >= 0) out.tokens[out.begins[row_of(t) + 1]++] = static_cast<std::int32_t>(t);
  }
  return out;
}

// Columns summed at a time, in the accumulate type.
constexpr std::int64_t kColumns = 256;

template <class T, class G>
void backward_row(const T* dy, std::span<const std::int32_t> tokens, std::int64_t columns,
                  const EmbeddingBackwardArgs& args, G* to) {
  using A = accumulate_t<G>;
  const A scale = static_cast<A>(args.scale), beta = static_cast<A>(args.beta);
  if (tokens.empty() && beta == 1) return;
  for (std::int64_t begin = 0; begin < columns; begin += kColumns) {
    const std::int64_t count = std::min(kColumns, columns - begin);
    A sums[kColumns];
    for (std::int64_t j = 0; j < count; ++j) {
      sums[j] = beta == 0 ? A{0} : beta * static_cast<A>(widen(to[begin + j]));
    }
    for (std::int32_t t : tokens) {
      const T* from = dy + t * columns + begin;
      for (std::int64_t j = 0; j < count; ++j) sums[j] += scale * static_cast<A>(widen(from[j]));
    }
    for (std::int64_t j = 0; j < count; ++j) to[begin + j] = narrow<G>(sums[j]);
  }
}

template <class T, class G>
void backward_typed(const Stream& stream, const EmbeddingBackwardArgs& args) {
  const T* dy = args.dy.as<T>();
  G* dweight = args.dweight.as<G>();
  const std::int64_t rows = args.dweight.shape[0], columns = args.dy.shape[1];
  const TokensByRow lists = tokens_by_row(stream, args);
  for_ranges(stream, rows, rows_per_piece(columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      backward_row(dy, lists.of(row), columns, args, dweight + row * columns);
    }
  });
}

void backward(const Stream& stream, const EmbeddingBackwardArgs& args) {
  const View &dy = args.dy, &dweight = args.dweight;
  BEV_CHECK(dy.shape.ndim() == 2 && dweight.shape.ndim() == 2 && dy.shape[1] == dweight.shape[1],
            "embedding backward: dy ", dy.shape, ", dweight ", dweight.shape);
  visit_float(dy.dtype, [&](auto type) {
    using T = decltype(type);
    if (dweight.dtype == Dtype::kF64) return backward_typed<T, double>(stream, args);
    if (dweight.dtype == Dtype::kF32) return backward_typed<T, float>(stream, args);
    BEV_CHECK(dweight.dtype == Dtype::kBf16, ErrorKind::kInternal,
              "embedding backward: dweight must be f32, bf16 or f64, is ", name_of(dweight.dtype));
    backward_typed<T, Bf16>(stream, args);
  });
}
}  // namespace

EmbeddingKernels kernel_table(Family<EmbeddingKernels>) {
  return {.forward = forward, .backward = backward};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
