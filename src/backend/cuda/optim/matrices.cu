// Lion, and the elementwise parts of optimizers of whole matrices.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/optim/flat_range.cuh"
#include "backend/cuda/optim/optim_launchers.h"

namespace bev::cuda {

namespace {

// Elements per access.
constexpr int kWide = 4;

// Calls work.run<N>(first element) for packs of N elements, and for those left over one by one.
// Memory bound.
template <int N, class Work>
__global__ void __launch_bounds__(kThreads) flat_kernel(Work work) {
  if (work.state->skip != 0) return;
  const std::int64_t pack = own_pack();
  if (pack < work.count / N) work.template run<N>(pack * N);
  if constexpr (N > 1) {
    const std::int64_t rest = work.count / N * N + pack;
    if (rest < work.count) work.template run<1>(rest);
  }
}

template <class Work>
void launch(const Stream& stream, const char* op, const Work& work, bool wide) {
  if (work.count == 0) return;
  const std::int64_t packs = ceil_div(work.count, wide ? kWide : 1);
  const auto kernel = wide ? flat_kernel<kWide, Work> : flat_kernel<1, Work>;
  kernel<<<static_cast<unsigned>(ceil_div(packs, kThreads)), kThreads, 0,
           queue_of(stream).stream()>>>(work);
  check_launch(op);
}

void check_counts(const char* op, const View& main, const View& other, const View& values) {
  BEV_CHECK(main.numel() == other.numel() && (values.empty() || values.numel() == main.numel()), op,
            ": ", main.shape, ", ", other.shape, ", values ", values.shape);
}

void check_single(const char* op, const View& main) {
  BEV_CHECK(main.empty() || main.dtype == Dtype::kF32, ErrorKind::kDevice, "CUDA: ", op,
            ": master weights and moments must be f32, are ", name_of(main.dtype));
}

struct Lion {
  FlatRange main, grad, m, values;
  const StepState* state;
  double lr_mult, wd_mult;
  int lr_index;
  float rest1, rest2;
  std::int64_t count;

  template <int N>
  __device__ void run(std::int64_t at) const {
    const double lr = state->lr.values[lr_index] * lr_mult;
    const float multiplier = static_cast<float>(state->grad_multiplier);
    const float keep = static_cast<float>(1 - lr * state->weight_decay * wd_mult);
    const float rate = static_cast<float>(lr);
    Pack<float, N> weight = main.widened<N>(main.load<N>(at)), moment = m.widened<N>(m.load<N>(at));
    const Pack<float, N> gradient = grad.widened<N>(grad.load<N>(at));
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = gradient[i] * multiplier;
      const float mixed = moment[i] + rest1 * (g - moment[i]);
      const float sign = static_cast<float>((mixed > 0) - (mixed < 0));
      weight.set(i, keep * weight[i] - rate * sign);
      moment.set(i, moment[i] + rest2 * (g - moment[i]));
    }
    main.store<N>(at, weight);
    m.store<N>(at, moment);
    if (values.data != nullptr) values.store<N>(at, weight);
  }
};

struct Direction {
  FlatRange grad, m, out;
  const StepState* state;
  float momentum, rest;
  bool nesterov;
  std::int64_t count;

  template <int N>
  __device__ void run(std::int64_t at) const {
    const float multiplier = static_cast<float>(state->grad_multiplier);
    Pack<float, N> to = grad.widened<N>(grad.load<N>(at));
    if (m.data == nullptr) {
#pragma unroll
      for (int i = 0; i < N; ++i) to.set(i, to[i] * multiplier);
      return out.store<N>(at, to);
    }
    Pack<float, N> moment = m.widened<N>(m.load<N>(at));
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = to[i] * multiplier;
      moment.set(i, moment[i] + rest * (g - moment[i]));
      to.set(i, nesterov ? g + momentum * (moment[i] - g) : moment[i]);
    }
    m.store<N>(at, moment);
    out.store<N>(at, to);
  }
};

