// Rotary position embedding (RoPE): tables and in-place rotation.
#include "kernels/rope.h"

#include <cmath>

#include "backend/cpu/kernels/math.h"
#include "backend/cpu/kernels/pieces.h"
#include "backend/cpu/kernels/tables.h"
#include "base/error.h"

namespace bev::cpu::BEV_CPU_LEVEL {

namespace {

double growth_at(const PositionScale& growth, std::int32_t position) {
  const std::int64_t periods = (position + growth.shift) / growth.period;
  return 1 + growth.beta * std::log1p(static_cast<double>(periods));
}

template <class A>
void fill_table(const Stream& stream, const RopeTableArgs& args) {
  const std::int64_t width = args.cos_sin.shape[1], half = width / 2;
  A* table = args.cos_sin.as<A>();
  for_ranges(stream, args.cos_sin.shape[0], rows_per_piece(width * 16),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t t = begin; t < end; ++t) {
                 A* row = table + t * width;
                 const double scale = args.scale * growth_at(args.growth, args.positions[t]);
                 for (std::int64_t i = 0; i < half; ++i) {
                   const A angle =
                       static_cast<A>(args.frequencies[i]) * static_cast<A>(args.positions[t]);
                   row[i] = static_cast<A>(std::cos(double{angle}) * scale);
                   row[half + i] = static_cast<A>(std::sin(double{angle}) * scale);
                 }
               }
             });
}

// Pairs (i, i + half) of one head.
template <class T, class A>
BEV_INLINE void rotate_halves(std::int64_t half, const A* __restrict cosine,
                              const A* __restrict sine, A sign, T* __restrict head) {
  T* __restrict upper = head + half;
  for (std::int64_t i = 0; i < half; ++i) {
    const A a = widen(head[i]), b = widen(upper[i]), s = sign * sine[i];
    head[i] = narrow<T>(a * cosine[i] - b * s);
    upper[i] = narrow<T>(b * cosine[i] + a * s);
  }
}

// Pairs (2i, 2i + 1) of one head.
template <class T, class A>
BEV_INLINE void rotate_neighbours(std::int64_t half, const A* __restrict cosine,
                                  const A* __restrict sine, A sign, T* __restrict head) {
  for (std::int64_t i = 0; i < half; ++i) {
    const A a = widen(head[2 * i]), b = widen(head[2 * i + 1]), s = sign * sine[i];
    head[2 * i] = narrow<T>(a * cosine[i] - b * s);
    head[2 * i + 1] = narrow<T>(b * cosine[i] + a * s);
  }
}

template <class T>
void apply_rope(const Stream& stream, const RopeApplyArgs& args) {
  using A = accumulate_t<T>;
  const std::int64_t row = args.x.shape.row_numel(), width = args.cos_sin.shape[1];
  const std::int64_t half = width / 2;
  T* x = args.x.as<T>();
  const A* table = args.cos_sin.as<A>();
  const A sign = args.inverse ? -1 : 1;
  for_ranges(stream, args.x.shape[0], rows_per_piece(args.heads * width),
             [&](std::int64_t begin, std::int64_t end) {
               for (std::int64_t t = begin; t < end; ++t) {
                 const A* cosine = table + t * width;
                 for (std::int64_t h = 0; h < args.heads; ++h) {
                   T* head = x + t * row + h * args.head_size + args.begin;
                   if (args.interleaved) {
                     rotate_neighbours(half, cosine, cosine + half, sign, head);
                   } else {
                     rotate_halves(half, cosine, cosine + half, sign, head);
                   }
                 }
               }
             });
}

void rope_table(const Stream& stream, const RopeTableArgs& args) {
  if (args.cos_sin.numel() == 0) return;
  if (args.cos_sin.dtype == Dtype::kF64) {
    fill_table<double>(stream, args);
  } else {
    fill_table<float>(stream, args);
  }
}

void rope_apply(const Stream& stream, const RopeApplyArgs& args) {
  BEV_CHECK(args.cos_sin.shape[1] % 2 == 0 && args.begin + args.cos_sin.shape[1] <= args.head_size,
            "rope: table ", to_text(args.cos_sin.shape), " from ", args.begin, " on of head size ",
            args.head_size);
  visit_float(args.x.dtype, [&](auto zero) { apply_rope<decltype(zero)>(stream, args); });
}

}  // namespace

RopeKernels kernel_table(Family<RopeKernels>) { return {.table = rope_table, .apply = rope_apply}; }

}  // namespace bev::cpu::BEV_CPU_LEVEL
