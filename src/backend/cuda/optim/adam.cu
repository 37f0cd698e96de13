// Adam and AdamW over many flat ranges per launch, with master weights, 8-bit moments and
// stochastic rounding.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/random.cuh"
#include "backend/cuda/device/tile_batch.cuh"
#include "backend/cuda/optim/flat_range.cuh"
#include "backend/cuda/optim/moment8.cuh"
#include "backend/cuda/optim/optim_launchers.h"

namespace bev::cuda {

namespace {

struct AdamItem {
  FlatRange main, grad, m, v, values;
  std::uint8_t *m_scales, *v_scales;  // of 8-bit moments, else null
  std::int64_t count, first;
  std::uint64_t random_stream;
  double lr_mult, wd_mult;
  std::int64_t updates_before;
  int lr_index;
  float eps_mult;
};

// Coefficients of a step: main = keep main - step m / (sqrt(v) root + epsilon).
struct AdamFactors {
  std::uint64_t random_key;
  float multiplier, decay, beta1, rest1, beta2, rest2, keep, step, root, epsilon;
};

constexpr int kMostRanges = 25;

struct Adam {
  AdamRule rule;
  TileBatch<AdamItem, kMostRanges> batch;
};
static_assert(sizeof(Adam) <= 4096, "the most that a kernel's parameters may be everywhere");

// splitmix64, same as mix_bits in base/philox.h.
__device__ std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

__device__ AdamFactors factors_of(const AdamRule& rule, const AdamItem& item) {
  const StepState& state = *rule.state;
  const double update = static_cast<double>(state.update - item.updates_before);
  const double lr = state.lr.values[item.lr_index] * item.lr_mult;
  const double decay = state.weight_decay * item.wd_mult;
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
          .epsilon = static_cast<float>(rule.epsilon * item.eps_mult)};
}

// Random words of N elements starting at `element`, four per Philox block; with kShifted, `element`
// need not be a multiple of 4.
template <int N, bool kShifted>
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
  // A range may start anywhere: then words of one more block follow.
  if (const int skipped = static_cast<int>(element % 4); kShifted && skipped != 0) {
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

// Relative error 2^-22; skips the correction steps of the exact square root.
__device__ float fast_sqrt(float x) {
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
}

// State of N elements during a step.
template <int N>
struct AdamPack {
  Pack<float, N> main, grad, m, v;

  // bf16 main and v use stochastic rounding with the noise of each element.
  __device__ void step(const AdamItem& item, const AdamFactors& f,
                       const std::uint32_t (&noise)[N]) {
    const bool round_main = item.main.is_narrow<N>(), round_v = item.v.is_narrow<N>();
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
  }
};

// The random numbers are computed while the loads are in flight.
template <int N, bool kShifted>
__device__ void adam_pack(const AdamItem& item, const AdamFactors& f, std::int64_t at) {
  const RawPack<N> raw_main = item.main.load<N>(at), raw_grad = item.grad.load<N>(at);
  const RawPack<N> raw_m = item.m.load<N>(at), raw_v = item.v.load<N>(at);
  std::uint32_t noise[N] = {};
  if (item.main.is_narrow<N>() || item.v.is_narrow<N>()) {
    draw<N, kShifted>(static_cast<std::uint64_t>(item.first + at), f.random_key, noise);
  }
  AdamPack<N> pack{item.main.widened<N>(raw_main), item.grad.widened<N>(raw_grad),
                   item.m.widened<N>(raw_m), item.v.widened<N>(raw_v)};
  pack.step(item, f, noise);
  item.main.store_state<N>(at, pack.main);
  item.m.store_state<N>(at, pack.m);
  item.v.store_state<N>(at, pack.v);
  if (item.values.data != nullptr) item.values.store<N>(at, pack.main);
}

// Occupancy in blocks per SM; the grid has exactly that many blocks, so that all finish together.
// 8-bit moments need more registers.
constexpr int kAdamBlocks = 4, kPackingBlocks = 3;

// Calls body(item, its factors, first element) for this thread's runs of N elements.
template <int N, class Body>
__device__ void each_run(const Adam& args, const Body& body) {
  __shared__ AdamFactors factors[kMostRanges];
  if (args.rule.state->skip != 0) return;
  const int own = static_cast<int>(threadIdx.x);
  if (own < args.batch.count) factors[own] = factors_of(args.rule, args.batch.items[own]);
  __syncthreads();
  args.batch.each_tile([&](int index, std::int64_t tile) {
    body(args.batch.items[index], factors[index], (tile * kThreads + threadIdx.x) * N);
  });
}

// Memory bound: reads main, grad, m and v once, writes main, m, v and values once: 14 bytes per
// element with everything in bf16, 30 with everything but the model in f32.
template <int N, bool kShifted>
__global__ void __launch_bounds__(kThreads, kAdamBlocks)
    adam_kernel(const __grid_constant__ Adam args) {
  each_run<N>(args, [](const AdamItem& item, const AdamFactors& factors, std::int64_t at) {
    if (at + N <= item.count) {
      adam_pack<N, kShifted>(item, factors, at);
    } else if constexpr (N > 1) {
      for (std::int64_t i = at; i < item.count; ++i) adam_pack<1, true>(item, factors, i);
    }
  });
}

// Four elements of a lane, of which `count` exist; kWhole: they are aligned for one access.
template <bool kWhole>
struct LaneRun {
  std::int64_t at;
  int count;

  __device__ Pack<float, 4> load(const FlatRange& range) const {
    if (kWhole && count == 4) return range.widened<4>(range.load<4>(at));
    Pack<float, 4> out;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out.set(i, i < count ? range.widened<1>(range.load<1>(at + i))[0] : 0.0f);
    }
    return out;
  }
  __device__ void store(const FlatRange& range, const Pack<float, 4>& values) const {
    if (kWhole && count == 4) return range.store<4>(at, values);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i >= count) continue;
      Pack<float, 1> single;
      single.set(0, values[i]);
      range.store<1>(at + i, single);
    }
  }
  // Same for a moment, in 8 bits or not.
  template <MomentFormat kFormat>
  __device__ Pack<float, 4> load_moment(const FlatRange& range, const std::uint8_t* scales) const {
    if (range.dtype != Dtype::kU8) return load(range);
    Pack<float, 4> out;
    const auto* codes = static_cast<const std::uint8_t*>(range.data) + at;
    const std::uint32_t scale = count > 0 ? scales[at / kMomentBlock] : kLeastMomentScale;
    uchar4 four{};
    if (kWhole && count == 4) {
      four = *reinterpret_cast<const uchar4*>(codes);
    } else {
      if (count > 0) four.x = codes[0];
      if (count > 1) four.y = codes[1];
      if (count > 2) four.z = codes[2];
      if (count > 3) four.w = codes[3];
    }
    out.set(0, unpack_moment<kFormat>(four.x, scale));
    out.set(1, unpack_moment<kFormat>(four.y, scale));
    out.set(2, unpack_moment<kFormat>(four.z, scale));
    out.set(3, unpack_moment<kFormat>(four.w, scale));
    return out;
  }
  // Called by all lanes of a warp, which share one block of the moment.
  template <MomentFormat kFormat>
  __device__ void store_moment(const FlatRange& range, std::uint8_t* scales,
                               const Pack<float, 4>& values,
                               const std::uint32_t (&noise)[4]) const {
    if (range.dtype != Dtype::kU8) return store(range, values);
    std::uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) largest = max(largest, moment_digits(values[i], noise[i]));
    }
    const std::uint32_t scale = moment_scale(__reduce_max_sync(0xffffffffu, largest));
    if (count <= 0) return;
    const uchar4 four{pack_moment<kFormat>(values[0], noise[0], scale),
                      pack_moment<kFormat>(values[1], noise[1], scale),
                      pack_moment<kFormat>(values[2], noise[2], scale),
                      pack_moment<kFormat>(values[3], noise[3], scale)};
    auto* codes = static_cast<std::uint8_t*>(range.data) + at;
    if (kWhole && count == 4) {
      *reinterpret_cast<uchar4*>(codes) = four;
    } else {
      codes[0] = four.x;
      if (count > 1) codes[1] = four.y;
      if (count > 2) codes[2] = four.z;
      if (count > 3) codes[3] = four.w;
    }
    if (at % kMomentBlock == 0) scales[at / kMomentBlock] = static_cast<std::uint8_t>(scale);
  }
};

