// Router input jitter, and Sinkhorn balancing.
#include <algorithm>
#include <cmath>

#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/moe_tables.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/random.h"
#include "base/error.h"
#include "base/philox.h"
#include "kernels/router.h"
#include "tensor/random_rows.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {
template <class T>
void jitter_row(const T* x, T* y, std::int64_t columns, const JitterArgs& args, std::int64_t row) {
  using A = accumulate_t<T>;
  constexpr std::int64_t kWords = 4 * kPhiloxBlocks;
  const RandomRows& random = args.random;
  const auto epsilon = static_cast<float>(args.epsilon);
  std::uint32_t words[kWords];
  for (std::int64_t begin = 0; begin < columns; begin += kWords) {
    philox_blocks(
        static_cast<std::uint32_t>(begin / 4), static_cast<std::uint32_t>(random.position[row]),
        static_cast<std::uint32_t>(random.sample[row]), random.stream, *random.random_key, words);
    const std::int64_t end = std::min(begin + kWords, columns);
    for (std::int64_t i = begin; i < end; ++i) {
      const float factor = 1 + epsilon * (2 * uniform_of(words[i - begin]) - 1);
      y[i] = narrow<T>(widen(x[i]) * static_cast<A>(factor));
    }
  }
}
}  // namespace

void jitter(const Stream& stream, const JitterArgs& args) {
  BEV_CHECK(args.x.shape == args.y.shape && args.x.shape.ndim() == 2, ErrorKind::kInternal,
            "jitter: ", args.x.shape, " to ", args.y.shape);
  const std::int64_t columns = args.x.shape[1];
  visit_float(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    for_ranges(stream, args.x.shape[0], rows_per_piece(columns),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t row = begin; row < end; ++row) {
                   jitter_row(args.x.as<T>() + row * columns, args.y.as<T>() + row * columns,
                              columns, args, row);
                 }
               });
  });
}

namespace {
constexpr std::int64_t kSinkhornTokens = 256;  // per piece
constexpr double kTolerance = 1e-4, kSmall = 1e-8;

// One round: computes row factors from the old column factors, then the new column `factors`.
// `cost` [T, E], `parts` [pieces, E]. Returns the mean change.
template <class A>
A sinkhorn_round(const Stream& stream, const A* cost, std::int64_t tokens, std::int64_t experts,
                 A* parts, A* factors) {
  for_ranges(stream, tokens, kSinkhornTokens, [&](std::int64_t begin, std::int64_t end) {
    A* sums = parts + begin / kSinkhornTokens * experts;
    std::fill_n(sums, experts, A{0});
    for (std::int64_t t = begin; t < end; ++t) {
      const A* row = cost + t * experts;
      A sum = 0;
      for (std::int64_t e = 0; e < experts; ++e) sum += factors[e] * row[e];
      const A own = 1 / (static_cast<A>(tokens) * (sum + static_cast<A>(kSmall)));
      for (std::int64_t e = 0; e < experts; ++e) sums[e] += own * row[e];
    }
  });
  A change = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    A sum = 0;
    for (std::int64_t piece = 0; piece < ceil_div(tokens, kSinkhornTokens); ++piece) {
      sum += parts[piece * experts + e];
    }
    const A next = 1 / (static_cast<A>(experts) * (sum + static_cast<A>(kSmall)));
    change += std::abs(next - factors[e]);
    factors[e] = next;
  }
  return change / static_cast<A>(experts);
}

template <class A>
void sinkhorn_of(const Stream& stream, const SinkhornArgs& args) {
  const std::int64_t tokens = args.logits.shape[0], experts = args.logits.shape[1];
  const std::int64_t pieces = ceil_div(tokens, kSinkhornTokens);
  A* cost = reinterpret_cast<A*>(
      stream.pool->scratch(static_cast<std::size_t>((tokens + pieces) * experts) * sizeof(A)));
  A *parts = cost + tokens * experts, *factors = args.bias.as<A>();
  const A* logits = args.logits.as<A>();
  for_ranges(stream, tokens * experts, kFlatPiece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) cost[i] = std::exp(logits[i]);
  });
  std::fill_n(factors, experts, A{1});
  A change = tokens > 0 ? 1 : 0;
  // A NaN change ends the loop too.
  for (int round = 0; change > static_cast<A>(kTolerance) && round < kSinkhornRounds; ++round) {
    change = sinkhorn_round(stream, cost, tokens, experts, parts, factors);
  }
  for (std::int64_t e = 0; e < experts; ++e) factors[e] = std::log(factors[e]);
}
}  // namespace

void sinkhorn(const Stream& stream, const SinkhornArgs& args) {
  BEV_CHECK(args.logits.shape.ndim() == 2 && args.bias.shape == Shape({args.logits.shape[1]}) &&
                args.bias.dtype == args.logits.dtype,
            ErrorKind::kInternal, "sinkhorn: logits ", args.logits.shape, ", bias ",
            args.bias.shape);
  if (args.logits.dtype == Dtype::kF64) return sinkhorn_of<double>(stream, args);
  BEV_CHECK(args.logits.dtype == Dtype::kF32, ErrorKind::kInternal, "sinkhorn: logits are ",
            name_of(args.logits.dtype));
  sinkhorn_of<float>(stream, args);
}

}  // namespace bev::cpu::BEV_CPU_LEVEL
