// SGD and sign updates, and the table of optimizer kernels.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/optim/flat_range.cuh"
#include "backend/cuda/optim/optim_launchers.h"
#include "backend/cuda/tables.h"

namespace bev {

namespace cuda {
namespace {

// Elements per access.
constexpr int kWide = 4;

struct Sgd {
  FlatRange main, grad, m, values;
  const StepState* state;
  double lr_mult, wd_mult;
  int lr_index;
  float momentum;
  std::int64_t count;
};

template <int N>
__device__ void sgd_pack(const Sgd& args, std::int64_t at) {
  const float multiplier = static_cast<float>(args.state->grad_multiplier);
  const float decay = static_cast<float>(args.state->weight_decay * args.wd_mult);
  const float lr = static_cast<float>(args.state->lr.values[args.lr_index] * args.lr_mult);
  const bool keeps = args.m.data != nullptr, starts = args.state->update <= 1;
  Pack<float, N> main = args.main.widened<N>(args.main.load<N>(at)), m;
  const Pack<float, N> grad = args.grad.widened<N>(args.grad.load<N>(at));
  if (keeps && !starts) m = args.m.widened<N>(args.m.load<N>(at));
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float g = grad[i] * multiplier + decay * main[i];
    m.set(i, keeps && !starts ? args.momentum * m[i] + g : g);
    main.set(i, main[i] - lr * m[i]);
  }
  args.main.store<N>(at, main);
  if (keeps) args.m.store<N>(at, m);
  if (args.values.data != nullptr) args.values.store<N>(at, main);
}

// Memory bound: reads main, grad and m once, writes main, m and values once.
template <int N>
__global__ void __launch_bounds__(kThreads) sgd_kernel(Sgd args) {
  if (args.state->skip != 0) return;
  const std::int64_t pack = own_pack();
  if (pack < args.count / N) sgd_pack<N>(args, pack * N);
  if constexpr (N > 1) {
    const std::int64_t rest = args.count / N * N + pack;
    if (rest < args.count) sgd_pack<1>(args, rest);
  }
}

void sgd(const Stream& stream, const SgdArgs& args) {
  BEV_CHECK(args.main.numel() == args.grad.numel() &&
                (args.m.empty() || args.m.numel() == args.main.numel()) &&
                (args.values.empty() || args.values.numel() == args.main.numel()),
            "sgd: main ", args.main.shape, ", grad ", args.grad.shape, ", m ", args.m.shape,
            ", values ", args.values.shape);
  BEV_CHECK(args.main.dtype == Dtype::kF32 && (args.m.empty() || args.m.dtype == Dtype::kF32),
            ErrorKind::kDevice, "CUDA: sgd: main and m must be f32, are ", name_of(args.main.dtype),
            " and ", name_of(args.m.dtype));
  const Sgd work{.main = flat_range("sgd", args.main),
                 .grad = flat_range("sgd", args.grad),
                 .m = flat_range("sgd", args.m),
                 .values = copy_range("sgd", args.main, args.values),
                 .state = args.state,
                 .lr_mult = args.lr_mult,
                 .wd_mult = args.wd_mult,
                 .lr_index = args.lr_index,
                 .momentum = static_cast<float>(args.momentum),
                 .count = args.main.numel()};
  if (work.count == 0) return;
  const bool wide = in_packs(work.main, kWide) && in_packs(work.grad, kWide) &&
                    in_packs(work.m, kWide) && in_packs(work.values, kWide);
  const std::int64_t packs = ceil_div(work.count, wide ? kWide : 1);
  const auto kernel = wide ? sgd_kernel<kWide> : sgd_kernel<1>;
  kernel<<<static_cast<unsigned>(ceil_div(packs, kThreads)), kThreads, 0,
           queue_of(stream).stream()>>>(work);
  check_launch("sgd");
}

struct Sign {
  FlatRange main, grad, values;
  const StepState* state;
  float rate;
  std::int64_t count;
};

__global__ void __launch_bounds__(kThreads) sign_kernel(Sign args) {
  const std::int64_t at = own_pack();
  if (args.state->skip != 0 || at >= args.count) return;
  Pack<float, 1> main = args.main.widened<1>(args.main.load<1>(at));
  const float grad = args.grad.widened<1>(args.grad.load<1>(at))[0];
  main.set(0, main[0] - args.rate * static_cast<float>((grad > 0) - (grad < 0)));
  args.main.store<1>(at, main);
  if (args.values.data != nullptr) args.values.store<1>(at, main);
}

void sign(const Stream& stream, const SignArgs& args) {
  BEV_CHECK(args.main.numel() == args.grad.numel() && args.values.numel() == args.main.numel(),
            "sign: main ", args.main.shape, ", grad ", args.grad.shape, ", values ",
            args.values.shape);
  const Sign work{.main = flat_range("sign", args.main),
                  .grad = flat_range("sign", args.grad),
                  .values = copy_range("sign", args.main, args.values),
                  .state = args.state,
                  .rate = static_cast<float>(args.rate),
                  .count = args.main.numel()};
  if (work.count == 0) return;
  sign_kernel<<<static_cast<unsigned>(ceil_div(work.count, kThreads)), kThreads, 0,
                queue_of(stream).stream()>>>(work);
  check_launch("sign");
}

}  // namespace
}  // namespace cuda

OptimKernels cuda_table(Family<OptimKernels>) {
  return {.adam = cuda::adam,
          .sgd = cuda::sgd,
          .lion = cuda::lion,
          .direction = cuda::direction,
          .matrix_update = cuda::matrix_update,
          .inverse_norm = cuda::inverse_norm,
          .sign = cuda::sign,
          .sum_squares = cuda::sum_squares,
          .count_zeros = cuda::count_zeros,
          .clip = cuda::clip,
          .qk_clip = cuda::qk_clip,
          .normal = cuda::normal};
}

}  // namespace bev