// With 8-bit moments a warp handles one block, four elements per lane. 10 bytes of traffic per
// element with the rest in bf16.
template <bool kWhole>
__device__ void adam_block(const AdamItem& item, const AdamFactors& f, std::int64_t at) {
  static_assert(kMomentBlock == 4 * 32);
  const std::int64_t left = item.count - at;
  const LaneRun<kWhole> run{at, left >= 4 ? 4 : left > 0 ? static_cast<int>(left) : 0};
  AdamPack<4> pack{run.load(item.main), run.load(item.grad),
                   run.template load_moment<MomentFormat::kSigned>(item.m, item.m_scales),
                   run.template load_moment<MomentFormat::kPositive>(item.v, item.v_scales)};
  std::uint32_t noise[4], m_noise[4], v_noise[4];
  draw<4, true>(static_cast<std::uint64_t>(item.first + at), f.random_key, noise);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    m_noise[i] = (noise[i] * kMomentNoise) >> 16;
    v_noise[i] = noise[i] >> 16;
  }
  pack.step(item, f, noise);
  run.store(item.main, pack.main);
  run.template store_moment<MomentFormat::kSigned>(item.m, item.m_scales, pack.m, m_noise);
  run.template store_moment<MomentFormat::kPositive>(item.v, item.v_scales, pack.v, v_noise);
  if (item.values.data != nullptr) run.store(item.values, pack.main);
}

