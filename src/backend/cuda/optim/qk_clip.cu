// QK-clip: rows of query and key weights times powers of eta.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/optim/flat_range.cuh"
#include "backend/cuda/optim/optim_launchers.h"

namespace bev::cuda {

namespace {

struct QkClip {
  FlatRange main, values;
  std::int64_t first, count, columns;
  const std::int32_t* groups;
  const double* powers;
  const float* max_logits;
  std::int64_t group_heads;
  double threshold;
  const StepState* state;
};

__device__ float row_factor(const QkClip& args, std::int64_t row) {
  const float* logits = args.max_logits + args.groups[row] * args.group_heads;
  float largest = 0;
  for (std::int64_t h = 0; h < args.group_heads; ++h) largest = fmaxf(largest, logits[h]);
  if (!(largest > args.threshold)) return 1;
  return static_cast<float>(pow(args.threshold / static_cast<double>(largest), args.powers[row]));
}

// A block per row of the weight. Most rows are left as they are, and then nothing is read of them.
__global__ void __launch_bounds__(kThreads) qk_clip_kernel(QkClip args) {
  const std::int64_t row = args.first / args.columns + blockIdx.x;
  if (args.state->skip != 0 || args.groups[row] < 0) return;
  const float factor = row_factor(args, row);
  if (factor == 1) return;
  const std::int64_t begin = max(std::int64_t{0}, row * args.columns - args.first);
  const std::int64_t end = min(args.count, (row + 1) * args.columns - args.first);
  for (std::int64_t at = begin + threadIdx.x; at < end; at += kThreads) {
    Pack<float, 1> main = args.main.widened<1>(args.main.load<1>(at));
    main.set(0, factor * main[0]);
    args.main.store<1>(at, main);
    if (args.values.data != nullptr) args.values.store<1>(at, main);
  }
}

}  // namespace

void qk_clip(const Stream& stream, const QkClipArgs& args) {
  const std::int64_t count = args.main.numel();
  if (count == 0) return;
  const QkClip work{.main = flat_range("qk clip", args.main),
                    .values = copy_range("qk clip", args.main, args.values),
                    .first = args.first,
                    .count = count,
                    .columns = args.columns,
                    .groups = args.groups,
                    .powers = args.powers,
                    .max_logits = address<float>(args.max_logits),
                    .group_heads = args.group_heads,
                    .threshold = args.threshold,
                    .state = args.state};
  const std::int64_t rows = ceil_div(args.first + count, args.columns) - args.first / args.columns;
  qk_clip_kernel<<<static_cast<unsigned>(rows), kThreads, 0, queue_of(stream).stream()>>>(work);
  check_launch("qk clip");
}

}  // namespace bev::cuda
