#include "backend/cuda/grid.cuh"
#include "backend/cuda/optim_parts.h"
#include "backend/cuda/random.cuh"
#include "backend/cuda/reduce.cuh"
#include "backend/cuda/tables.h"
#include "backend/cuda/values.cuh"
#include "kernels/optim.h"

namespace bev {

namespace cuda {
namespace {

// A flat range of any floating dtype. The branch on it is the same for all threads, which costs a
// memory-bound kernel nothing and saves one kernel for every combination.
struct Range {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;

  template <int N>
  __device__ Pack<float, N> load(std::int64_t at) const {
    switch (dtype) {
      case Dtype::kBf16:
        return load_as<Bfloat, N>(at);
      case Dtype::kF16:
        return load_as<Half, N>(at);
      default:
        return load_as<float, N>(at);
    }
  }
  template <int N>
  __device__ void store(std::int64_t at, const Pack<float, N>& values) const {
    switch (dtype) {
      case Dtype::kBf16:
        return store_as<Bfloat, N>(at, values);
      case Dtype::kF16:
        return store_as<Half, N>(at, values);
      default:
        return store_as<float, N>(at, values);
    }
  }

 private:
  template <class T, int N>
  __device__ Pack<float, N> load_as(std::int64_t at) const {
    Pack<T, N> pack;
    pack.load(static_cast<const T*>(data) + at);
    Pack<float, N> values;
#pragma unroll
    for (int i = 0; i < N; ++i) values.set(i, pack[i]);
    return values;
  }
  template <class T, int N>
  __device__ void store_as(std::int64_t at, const Pack<float, N>& values) const {
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.set(i, values[i]);
    pack.store(static_cast<T*>(data) + at);
  }
};

// Elements of an access: 16 bytes of f32, 8 of bf16.
constexpr int kWide = 4;

Range range_of(const char* op, const View& view, bool half_too = false) {
  const bool known = view.dtype == Dtype::kF32 || view.dtype == Dtype::kBf16 ||
                     (half_too && view.dtype == Dtype::kF16);
  BEV_CHECK(view.empty() || known, ErrorKind::kDevice, "CUDA: ", op, ": ", name_of(view.dtype),
            " is not computed with; f32 and bf16 are");
  return {view.data, view.dtype};
}
bool in_wide(const Range& range) {
  return reinterpret_cast<std::uintptr_t>(range.data) % (kWide * size_of(range.dtype)) == 0;
}

// How a step changes an element: main = keep main - step m / (sqrt(v) root + epsilon).
struct AdamFactors {
  float multiplier, decay, beta1, rest1, beta2, rest2, keep, step, root, epsilon;
};

struct Adam {
  Range main, grad, m, v, values;
  const StepState* state;
  double lr_mult, wd_mult, beta1, beta2, epsilon;
  bool decoupled;
  std::uint64_t random_stream;
  std::int64_t first, count;

  __device__ AdamFactors factors() const {
    const double update = static_cast<double>(state->update);
    const double lr = state->lr * lr_mult, decay = state->weight_decay * wd_mult;
    return {.multiplier = static_cast<float>(state->grad_multiplier),
            .decay = static_cast<float>(decoupled ? 0 : decay),
            .beta1 = static_cast<float>(beta1),
            .rest1 = static_cast<float>(1 - beta1),
            .beta2 = static_cast<float>(beta2),
            .rest2 = static_cast<float>(1 - beta2),
            .keep = static_cast<float>(decoupled ? 1 - lr * decay : 1),
            .step = static_cast<float>(lr / (1 - pow(beta1, update))),
            .root = static_cast<float>(1 / sqrt(1 - pow(beta2, update))),
            .epsilon = static_cast<float>(epsilon)};
  }
};

// splitmix64, as mix_bits of base/philox.h.
__device__ std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Words of the N elements from `element` on, which may lie in two blocks of the generator.
template <int N>
__device__ void draw(std::uint64_t element, std::uint64_t key, std::uint32_t (&words)[N]) {
  const int shift = static_cast<int>(element % 4);
  const uint4 front = philox_block(element / 4, key);
  const uint4 back = shift + N > 4 ? philox_block(element / 4 + 1, key) : front;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    words[i] = word_of(shift + i < 4 ? front : back, (shift + i) % 4);
  }
}

template <int N>
__device__ void adam_pack(const Adam& args, const AdamFactors& f, std::int64_t at,
                          std::uint64_t key) {
  Pack<float, N> main = args.main.load<N>(at), m = args.m.load<N>(at), v = args.v.load<N>(at);
  const Pack<float, N> grad = args.grad.load<N>(at);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float g = grad[i] * f.multiplier + f.decay * main[i];
    m.set(i, f.beta1 * m[i] + f.rest1 * g);
    v.set(i, f.beta2 * v[i] + f.rest2 * g * g);
    main.set(i, f.keep * main[i] - f.step * m[i] / (sqrtf(v[i]) * f.root + f.epsilon));
  }
  const bool round_main = args.main.dtype == Dtype::kBf16, round_v = args.v.dtype == Dtype::kBf16;
  if (round_main || round_v) {
    std::uint32_t words[N];
    draw<N>(static_cast<std::uint64_t>(args.first + at), key, words);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (round_main) main.set(i, round_stochastic(main[i], words[i] & 0xffffu));
      if (round_v) v.set(i, round_stochastic(v[i], words[i] >> 16));
    }
  }
  args.main.store<N>(at, main);
  args.m.store<N>(at, m);
  args.v.store<N>(at, v);
  if (args.values.data != nullptr) args.values.store<N>(at, main);
}

// Of a multiprocessor at a time; the grid is as many, so that all end together.
constexpr int kAdamBlocks = 4;

