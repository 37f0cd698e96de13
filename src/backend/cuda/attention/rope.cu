// Rotary position embedding (RoPE): tables and in-place rotation.
#include <algorithm>

#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/tables.h"
#include "kernels/rope.h"

namespace bev {

namespace cuda {
namespace {

// Passed as a kernel parameter, so that no host-to-device copy precedes the launch.
constexpr std::int64_t kMostFrequencies = 256;
struct Frequencies {
  float at[kMostFrequencies];
};

// Angles in f32 as in reference implementations, sine and cosine in f64. Writes 4 bytes per
// element.
__global__ void __launch_bounds__(kThreads)
    table_kernel(const std::int32_t* positions, Frequencies frequencies, double scale,
                 PositionScale growth, std::int64_t rows, std::int64_t half, float* cos_sin) {
  const std::int64_t i = own_pack();
  if (i >= half) return;
  const float frequency = frequencies.at[i];
  for (std::int64_t t = first_row(); t < rows; t += row_step()) {
    const float angle = __fmul_rn(frequency, static_cast<float>(positions[t]));
    double sine, cosine;
    sincos(static_cast<double>(angle), &sine, &cosine);
    double factor = scale;
    if (growth.beta != 0) {
      const std::int64_t periods = (positions[t] + growth.shift) / growth.period;
      factor *= 1 + growth.beta * log1p(static_cast<double>(periods));
    }
    cos_sin[t * 2 * half + i] = static_cast<float>(cosine * factor);
    cos_sin[t * 2 * half + half + i] = static_cast<float>(sine * factor);
  }
}

template <class T>
struct Rotation {
  T* x;
  const float* cos_sin;
  std::int64_t rows, row_size;
  int heads, head_size, half;
  float sign;
};

// Rotates in place: memory bound by reading and writing x; table rows are cached for all heads. A
// thread takes N pairs of one head: N elements of each half, or 2N adjacent elements.
template <class T, int N, bool kInterleaved>
__global__ void __launch_bounds__(kThreads) apply_kernel(Rotation<T> args) {
  join_kernel_chain();
  const int parts = args.half / N;  // per head
  const int item = static_cast<int>(own_pack());
  if (item >= args.heads * parts) return;
  const int head = item / parts, first = item % parts * N;
  for (std::int64_t t = first_row(); t < args.rows; t += row_step()) {
    const float* table = args.cos_sin + t * 2 * args.half + first;
    Pack<float, N> cosine, sine;
    cosine.load(table);
    sine.load(table + args.half);
    T* at = args.x + t * args.row_size + head * args.head_size;
    if constexpr (kInterleaved && N > 1) {
      Pack<T, 2 * N> both;
      both.load(at + 2 * first);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float a = both[2 * i], b = both[2 * i + 1], s = args.sign * sine[i];
        both.set(2 * i, a * cosine[i] - b * s);
        both.set(2 * i + 1, b * cosine[i] + a * s);
      }
      both.store(at + 2 * first);
    } else {
      T* const low = at + (kInterleaved ? 2 * first : first);
      T* const high = low + (kInterleaved ? 1 : args.half);
      Pack<T, N> lower, upper;
      lower.load(low);
      upper.load(high);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float a = lower[i], b = upper[i], s = args.sign * sine[i];
        lower.set(i, a * cosine[i] - b * s);
        upper.set(i, b * cosine[i] + a * s);
      }
      lower.store(low);
      upper.store(high);
    }
  }
}

template <class T, int N, bool kInterleaved>
void launch(CudaQueue& queue, const Rotation<T>& args) {
  const RowGrid grid = row_grid(args.rows, args.heads * (args.half / N));
  launch_overlapped(queue, "rope", apply_kernel<T, N, kInterleaved>, grid.blocks, grid.threads, 0,
                    args);
}

template <class T>
void run(CudaQueue& queue, const RopeApplyArgs& view) {
  const Rotation<T> args{.x = address<T>(view.x) + view.begin,
                         .cos_sin = address<float>(view.cos_sin),
                         .rows = view.x.shape[0],
                         .row_size = view.x.shape.row_numel(),
                         .heads = static_cast<int>(view.heads),
                         .head_size = static_cast<int>(view.head_size),
                         .half = static_cast<int>(view.cos_sin.shape[1] / 2),
                         .sign = view.inverse ? -1.0f : 1.0f};
  if (args.rows == 0 || args.heads == 0 || args.half == 0) return;
  const bool in_packs = aligned(args.x, args.cos_sin) && args.row_size % kPack<T> == 0 &&
                        args.head_size % kPack<T> == 0 && args.half % kPack<T> == 0;
  if (view.interleaved) {
    constexpr int kPairs = kPack<T> / 2;
    if (in_packs) return launch<T, kPairs, true>(queue, args);
    return launch<T, 1, true>(queue, args);
  }
  if (in_packs) return launch<T, kPack<T>, false>(queue, args);
  launch<T, 1, false>(queue, args);
}

}  // namespace
}  // namespace cuda

namespace {

void rope_table(const Stream& stream, const RopeTableArgs& args) {
  if (args.cos_sin.numel() == 0) return;
  const std::int64_t rows = args.cos_sin.shape[0], half = args.cos_sin.shape[1] / 2;
  BEV_CHECK(half <= cuda::kMostFrequencies, ErrorKind::kConfig, "rope: ", half,
            " frequencies; the GPU takes at most ", cuda::kMostFrequencies);
  cuda::Frequencies frequencies;
  std::ranges::transform(args.frequencies, frequencies.at,
                         [](double frequency) { return static_cast<float>(frequency); });
  const cuda::RowGrid grid = cuda::row_grid(rows, half);
  cuda::table_kernel<<<grid.blocks, grid.threads, 0, queue_of(stream).stream()>>>(
      args.positions, frequencies, args.scale, args.growth, rows, half,
      cuda::address<float>(args.cos_sin));
  check_launch("rope table");
}

void rope_apply(const Stream& stream, const RopeApplyArgs& args) {
  BEV_CHECK(args.cos_sin.shape[1] % 2 == 0 && args.begin + args.cos_sin.shape[1] <= args.head_size,
            "rope: table ", args.cos_sin.shape, " from ", args.begin, " on of head size ",
            args.head_size);
  cuda::visit_value(args.x.dtype,
                    [&](auto type) { cuda::run<decltype(type)>(queue_of(stream), args); });
}

}  // namespace

RopeKernels cuda_table(Family<RopeKernels>) { return {.table = rope_table, .apply = rope_apply}; }

}  // namespace bev