template <bool kWhole>
__global__ void __launch_bounds__(kThreads, kPackingBlocks)
    adam_block_kernel(const __grid_constant__ Adam args) {
  each_run<4>(args, [](const AdamItem& item, const AdamFactors& factors, std::int64_t at) {
    adam_block<kWhole>(item, factors, at);
  });
}

FlatRange moment_range(const char* name, const View& moment, const View& scales) {
  if (moment.dtype != Dtype::kU8) return flat_range("adam", moment);
  BEV_CHECK(scales.dtype == Dtype::kU8 && scales.numel() == moment_blocks(moment.numel()),
            "adam: ", name, " ", moment.shape, " in 8 bits with scales ", scales.shape);
  return {moment.data, moment.dtype};
}

AdamItem item_of(const AdamRange& range) {
  BEV_CHECK(range.main.numel() == range.grad.numel() && range.m.numel() == range.main.numel() &&
                range.v.numel() == range.main.numel() &&
                (range.values.empty() || range.values.numel() == range.main.numel()),
            "adam: main ", range.main.shape, ", grad ", range.grad.shape, ", m ", range.m.shape,
            ", v ", range.v.shape, ", values ", range.values.shape);
  return {.main = flat_range("adam", range.main),
          .grad = flat_range("adam", range.grad),
          .m = moment_range("m", range.m, range.m_scales),
          .v = moment_range("v", range.v, range.v_scales),
          .values = copy_range("adam", range.main, range.values),
          .m_scales = static_cast<std::uint8_t*>(range.m_scales.data),
          .v_scales = static_cast<std::uint8_t*>(range.v_scales.data),
          .count = range.main.numel(),
          .first = range.first,
          .random_stream = range.random_stream,
          .lr_mult = range.lr_mult,
          .wd_mult = range.wd_mult,
          .updates_before = range.updates_before,
          .lr_index = range.lr_index,
          .eps_mult = static_cast<float>(range.eps_mult)};
}

// Selects the kernel for a range: elements per access, whether warps handle whole moment blocks,
// and whether the range starts within a Philox block.
struct AdamShape {
  int pack = 0;
  bool blocks = false, shifted = false;

  bool operator==(const AdamShape&) const = default;
  int thread_elements() const { return blocks ? 4 : pack; }
};

// Accesses have as many elements as 16 bytes of the widest dtype hold, if all ranges are aligned to
// that.
AdamShape shape_of(const AdamItem& item) {
  const bool blocks = item.m.dtype == Dtype::kU8 || item.v.dtype == Dtype::kU8;
  std::size_t widest = blocks ? 4 : 2;
  for (const FlatRange* range : {&item.main, &item.grad, &item.m, &item.v, &item.values}) {
    if (range->data != nullptr) widest = std::max(widest, size_of(range->dtype));
  }
  const int count = static_cast<int>(16 / widest);
  const bool whole = in_packs(item.main, count) && in_packs(item.grad, count) &&
                     in_packs(item.m, count) && in_packs(item.v, count) &&
                     in_packs(item.values, count);
  return {whole ? count : 1, blocks, item.first % 4 != 0};
}

using AdamKernel = void (*)(Adam);

AdamKernel kernel_of(const AdamShape& shape) {
  if (shape.blocks) return shape.pack == 4 ? adam_block_kernel<true> : adam_block_kernel<false>;
  if (shape.pack == 8) return shape.shifted ? adam_kernel<8, true> : adam_kernel<8, false>;
  if (shape.pack == 4) return shape.shifted ? adam_kernel<4, true> : adam_kernel<4, false>;
  return adam_kernel<1, true>;
}

void launch(CudaQueue& queue, const Adam& args, const AdamShape& shape) {
  if (args.batch.count == 0) return;
  const int most = shape.blocks ? kPackingBlocks : kAdamBlocks;
  const std::int64_t resident = std::int64_t{queue.multiprocessors()} * most;
  const auto blocks = static_cast<unsigned>(std::min(args.batch.tiles(), resident));
  kernel_of(shape)<<<blocks, kThreads, 0, queue.stream()>>>(args);
  check_launch("adam");
}

}  // namespace

void adam(const Stream& stream, const AdamRule& rule, std::span<const AdamRange> ranges) {
  CudaQueue& queue = queue_of(stream);
  Adam args{.rule = rule, .batch = {}};
  AdamShape shape;
  for (const AdamRange& range : ranges) {
    const AdamItem item = item_of(range);
    if (item.count == 0) continue;
    if (args.batch.full() || shape_of(item) != shape) {
      launch(queue, args, shape);
      args.batch.count = 0;
      shape = shape_of(item);
    }
    const std::int64_t tile = std::int64_t{kThreads} * shape.thread_elements();
    args.batch.add(item, ceil_div(item.count, tile));
  }
  launch(queue, args, shape);
}

}  // namespace bev::cuda
