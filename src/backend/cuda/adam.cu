#include "backend/cuda/flat_range.cuh"
#include "backend/cuda/grid.cuh"
#include "backend/cuda/optim_parts.h"
#include "backend/cuda/random.cuh"
#include "backend/cuda/tile_batch.cuh"

namespace bev::cuda {

namespace {

struct AdamItem {
  FlatRange main, grad, m, v, values;
  std::int64_t count, first;
  std::uint64_t random_stream;
  double lr_mult, wd_mult;
};

// How a step changes an element: main = keep main - step m / (sqrt(v) root + epsilon).
struct AdamFactors {
  std::uint64_t random_key;
  float multiplier, decay, beta1, rest1, beta2, rest2, keep, step, root, epsilon;
};

constexpr int kMostRanges = 32;

struct Adam {
  AdamRule rule;
  TileBatch<AdamItem, kMostRanges> batch;
};
static_assert(sizeof(Adam) <= 4096, "the most that a kernel's parameters may be everywhere");

// splitmix64, as mix_bits of base/philox.h.
__device__ std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__device__ AdamFactors factors_of(const AdamRule& rule, const AdamItem& item) {
  const StepState& state = *rule.state;
  const double update = static_cast<double>(state.update);
  const double lr = state.lr * item.lr_mult, decay = state.weight_decay * item.wd_mult;
  return {.random_key = mix(mix(state.random_key) ^ item.random_stream),
          .multiplier = static_cast<float>(state.grad_multiplier),
          .decay = static_cast<float>(rule.decoupled ? 0 : decay),
          .beta1 = static_cast<float>(rule.beta1),
          .rest1 = static_cast<float>(1 - rule.beta1),
          .beta2 = static_cast<float>(rule.beta2),
          .rest2 = static_cast<float>(1 - rule.beta2),
          .keep = static_cast<float>(rule.decoupled ? 1 - lr * decay : 1),
          .step = static_cast<float>(lr / (1 - pow(rule.beta1, update))),
          .root = static_cast<float>(1 / sqrt(1 - pow(rule.beta2, update))),
          .epsilon = static_cast<float>(rule.epsilon)};
}

// Words of the N elements from `element` on, four to a block of the generator.
template <int N>
__device__ void draw(std::uint64_t element, std::uint64_t key, std::uint32_t (&words)[N]) {
  constexpr int kBlocks = N < 4 ? 1 : N / 4;
  std::uint32_t drawn[4 * kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const uint4 block = philox_block(element / 4 + b, key);
    drawn[4 * b] = block.x;
    drawn[4 * b + 1] = block.y;
    drawn[4 * b + 2] = block.z;
    drawn[4 * b + 3] = block.w;
  }
  // A range may be cut anywhere: then the words of one more block follow.
  if (const int skipped = static_cast<int>(element % 4); skipped != 0) {
    const uint4 next = philox_block(element / 4 + kBlocks, key);
    for (int s = 0; s < skipped; ++s) {
#pragma unroll
      for (int i = 0; i + 1 < 4 * kBlocks; ++i) drawn[i] = drawn[i + 1];
      drawn[4 * kBlocks - 1] = word_of(next, s);
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) words[i] = drawn[i];
}

// One part in 2^22 off, without the steps that make it exact.
__device__ float fast_sqrt(float x) {
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}

// The generator works while the reads are under way.
template <int N>
__device__ void adam_pack(const AdamItem& item, const AdamFactors& f, std::int64_t at) {
  const RawPack<N> raw_main = item.main.load<N>(at), raw_grad = item.grad.load<N>(at);
  const RawPack<N> raw_m = item.m.load<N>(at), raw_v = item.v.load<N>(at);
  const bool round_main = item.main.dtype == Dtype::kBf16, round_v = item.v.dtype == Dtype::kBf16;
  std::uint32_t noise[N] = {};
  if (round_main || round_v) {
    draw<N>(static_cast<std::uint64_t>(item.first + at), f.random_key, noise);
  }
  Pack<float, N> main = item.main.widened<N>(raw_main), m = item.m.widened<N>(raw_m);
  Pack<float, N> v = item.v.widened<N>(raw_v);
  const Pack<float, N> grad = item.grad.widened<N>(raw_grad);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const float g = grad[i] * f.multiplier + f.decay * main[i];
    m.set(i, f.beta1 * m[i] + f.rest1 * g);
    v.set(i, f.beta2 * v[i] + f.rest2 * g * g);
    const float divisor = fast_sqrt(v[i]) * f.root + f.epsilon;
    main.set(i, f.keep * main[i] - __fdividef(f.step * m[i], divisor));
    if (round_main) main.set(i, round_stochastic(main[i], noise[i] & 0xffffu));
    if (round_v) v.set(i, round_stochastic(v[i], noise[i] >> 16));
  }
  item.main.store<N>(at, main);
  item.m.store<N>(at, m);
  item.v.store<N>(at, v);
  if (item.values.data != nullptr) item.values.store<N>(at, main);
}

// Of a multiprocessor at a time; the grid is as many, so that all end together.
constexpr int kAdamBlocks = 4;

// Reads main, grad, m and v once, writes main, m, v and values once: 14 bytes per element with all
// of it in bf16, 30 with everything but the model in f32.
template <int N>
__global__ void __launch_bounds__(kThreads, kAdamBlocks)
    adam_kernel(const __grid_constant__ Adam args) {
  __shared__ AdamFactors factors[kMostRanges];
  if (args.rule.state->skip != 0) return;
  const int own = static_cast<int>(threadIdx.x);
  if (own < args.batch.count) factors[own] = factors_of(args.rule, args.batch.items[own]);
  __syncthreads();
  args.batch.each_tile([&](int index, std::int64_t tile) {
    const AdamItem& item = args.batch.items[index];
    const std::int64_t at = (tile * kThreads + threadIdx.x) * N;
    if (at + N <= item.count) {
      adam_pack<N>(item, factors[index], at);
    } else if constexpr (N > 1) {
      for (std::int64_t i = at; i < item.count; ++i) adam_pack<1>(item, factors[index], i);
    }
  });
}

AdamItem item_of(const AdamRange& range) {
  BEV_CHECK(range.main.numel() == range.grad.numel() && range.m.numel() == range.main.numel() &&
                range.v.numel() == range.main.numel() &&
                (range.values.empty() || range.values.numel() == range.main.numel()),
            "adam: main ", range.main.shape, ", grad ", range.grad.shape, ", m ", range.m.shape,
            ", v ", range.v.shape, ", values ", range.values.shape);
  return {.main = flat_range("adam", range.main),
          .grad = flat_range("adam", range.grad),
          .m = flat_range("adam", range.m),
          .v = flat_range("adam", range.v),
          .values = copy_range("adam", range.main, range.values),
          .count = range.main.numel(),
          .first = range.first,
          .random_stream = range.random_stream,
          .lr_mult = range.lr_mult,
          .wd_mult = range.wd_mult};
}

// Elements of an access: as many as 16 bytes of the widest have, where all begin at such.
int pack_of(const AdamItem& item) {
  std::size_t widest = 2;
  for (const FlatRange* range : {&item.main, &item.grad, &item.m, &item.v, &item.values}) {
    if (range->data != nullptr) widest = std::max(widest, size_of(range->dtype));
  }
  const int count = static_cast<int>(16 / widest);
  const bool whole = in_packs(item.main, count) && in_packs(item.grad, count) &&
                     in_packs(item.m, count) && in_packs(item.v, count) &&
                     in_packs(item.values, count);
  return whole ? count : 1;
}

void launch(CudaQueue& queue, const Adam& args, int pack) {
  if (args.batch.count == 0) return;
  const std::int64_t resident = std::int64_t{queue.multiprocessors()} * kAdamBlocks;
  const auto blocks = static_cast<unsigned>(std::min(args.batch.tiles(), resident));
  const auto kernel = pack == 8 ? adam_kernel<8> : pack == 4 ? adam_kernel<4> : adam_kernel<1>;
  kernel<<<blocks, kThreads, 0, queue.stream()>>>(args);
  check_launch("adam");
}

}  // namespace

void adam(const Stream& stream, const AdamRule& rule, std::span<const AdamRange> ranges) {
  CudaQueue& queue = queue_of(stream);
  Adam args{.rule = rule, .batch = {}};
  int pack = 0;
  for (const AdamRange& range : ranges) {
    const AdamItem item = item_of(range);
    if (item.count == 0) continue;
    if (args.batch.full() || pack_of(item) != pack) {
      launch(queue, args, pack);
      args.batch.count = 0;
      pack = pack_of(item);
    }
    args.batch.add(item, ceil_div(item.count, std::int64_t{kThreads} * pack));
  }
  launch(queue, args, pack);
}

}  // namespace bev::cuda
