// Normal random numbers, bit-equal to backend/cpu/normal.cpp: the same series in the same order.
#include "backend/cuda/device/grid.cuh"
#include "backend/cuda/device/random.cuh"
#include "backend/cuda/device/values.cuh"
#include "backend/cuda/optim/optim_launchers.h"

namespace bev::cuda {

namespace {

// A double whose operations are never contracted to FMA.
struct Exact {
  double value;
  __device__ Exact(double x) : value(x) {}
  __device__ friend Exact operator+(Exact a, Exact b) { return __dadd_rn(a.value, b.value); }
  __device__ friend Exact operator-(Exact a, Exact b) { return __dsub_rn(a.value, b.value); }
  __device__ friend Exact operator*(Exact a, Exact b) { return __dmul_rn(a.value, b.value); }
  __device__ friend Exact operator/(Exact a, Exact b) { return __ddiv_rn(a.value, b.value); }
};

// sqrt(-2 log u), u in (0, 1): u = m 2^e with m near 1, log m = 2 atanh((m - 1) / (m + 1)).
__device__ Exact radius_of(float u) {
  int word = __float_as_int(u) - 0x3f3504f3;
  const Exact e = static_cast<double>(word >> 23);
  const Exact m = static_cast<double>(__int_as_float((word & 0x007fffff) + 0x3f3504f3));
  const Exact s = (m - 1.0) / (m + 1.0), q = s * s;
  Exact p = q * (1.0 / 17);
  constexpr double kTerms[] = {1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3};
  for (int i = 0; i < 7; ++i) p = (p + kTerms[i]) * q;
  const Exact square = Exact(-2.0) * (e * 0.69314718055994530942 + (s * 2.0 + s * 2.0 * p));
  return __dsqrt_rn(square.value);
}

// cos and sin of 2 pi u: quarter turns are subtracted exactly, then Taylor series up to pi / 4.
__device__ void turn(float u, Exact& cosine, Exact& sine) {
  const Exact turns = static_cast<double>(u);
  const int quarter = static_cast<int>((turns * 4.0 + 0.5).value);
  const Exact x = (turns - Exact(quarter) * 0.25) * 6.28318530717958647692, q = x * x;
  Exact s = q * (-1.0 / 1307674368000.0), c = q * (1.0 / 20922789888000.0);
  constexpr double kSine[] = {1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
                              -1.0 / 5040.0,      1.0 / 120.0,       -1.0 / 6.0};
  constexpr double kCosine[] = {
      -1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0,
      -1.0 / 720.0,         1.0 / 24.0,        -1.0 / 2.0};
  for (int i = 0; i < 6; ++i) s = (s + kSine[i]) * q;
  for (int i = 0; i < 7; ++i) c = (c + kCosine[i]) * q;
  s = (s + 1.0) * x;
  c = c + 1.0;
  // By quarter: (c, s), (-s, c), (-c, -s), (s, -c), (c, s).
  const bool odd = quarter == 1 || quarter == 3;
  cosine = odd ? s : c;
  sine = odd ? c : s;
  if (quarter == 1 || quarter == 2) cosine.value = -cosine.value;
  if (quarter == 2 || quarter == 3) sine.value = -sine.value;
}

// A thread draws one Philox block, for four elements of the sequence.
template <class T>
__global__ void __launch_bounds__(kThreads)
    normal_kernel(T* x, std::int64_t count, NormalArgs args) {
  const std::int64_t block = args.first / 4 + own_pack();
  if (block * 4 >= args.first + count) return;
  const uint4 words = philox_block(static_cast<std::uint64_t>(block), args.key);
  if (args.uniform) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Exact u = static_cast<double>(uniform_of(word_of(words, i)));
      const std::int64_t at = block * 4 + i - args.first;
      const Exact number = Exact(args.mean) + Exact(args.std) * (Exact(2.0) * u - 1.0);
      if (at >= 0 && at < count) x[at] = narrow<T>(static_cast<float>(number.value));
    }
    return;
  }
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const Exact radius = radius_of(uniform_of(word_of(words, 2 * pair)));
    Exact cosine = 0.0, sine = 0.0;
    turn(uniform_of(word_of(words, 2 * pair + 1)), cosine, sine);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Exact z = (i == 0 ? cosine : sine) * radius;
      const std::int64_t at = block * 4 + 2 * pair + i - args.first;
      const float number = static_cast<float>((Exact(args.mean) + Exact(args.std) * z).value);
      if (at >= 0 && at < count) x[at] = narrow<T>(number);
    }
  }
}

}  // namespace

void normal(const Stream& stream, const NormalArgs& args) {
  BEV_CHECK(args.first >= 0, ErrorKind::kInternal, "normal: first element ", args.first);
  const std::int64_t count = args.x.numel();
  if (count == 0) return;
  visit_value(args.x.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t blocks = (args.first + count - 1) / 4 - args.first / 4 + 1;
    normal_kernel<<<static_cast<unsigned>(ceil_div(blocks, kThreads)), kThreads, 0,
                    queue_of(stream).stream()>>>(address<T>(args.x), count, args);
    check_launch("normal");
  });
}

}  // namespace bev::cuda
