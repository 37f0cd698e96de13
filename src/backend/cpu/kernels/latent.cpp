// Multi-head latent attention (MLA): joining and splitting of heads, and GEMMs per head.
#include "kernels/latent.h"

#include "backend/cpu/kernels/lanes.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tables.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

// Rows of one token.
template <class T>
struct TokenRows {
  T *q, *kv, *rope_key, *rows;
  std::int64_t heads, nope, rope, v;

  TokenRows(const LatentHeadsArgs& args, std::int64_t token)
      : q(args.q.as<T>() + token * args.q.shape[1]),
        kv(args.kv.as<T>() + token * args.kv.shape[1]),
        rope_key(args.rope_key.as<T>() + token * args.rope_size),
        rows(args.rows.as<T>() + token * args.rows.shape[1]),
        heads(args.heads),
        nope(args.nope_size),
        rope(args.rope_size),
        v(args.v_size) {}

  std::int64_t q_columns() const { return heads * (nope + rope); }
  T* key(std::int64_t head) const { return rows + q_columns() + head * (nope + rope); }
  T* value(std::int64_t head) const { return rows + 2 * q_columns() + head * v; }
  T* kv_key(std::int64_t head) const { return kv + head * (nope + v); }
  T* kv_value(std::int64_t head) const { return kv_key(head) + nope; }
};

template <class T>
void join_token(const TokenRows<T>& at) {
  std::copy_n(at.q, at.q_columns(), at.rows);
  for (std::int64_t head = 0; head < at.heads; ++head) {
    std::copy_n(at.kv_key(head), at.nope, at.key(head));
    std::copy_n(at.rope_key, at.rope, at.key(head) + at.nope);
    std::copy_n(at.kv_value(head), at.v, at.value(head));
  }
}

template <class T>
void split_token(const TokenRows<T>& at) {
  using A = accumulate_t<T>;
  std::copy_n(at.rows, at.q_columns(), at.q);
  for (std::int64_t head = 0; head < at.heads; ++head) {
    std::copy_n(at.key(head), at.nope, at.kv_key(head));
    std::copy_n(at.value(head), at.v, at.kv_value(head));
  }
  for (std::int64_t d = 0; d < at.rope; ++d) {
    A sum = 0;
    for (std::int64_t head = 0; head < at.heads; ++head) sum += widen(at.key(head)[at.nope + d]);
    at.rope_key[d] = narrow<T>(sum);
  }
}

template <class Body>
void for_tokens(const Stream& stream, const LatentHeadsArgs& args, const Body& body) {
  for_ranges(stream, args.rows.shape[0], rows_per_piece(args.rows.shape[1]),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t token = begin; token < end; ++token) body(token);
             });
}

void join(const Stream& stream, const LatentHeadsArgs& args) {
  visit_float(args.rows.dtype, [&](auto zero) {
    for_tokens(stream, args,
               [&](std::int64_t token) { join_token(TokenRows<decltype(zero)>(args, token)); });
  });
}

void split(const Stream& stream, const LatentHeadsArgs& args) {
  visit_float(args.rows.dtype, [&](auto zero) {
    for_tokens(stream, args,
               [&](std::int64_t token) { split_token(TokenRows<decltype(zero)>(args, token)); });
  });
}

constexpr std::int64_t kMostOuter = 1024;

// y = x W for one row and head: a weighted sum of rows of W, or if transposed a dot product with
// each row.
template <class T>
void multiply_head(const HeadGemmArgs& args, const T* x, const T* weight, T* y) {
  using A = accumulate_t<T>;
  if (args.transpose) {
    for (std::int64_t o = 0; o < args.outer; ++o) {
      const T* row = weight + o * args.inner;
      y[o] = narrow<T>(
          sum_of<A>(args.inner, [&](std::int64_t i) { return widen(x[i]) * widen(row[i]); }));
    }
    return;
  }
  for (std::int64_t begin = 0; begin < args.outer; begin += kMostOuter) {
    const std::int64_t count = std::min(kMostOuter, args.outer - begin);
    A sums[kMostOuter] = {};
    for (std::int64_t i = 0; i < args.inner; ++i) {
      const A factor = widen(x[i]);
      const T* __restrict row = weight + i * args.outer + begin;
      for (std::int64_t o = 0; o < count; ++o) sums[o] += factor * widen(row[o]);
    }
    for (std::int64_t o = 0; o < count; ++o) y[begin + o] = narrow<T>(sums[o]);
  }
}

// One thread handles a head for all rows, so its weight stays in that core's cache.
void head_gemm(const Stream& stream, const HeadGemmArgs& args) {
  visit_float(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    stream.pool->run(args.heads, [&](std::int64_t head) {
      for (std::int64_t row = 0; row < args.rows; ++row) {
        multiply_head(args,
                      static_cast<const T*>(args.x) + row * args.x_stride + head * args.x_step,
                      static_cast<const T*>(args.weight) + head * args.weight_step,
                      static_cast<T*>(args.y) + row * args.y_stride + head * args.y_step);
      }
    });
  });
}

}  // namespace

LatentKernels kernel_table(Family<LatentKernels>) {
  return {.join = join, .split = split, .head_gemm = head_gemm};
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
