#include "kernels/embedding.h"

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
    const T* table = weight.as<T>();
    T* to = out.as<T>();
    for_ranges(
        stream, out.shape[0], rows_per_piece(columns), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t t = begin; t < end; ++t) {
            const std::int64_t row = args.index[t] - args.first_row;
            const bool here = row >= 0 && row < rows;
            forward_row<T>(here ? table + row * columns : nullptr, to + t * columns, columns, args);
          }
        });
  });
}

template <class G>
void scale_gradient(const Stream& stream, const View& dweight, double beta) {
  if (beta == 1) return;
  G* data = dweight.as<G>();
  const G factor = static_cast<G>(beta);
  for_ranges(stream, dweight.numel(), kFlatPiece, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) data[i] = factor == 0 ? 0 : factor * data[i];
  });
}

// Pieces are blocks of columns: each sees all rows in the order of t.
constexpr std::int64_t kColumns = 64;

template <class T, class G>
void backward_typed(const Stream& stream, const EmbeddingBackwardArgs& args) {
  scale_gradient<G>(stream, args.dweight, args.beta);
  const T* dy = args.dy.as<T>();
  G* dweight = args.dweight.as<G>();
  const G scale = static_cast<G>(args.scale);
  const std::int64_t tokens = args.dy.shape[0], columns = args.dy.shape[1];
  const std::int64_t rows = args.dweight.shape[0];
  for_ranges(stream, columns, kColumns, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t row = args.index[t] - args.first_row;
      if (row < 0 || row >= rows || args.index[t] == args.skip_index) continue;
      const T* from = dy + t * columns;
      G* to = dweight + row * columns;
#pragma GCC ivdep
      for (std::int64_t j = begin; j < end; ++j) {
        to[j] += scale * static_cast<G>(widen(from[j]));
      }
    }
  });
}

void backward(const Stream& stream, const EmbeddingBackwardArgs& args) {
  const View &dy = args.dy, &dweight = args.dweight;
  BEV_CHECK(dy.shape.ndim() == 2 && dweight.shape.ndim() == 2 && dy.shape[1] == dweight.shape[1],
            "embedding backward: dy ", dy.shape, ", dweight ", dweight.shape);
  BEV_CHECK(dweight.dtype == Dtype::kF32 || dweight.dtype == Dtype::kF64, ErrorKind::kInternal,
            "embedding backward: dweight must be f32 or f64, is ", name_of(dweight.dtype));
  visit_float(dy.dtype, [&](auto type) {
    using T = decltype(type);
    if (dweight.dtype == Dtype::kF64) return backward_typed<T, double>(stream, args);
    backward_typed<T, float>(stream, args);
  });
}
}  // namespace

EmbeddingKernels embedding_kernels() { return {.forward = forward, .backward = backward}; }

}  // namespace bev::cpu::BEV_CPU_LEVEL
