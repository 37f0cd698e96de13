// The vector functions as compiled for the baseline ISA; the kernel tests of each level cover FMA.
#define BEV_CPU_LEVEL math_test
#include "backend/cpu/kernels/math.h"

#include <gtest/gtest.h>

#include <limits>

#include "backend/cpu/kernels/lanes.h"
#include "backend/cpu/kernels/random.h"
#include "base/philox.h"

namespace bev {
namespace {
using namespace cpu::math_test;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The largest error in ulp over every 4099th float in [low, high].
template <class Ours, class Exact>
double worst_ulp(const Ours& ours, const Exact& exact, float low, float high) {
  double worst = 0;
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 4099) {
    float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!(x >= low && x <= high)) continue;
    double want = exact(static_cast<double>(x));
    float rounded = std::fabs(static_cast<float>(want)), got = ours(x);
    if (std::isinf(rounded)) {
      EXPECT_EQ(got, static_cast<float>(want)) << x;
      continue;
    }
    double unit = static_cast<double>(std::nextafter(rounded, kInfinity)) - rounded;
    if (std::isinf(unit)) continue;
    worst = std::max(worst, std::fabs(static_cast<double>(got) - want) / unit);
  }
  return worst;
}

TEST(VectorMath, WithinTwoUnitsOfTheLastPlace) {
  auto exp32 = [](float x) { return exp_of(x); };
  auto tanh32 = [](float x) { return tanh_of(x); };
  auto log32 = [](float x) { return log_of(x); };
  auto erf32 = [](float x) { return erf_of(x); };
  EXPECT_LE(worst_ulp(
                exp32, [](double x) { return std::exp(x); }, -kInfinity, kInfinity),
            1.5);
  EXPECT_LE(worst_ulp(
                tanh32, [](double x) { return std::tanh(x); }, -kInfinity, kInfinity),
            1.5);
  EXPECT_LE(worst_ulp(
                log32, [](double x) { return std::log(x); }, 0, kInfinity),
            1.5);
  EXPECT_LE(worst_ulp(
                erf32, [](double x) { return std::erf(x); }, -kInfinity, kInfinity),
            1.5);
}

TEST(VectorMath, SpecialValues) {
  EXPECT_EQ(exp_of(kInfinity), kInfinity);
  EXPECT_EQ(exp_of(-kInfinity), 0);
  EXPECT_EQ(exp_of(0.0f), 1);
  EXPECT_EQ(tanh_of(kInfinity), 1);
  EXPECT_EQ(tanh_of(-kInfinity), -1);
  EXPECT_EQ(log_of(0.0f), -kInfinity);
  EXPECT_EQ(log_of(kInfinity), kInfinity);
  EXPECT_EQ(log_of(1.0f), 0);
  EXPECT_TRUE(std::isnan(log_of(-1.0f)));
  EXPECT_EQ(erf_of(kInfinity), 1);
  EXPECT_EQ(erf_of(-kInfinity), -1);
  for (float result : {exp_of(kNan), tanh_of(kNan), log_of(kNan), erf_of(kNan)}) {
    EXPECT_TRUE(std::isnan(result));
  }
}

TEST(VectorMath, ConversionsAreThoseOfTheScalarTypes) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    F16 half;
    Bf16 brain;
    half.bits = brain.bits = static_cast<std::uint16_t>(bits);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(widen(half)),
              std::bit_cast<std::uint32_t>(static_cast<float>(half)));
    EXPECT_EQ(std::bit_cast<std::uint32_t>(widen(brain)),
              std::bit_cast<std::uint32_t>(static_cast<float>(brain)));
  }
  for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 1021) {
    float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    ASSERT_EQ(narrow<F16>(x).bits, F16(x).bits) << x;
    ASSERT_EQ(narrow<Bf16>(x).bits, Bf16(x).bits) << x;
  }
}

TEST(VectorMath, PhiloxBlocksAreThoseOfThePlainGenerator) {
  std::uint32_t words[4 * kPhiloxBlocks];
  philox_blocks(0xfffffff8u, 2, 3, 4, 0x0123456789abcdefull, words);
  for (std::uint32_t i = 0; i < kPhiloxBlocks; ++i) {
    PhiloxCounter want = philox({0xfffffff8u + i, 2, 3, 4}, 0x0123456789abcdefull);
    for (std::uint32_t w = 0; w < 4; ++w) EXPECT_EQ(words[4 * i + w], want[w]);
  }
}

TEST(VectorMath, KeepThresholdIsTheComparisonInDouble) {
  for (double p : {0.0, 1e-9, 0.1, 0.25, 0.5, 0.9, 1.0, 0x1p-24, 3 * 0x1p-24}) {
    for (std::uint64_t bits = 0; bits < (1ull << 32); bits += 65537) {
      auto word = static_cast<std::uint32_t>(bits);
      ASSERT_EQ((word >> 9) >= keep_threshold(p), static_cast<double>(uniform_of(word)) >= p);
    }
    for (std::uint32_t word : {0u, 511u, 512u, 1023u, 1024u, 2048u, 0xffffffffu}) {
      ASSERT_EQ((word >> 9) >= keep_threshold(p), static_cast<double>(uniform_of(word)) >= p);
    }
  }
}

TEST(Lanes, SumAndMaxOfAnyLength) {
  std::vector<float> x;
  double sum = 0;
  for (int count = 0; count < 300; ++count) {
    EXPECT_EQ(sum_of<float>(count, [&](std::int64_t i) { return x[static_cast<std::size_t>(i)]; }),
              sum);
    float most = -kInfinity;
    for (float value : x) most = std::max(most, value);
    EXPECT_EQ(max_of(x.data(), count), most);
    x.push_back(static_cast<float>(count * 37 % 101) - 200);
    sum += static_cast<double>(x.back());
  }
}
}  // namespace
}  // namespace bev
