#include "optim/newton_schulz.h"

#include <algorithm>
#include <span>
#include <utility>

#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/optim.h"

namespace bev {

namespace {

struct Step {
  double a, b, c;
};
// After the last step, a set begins again or repeats it.
struct Coefficients {
  std::span<const Step> steps;
  bool repeats_last;
};

// The sets of NVIDIA's emerging-optimizers.
constexpr Step kSimple[] = {{3.4445, -4.7750, 2.0315}};
constexpr Step kQuintic[] = {{4.0848, -6.8946, 2.9270},
                             {3.9505, -6.3029, 2.6377},
                             {3.7418, -5.5913, 2.3037},
                             {2.8769, -3.1427, 1.2046},
                             {2.8366, -3.0525, 1.2012}};
constexpr Step kPolarExpress[] = {{8.2051, -22.9019, 16.4607}, {4.0664, -2.8612, 0.5184},
                                  {3.9096, -2.8234, 0.5250},   {3.2856, -2.4153, 0.4853},
                                  {2.2779, -1.6198, 0.3985},   {1.8726, -1.2307, 0.3585},
                                  {1.8564, -1.2132, 0.3568},   {1.8750, -1.2500, 0.3750}};
constexpr Step kCans[] = {{8.4703, -25.1081, 18.6293},
                          {4.1828, -3.1087, 0.5806},
                          {3.9619, -2.9541, 0.5630},
                          {3.2866, -2.4647, 0.5074},
                          {2.2737, -1.6447, 0.4162}};
constexpr Step kAol[] = {{4.0098, -7.0585, 2.4635},
                         {3.4585, -5.5479, 2.5959},
                         {2.7573, -3.2939, 1.4254},
                         {2.7215, -3.0494, 1.3169}};
constexpr Step kDeepseekEnd[] = {{2.0, -1.5, 0.5}};
// Steps of kSimple before those of kDeepseekEnd.
constexpr std::int64_t kDeepseekSimple = 8;

Coefficients coefficients(NewtonSchulzKind kind) {
  switch (kind) {
    case NewtonSchulzKind::kSimple:
      return {kSimple, false};
    case NewtonSchulzKind::kPolarExpress:
      return {kPolarExpress, true};
    case NewtonSchulzKind::kCans:
      return {kCans, true};
    case NewtonSchulzKind::kAol:
      return {kAol, false};
    case NewtonSchulzKind::kDeepseekV4:
      return {kDeepseekEnd, true};
    case NewtonSchulzKind::kQuintic:
      break;
  }
  return {kQuintic, false};
}

Step step_at(NewtonSchulzKind kind, std::int64_t index) {
  if (kind == NewtonSchulzKind::kDeepseekV4 && index < kDeepseekSimple) return kSimple[0];
  const Coefficients set = coefficients(kind);
  const auto count = static_cast<std::int64_t>(set.steps.size());
  const std::int64_t at = set.repeats_last ? std::min(index, count - 1) : index % count;
  return set.steps[static_cast<std::size_t>(at)];
}

// x /= its Frobenius norm, over all parts.
void normalise(Context& ctx, const View& x, Group& parts, bool split) {
  constexpr double kLeastNorm = 1e-7;
  Tensor sum = ctx.allocate(Dtype::kF64, {1}, "matrix update");
  Tensor factor = ctx.allocate(wide_of(x.dtype), {1}, "matrix update");
  ctx.kernels.fill(ctx.stream, sum, 0);
  ctx.kernels.optim.sum_squares(ctx.stream, {&x, 1}, sum.as<double>());
  if (split) parts.all_reduce(sum, Reduction::kSum, "norm of a matrix").wait();
  ctx.kernels.optim.inverse_norm(ctx.stream, sum.as<double>(), kLeastNorm, factor);
  ctx.kernels.elementwise.scale(ctx.stream, x, factor, x);
}

// gram = X X^T, or X^T X if the products are on the right.
void multiply_gram(Context& ctx, const View& x, bool right, Group& parts, bool split,
                   const View& gram) {
  GemmArgs product{.a = x, .b = x, .c = gram, .transpose_a = right, .transpose_b = !right};
  if (!split) return ctx.kernels.gemm.gemm(ctx.stream, product);
  // Parts are summed in f32.
  Tensor sum = ctx.allocate(wide_of(x.dtype), gram.shape, "matrix update");
  product.c = sum;
  ctx.kernels.gemm.gemm(ctx.stream, product);
  parts.all_reduce(sum, Reduction::kSum, "Gram matrix").wait();
  ctx.kernels.cast(ctx.stream, sum, gram);
}

}  // namespace

void orthogonalise(Context& ctx, const NewtonSchulz& rule, const View& x, Group& parts, int split) {
  const bool is_split = split >= 0 && parts.size() > 1;
  // A sum of parts' Gram matrices is over the dim that is split.
  const bool right = is_split ? split == 0 : x.shape[0] > x.shape[1];
  const std::int64_t size = x.shape[right ? 1 : 0];
  normalise(ctx, x, parts, is_split);
  Tensor gram = ctx.allocate(x.dtype, {size, size}, "matrix update");
  Tensor factor = ctx.allocate(x.dtype, {size, size}, "matrix update");
  Tensor other = ctx.allocate(x.dtype, x.shape, "matrix update");
  View from = x, to = other;
  for (std::int64_t i = 0; i < rule.steps; ++i) {
    const auto [a, b, c] = step_at(rule.kind, i);
    multiply_gram(ctx, from, right, parts, is_split, gram);
    ctx.kernels.cast(ctx.stream, gram, factor);
    ctx.kernels.gemm.gemm(ctx.stream, {.a = gram, .b = gram, .c = factor, .alpha = c, .beta = b});
    ctx.kernels.cast(ctx.stream, from, to);
    ctx.kernels.gemm.gemm(
        ctx.stream,
        {.a = right ? from : factor.view(), .b = right ? factor.view() : from, .c = to, .beta = a});
    std::swap(from, to);
  }
  if (from.data != x.data) ctx.kernels.cast(ctx.stream, from, x);
}

}  // namespace bev