// Reads main, grad, m and v once, writes main, m, v and values once: 30 bytes per element of a bf16
// model with everything else in f32. The factors are computed once by a block, which goes through
// many packs.
template <int N>
__global__ void __launch_bounds__(kThreads, kAdamBlocks) adam_kernel(Adam args) {
  __shared__ AdamFactors shared;
  if (args.state->skip != 0) return;
  if (threadIdx.x == 0) shared = args.factors();
  __syncthreads();
  const AdamFactors factors = shared;
  const std::uint64_t key = mix(mix(args.state->random_key) ^ args.random_stream);
  for (std::int64_t pack = own_pack(); pack < args.count / N;
       pack += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    adam_pack<N>(args, factors, pack * N, key);
  }
  if constexpr (N > 1) {
    const std::int64_t rest = args.count / N * N + own_pack();
    if (rest < args.count) adam_pack<1>(args, factors, rest, key);
  }
}

struct Sgd {
  Range main, grad, m, values;
  const StepState* state;
  double lr_mult, wd_mult;
  float momentum;
  std::int64_t count;
};

template <int N>
__device__ void sgd_pack(const Sgd& args, std::int64_t at) {
  const float multiplier = static_cast<float>(args.state->grad_multiplier);
  const float decay = static_cast<float>(args.state->weight_decay * args.wd_mult);
  const float lr = static_cast<float>(args.state->lr * args.lr_mult);
  const bool keeps = args.m.data != nullptr, starts = args.state->update <= 1;
  Pack<float, N> main = args.main.load<N>(at), m;
  const Pack<float, N> grad = args.grad.load<N>(at);
  if (keeps && !starts) m = args.m.load<N>(at);
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

// Reads main, grad and m once, writes main, m and values once.
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

void check_sizes(const char* op, const View& main, const View& grad, const View& values) {
  BEV_CHECK(main.numel() == grad.numel() && (values.empty() || values.numel() == main.numel()), op,
            ": main ", main.shape, ", grad ", grad.shape, ", values ", values.shape);
}

// The model's copy, where it is not main itself.
Range copy_of(const char* op, const View& main, const View& values) {
  return values.data == main.data ? Range{} : range_of(op, values, true);
}

void adam(const Stream& stream, const AdamArgs& args) {
  check_sizes("adam", args.main, args.grad, args.values);
  BEV_CHECK(args.m.numel() == args.main.numel() && args.v.numel() == args.main.numel(), "adam: m ",
            args.m.shape, ", v ", args.v.shape, ", main ", args.main.shape);
  CudaQueue& queue = queue_of(stream);
  const Adam work{.main = range_of("adam", args.main),
                  .grad = range_of("adam", args.grad),
                  .m = range_of("adam", args.m),
                  .v = range_of("adam", args.v),
                  .values = copy_of("adam", args.main, args.values),
                  .state = args.state,
                  .lr_mult = args.lr_mult,
                  .wd_mult = args.wd_mult,
                  .beta1 = args.beta1,
                  .beta2 = args.beta2,
                  .epsilon = args.epsilon,
                  .decoupled = args.decoupled,
                  .random_stream = args.random_stream,
                  .first = args.first,
                  .count = args.main.numel()};
  if (work.count == 0) return;
  const bool wide = in_wide(work.main) && in_wide(work.grad) && in_wide(work.m) &&
                    in_wide(work.v) && in_wide(work.values);
  const std::int64_t resident = std::int64_t{queue.multiprocessors()} * kAdamBlocks;
  const std::int64_t packs = ceil_div(work.count, wide ? kWide : 1);
  const auto blocks = static_cast<unsigned>(std::min(ceil_div(packs, kThreads), resident));
  const auto kernel = wide ? adam_kernel<kWide> : adam_kernel<1>;
  kernel<<<blocks, kThreads, 0, queue.stream()>>>(work);
  check_launch("adam");
}

void sgd(const Stream& stream, const SgdArgs& args) {
  check_sizes("sgd", args.main, args.grad, args.values);
  BEV_CHECK(args.m.empty() || args.m.numel() == args.main.numel(), "sgd: m ", args.m.shape,
            ", main ", args.main.shape);
  BEV_CHECK(args.main.dtype == Dtype::kF32 && (args.m.empty() || args.m.dtype == Dtype::kF32),
            ErrorKind::kDevice, "CUDA: sgd: main and m must be f32, are ", name_of(args.main.dtype),
            " and ", name_of(args.m.dtype));
  const Sgd work{.main = range_of("sgd", args.main),
                 .grad = range_of("sgd", args.grad),
                 .m = range_of("sgd", args.m),
                 .values = copy_of("sgd", args.main, args.values),
                 .state = args.state,
                 .lr_mult = args.lr_mult,
                 .wd_mult = args.wd_mult,
                 .momentum = static_cast<float>(args.momentum),
                 .count = args.main.numel()};
  if (work.count == 0) return;
  const bool wide =
      in_wide(work.main) && in_wide(work.grad) && in_wide(work.m) && in_wide(work.values);
  const std::int64_t packs = ceil_div(work.count, wide ? kWide : 1);
  const auto kernel = wide ? sgd_kernel<kWide> : sgd_kernel<1>;
  kernel<<<static_cast<unsigned>(ceil_div(packs, kThreads)), kThreads, 0,
           queue_of(stream).stream()>>>(work);
  check_launch("sgd");
}

}  // namespace
}  // namespace cuda

OptimKernels cuda_optim_kernels() {
  return {.adam = cuda::adam,
          .sgd = cuda::sgd,
          .sum_squares = cuda::sum_squares,
          .clip = cuda::clip,
          .normal = cuda::normal};
}

}  // namespace bev
