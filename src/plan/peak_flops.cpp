#include "plan/peak_flops.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "kernels/device.h"
#include "kernels/gemm.h"
#include "kernels/optim.h"

namespace bev {

namespace {
// Time of a square GEMM, the best of a few runs.
double gemm_seconds(Context& ctx, std::int64_t size) {
  constexpr int kTries = 4;
  Tensor a = ctx.allocate(ctx.dtype, {size, size}, "peak");
  Tensor b = ctx.allocate(ctx.dtype, {size, size}, "peak");
  Tensor c = ctx.allocate(ctx.dtype, {size, size}, "peak");
  ctx.kernels.optim.normal(ctx.stream, {.x = a.view().flat(), .key = 1});
  ctx.kernels.optim.normal(ctx.stream, {.x = b.view().flat(), .key = 2});
  std::vector<std::byte> corner(size_of(ctx.dtype));
  auto wait = [&] {
    ctx.kernels.device.fetch(ctx.stream, c.view().flat().rows(0, 1), corner.data()).wait();
  };
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries; ++i) {
    wait();
    double begin = monotonic_seconds();
    ctx.kernels.gemm.gemm(ctx.stream, {.a = a, .b = b, .c = c, .transpose_b = true});
    wait();
    best = std::min(best, monotonic_seconds() - begin);
  }
  return best;
}
}  // namespace

double measure_peak_flops(Context& ctx) {
  constexpr std::int64_t kSmallest = 768, kLargest = 8 * kSmallest;
  constexpr double kLongEnough = 1e-3;  // for the clock, and to fill the device
  std::int64_t size = kSmallest;
  double seconds = gemm_seconds(ctx, size);
  while (seconds < kLongEnough && size < kLargest) {
    size *= 2;
    seconds = gemm_seconds(ctx, size);
  }
  auto edge = static_cast<double>(size);
  return 2 * edge * edge * edge / seconds;
}

}  // namespace bev
