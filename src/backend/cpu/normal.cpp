// Normal random numbers by Box-Muller in double, without FMA contraction.
#include "backend/cpu/normal.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/philox.h"

namespace bev::cpu {

namespace {
// Pairs per vector.
constexpr int kPairs = 8;
typedef double Doubles __attribute__((vector_size(8 * kPairs)));
typedef float Floats __attribute__((vector_size(4 * kPairs)));
typedef std::int32_t Ints __attribute__((vector_size(4 * kPairs)));

template <class To, class From>
void copy_bits(const From& from, To& to) {
  static_assert(sizeof from == sizeof to);
  std::memcpy(&to, &from, sizeof to);
}

// radius = sqrt(-2 log u), u in (0, 1): u = m 2^e with m near 1, log m = 2 atanh((m - 1) / (m +
// 1)).
void radius_of(const Floats& u, Doubles& radius) {
  Ints word, exponent;
  copy_bits(u, word);
  word -= 0x3f3504f3;
  exponent = word >> 23;
  word = (word & 0x007fffff) + 0x3f3504f3;
  Floats fraction;
  copy_bits(word, fraction);
  const Doubles m = __builtin_convertvector(fraction, Doubles);
  const Doubles e = __builtin_convertvector(exponent, Doubles);
  const Doubles s = (m - 1) / (m + 1), q = s * s;
  Doubles p = q * (1.0 / 17);
  for (double term : {1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3}) {
    p = (p + term) * q;
  }
  const Doubles square = -2 * (e * 0.69314718055994530942 + (2 * s + 2 * s * p));
  for (int i = 0; i < kPairs; ++i) radius[i] = std::sqrt(square[i]);
}

// cos and sin of 2 pi u: quarter turns are subtracted exactly, then Taylor series up to pi / 4.
void turn(const Floats& u, Doubles& cosine, Doubles& sine) {
  const Doubles turns = __builtin_convertvector(u, Doubles);
  const Ints quarter = __builtin_convertvector(turns * 4 + 0.5, Ints);
  const Doubles quarters = __builtin_convertvector(quarter, Doubles);
  const Doubles x = (turns - quarters * 0.25) * 6.28318530717958647692, q = x * x;
  Doubles s = q * (-1.0 / 1307674368000.0), c = q * (1.0 / 20922789888000.0);
  for (double term : {1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0, -1.0 / 5040.0,
                      1.0 / 120.0, -1.0 / 6.0}) {
    s = (s + term) * q;
  }
  for (double term : {-1.0 / 87178291200.0, 1.0 / 479001600.0, -1.0 / 3628800.0, 1.0 / 40320.0,
                      -1.0 / 720.0, 1.0 / 24.0, -1.0 / 2.0}) {
    c = (c + term) * q;
  }
  s = (s + 1) * x;
  c = c + 1;
  // By quarter: (c, s), (-s, c), (-c, -s), (s, -c), (c, s).
  const auto odd = (quarters == 1.0) | (quarters == 3.0);
  const auto left = (quarters == 1.0) | (quarters == 2.0);
  const auto below = (quarters == 2.0) | (quarters == 3.0);
  cosine = odd ? s : c;
  sine = odd ? c : s;
  cosine = left ? -cosine : cosine;
  sine = below ? -sine : sine;
}

// Four Philox blocks, sixteen numbers.
void normal_blocks(std::uint64_t key, std::uint64_t block, double* z) {
  Floats first, second;
  for (int i = 0; i < kPairs / 2; ++i) {
    const std::uint64_t index = block + static_cast<std::uint64_t>(i);
    const PhiloxCounter words = philox(
        {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0}, key);
    first[2 * i] = uniform_of(words[0]);
    second[2 * i] = uniform_of(words[1]);
    first[2 * i + 1] = uniform_of(words[2]);
    second[2 * i + 1] = uniform_of(words[3]);
  }
  Doubles radius, cosine, sine;
  radius_of(first, radius);
  turn(second, cosine, sine);
  cosine *= radius;
  sine *= radius;
  for (int i = 0; i < kPairs; ++i) {
    z[2 * i] = cosine[i];
    z[2 * i + 1] = sine[i];
  }
}
}  // namespace

void normal_range(std::uint64_t key, std::int64_t first, std::int64_t count, double mean,
                  double std, float* out) {
  for (std::int64_t i = 0; i < count;) {
    double z[2 * kPairs];
    normal_blocks(key, static_cast<std::uint64_t>((first + i) / 4), z);
    for (std::int64_t lane = (first + i) & 3; lane < 2 * kPairs && i < count; ++lane, ++i) {
      out[i] = static_cast<float>(mean + std * z[lane]);
    }
  }
}

void uniform_range(std::uint64_t key, std::int64_t first, std::int64_t count, double mean,
                   double most, float* out) {
  for (std::int64_t i = 0; i < count;) {
    const auto block = static_cast<std::uint64_t>((first + i) / 4);
    const PhiloxCounter words = philox(
        {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0}, key);
    for (std::int64_t lane = (first + i) & 3; lane < 4 && i < count; ++lane, ++i) {
      const double u = uniform_of(words[static_cast<std::size_t>(lane)]);
      out[i] = static_cast<float>(mean + most * (2 * u - 1));
    }
  }
}

}  // namespace bev::cpu