struct MatrixUpdate {
  FlatRange main, update, values;
  const StepState* state;
  double lr_mult, wd_mult, factor;
  int lr_index;
  bool update_has_lr;
  std::int64_t count;

  template <int N>
  __device__ void run(std::int64_t at) const {
    const double lr = state->lr.values[lr_index] * lr_mult;
    const float keep = static_cast<float>(1 - lr * state->weight_decay * wd_mult);
    const float rate = static_cast<float>(update_has_lr ? factor : lr * factor);
    Pack<float, N> weight = main.widened<N>(main.load<N>(at));
    const Pack<float, N> by = update.widened<N>(update.load<N>(at));
#pragma unroll
    for (int i = 0; i < N; ++i) weight.set(i, keep * weight[i] - rate * by[i]);
    main.store<N>(at, weight);
    if (values.data != nullptr) values.store<N>(at, weight);
  }
};

__global__ void inverse_norm_kernel(const double* square_sum, double least, float* factor) {
  factor[0] = static_cast<float>(1 / fmax(sqrt(*square_sum), least));
}

bool all_in_packs(std::initializer_list<FlatRange> ranges) {
  for (const FlatRange& range : ranges) {
    if (!in_packs(range, kWide)) return false;
  }
  return true;
}

}  // namespace

void lion(const Stream& stream, const LionArgs& args) {
  check_counts("lion", args.main, args.grad, args.values);
  check_counts("lion", args.main, args.m, {});
  check_single("lion", args.main);
  check_single("lion", args.m);
  const Lion work{.main = flat_range("lion", args.main),
                  .grad = flat_range("lion", args.grad),
                  .m = flat_range("lion", args.m),
                  .values = copy_range("lion", args.main, args.values),
                  .state = args.state,
                  .lr_mult = args.lr_mult,
                  .wd_mult = args.wd_mult,
                  .lr_index = args.lr_index,
                  .rest1 = static_cast<float>(1 - args.beta1),
                  .rest2 = static_cast<float>(1 - args.beta2),
                  .count = args.main.numel()};
  launch(stream, "lion", work, all_in_packs({work.main, work.grad, work.m, work.values}));
}

void direction(const Stream& stream, const DirectionArgs& args) {
  check_counts("direction", args.out, args.grad, args.m);
  check_single("direction", args.m);
  const Direction work{.grad = flat_range("direction", args.grad),
                       .m = flat_range("direction", args.m),
                       .out = flat_range("direction", args.out),
                       .state = args.state,
                       .momentum = static_cast<float>(args.momentum),
                       .rest = static_cast<float>(1 - args.momentum),
                       .nesterov = args.nesterov,
                       .count = args.out.numel()};
  launch(stream, "direction", work, all_in_packs({work.grad, work.m, work.out}));
}

void matrix_update(const Stream& stream, const MatrixUpdateArgs& args) {
  check_counts("matrix update", args.main, args.update, args.values);
  check_single("matrix update", args.main);
  const MatrixUpdate work{.main = flat_range("matrix update", args.main),
                          .update = flat_range("matrix update", args.update),
                          .values = copy_range("matrix update", args.main, args.values),
                          .state = args.state,
                          .lr_mult = args.lr_mult,
                          .wd_mult = args.wd_mult,
                          .factor = args.factor,
                          .lr_index = args.lr_index,
                          .update_has_lr = args.update_has_lr,
                          .count = args.main.numel()};
  launch(stream, "matrix update", work, all_in_packs({work.main, work.update, work.values}));
}

void inverse_norm(const Stream& stream, const double* square_sum, double least,
                  const View& factor) {
  inverse_norm_kernel<<<1, 1, 0, queue_of(stream).stream()>>>(square_sum, least,
                                                              factor.as<float>());
  check_launch("inverse norm");
}

}  // namespace bev::cuda
