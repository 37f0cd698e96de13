#include "optim/state_memory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/philox.h"
#include "tensor/moment8.h"

namespace bev {
namespace {

constexpr MomentFormat kSigned = MomentFormat::kSigned, kPositive = MomentFormat::kPositive;

// Values whose magnitudes span `binades` powers of two below 2^highest.
std::vector<float> wide_numbers(std::int64_t count, int highest, double binades, bool is_signed) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i) {
    PhiloxCounter words = philox({static_cast<std::uint32_t>(i), 0, 0, 0}, 77);
    double size = std::exp2(highest - binades * static_cast<double>(uniform_of(words[0])));
    out.push_back(static_cast<float>(is_signed && words[1] % 2 == 1 ? -size : size));
  }
  return out;
}

std::vector<std::uint32_t> noise_of(std::int64_t count, std::uint64_t key) {
  std::vector<std::uint32_t> out;
  for (std::int64_t i = 0; i < count; ++i) {
    out.push_back(philox({static_cast<std::uint32_t>(i), 0, 0, 0}, key)[0] >> 16);
  }
  return out;
}

struct Packed {
  std::vector<std::uint8_t> codes, scales;
  bool operator==(const Packed&) const = default;
};
Packed pack(MomentFormat format, const std::vector<float>& x,
            const std::vector<std::uint32_t>* noise = nullptr) {
  auto count = static_cast<std::int64_t>(x.size());
  Packed out{std::vector<std::uint8_t>(x.size()),
             std::vector<std::uint8_t>(static_cast<std::size_t>(moment_blocks(count)))};
  pack_moments(format, x.data(), noise == nullptr ? nullptr : noise->data(), count,
               out.codes.data(), out.scales.data());
  return out;
}
std::vector<float> unpack(MomentFormat format, const Packed& packed) {
  std::vector<float> out(packed.codes.size());
  unpack_moments(format, packed.codes.data(), packed.scales.data(),
                 static_cast<std::int64_t>(out.size()), out.data());
  return out;
}

// Magnitudes from far below to far above the range of a scale, with partial blocks.
TEST(Moment8, NumbersThatWereReadArePackedIntoTheSameBytes) {
  for (MomentFormat format : {kSigned, kPositive}) {
    for (int highest : {-140, -100, -30, 0, 60, 127}) {
      for (double binades : {1.0, 12.0, 45.0}) {
        std::vector<float> x = wide_numbers(1000, highest, binades, format == kSigned);
        x[3] = 0;
        std::fill(x.begin() + 256, x.begin() + 384, 0.0f);
        std::vector<std::uint32_t> noise = noise_of(1000, 5), other = noise_of(1000, 6);
        Packed packed = pack(format, x, &noise);
        std::vector<float> read = unpack(format, packed);
        EXPECT_EQ(pack(format, read), packed);
        EXPECT_EQ(pack(format, read, &other), packed);
        for (float value : read) {
          EXPECT_EQ(static_cast<float>(Bf16(value)), value);
          EXPECT_TRUE(value == 0 || std::isnormal(value)) << value;
        }
      }
    }
  }
}

TEST(Moment8, NearestIsWithinASixteenthAndTheSmallestStep) {
  for (MomentFormat format : {kSigned, kPositive}) {
    std::vector<float> x = wide_numbers(128, -10, 40, format == kSigned);
    std::vector<float> read = unpack(format, pack(format, x));
    auto larger = [](float a, float b) { return std::abs(a) < std::abs(b); };
    double largest = std::abs(*std::max_element(x.begin(), x.end(), larger));
    double step = std::exp2(std::ceil(std::log2(largest)) - top_of(format) - 2);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(read[i], x[i], std::max<double>(std::abs(x[i]) / 16, step)) << i;
      EXPECT_TRUE(format == kSigned || read[i] > 0) << i;
    }
  }
}

// A value just below a power of two with smaller ones in the block: some are a few of the smallest
// steps, and rounding the largest changes the scale.
TEST(Moment8, RandomRoundingKeepsTheMean) {
  constexpr int kDraws = 20000;
  const std::vector<float> x = {0x1.fcp-20f, -0x1.23p-21f, 0x1.77p-34f, 0x1.3p-36f, 0x1.1p-38f};
  std::vector<double> sums(x.size());
  for (int draw = 0; draw < kDraws; ++draw) {
    std::vector<std::uint32_t> noise = noise_of(5, static_cast<std::uint64_t>(1000 + draw));
    std::vector<float> read = unpack(kSigned, pack(kSigned, x, &noise));
    for (std::size_t i = 0; i < x.size(); ++i) sums[i] += read[i];
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    // Values below the smallest step are rounded to 0 most of the time.
    double bound = i < 2 ? 0.002 : i == 2 ? 0.01 : 0.05;
    EXPECT_NEAR(sums[i] / kDraws / x[i], 1, bound) << i;
  }
}

// A moving average whose change per update is smaller than a step must still converge.
TEST(Moment8, ASlowAverageReachesItsGoal) {
  std::vector<float> v(128, 1e-6f);
  for (int update = 0; update < 4000; ++update) {
    for (float& value : v) value = 0.999f * value + 0.001f * 1e-5f;
    std::vector<std::uint32_t> noise = noise_of(128, static_cast<std::uint64_t>(update));
    v = unpack(kPositive, pack(kPositive, v, &noise));
  }
  double mean = std::accumulate(v.begin(), v.end(), 0.0) / 128;
  EXPECT_NEAR(mean, 1e-5 - 9e-6 * std::exp(-4), 0.03e-5);
}

TEST(Moment8, WhatIsNotFiniteStaysVisible) {
  for (float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> x(300, 1.0f);
    x[130] = bad;
    std::vector<float> read = unpack(kSigned, pack(kSigned, x));
    EXPECT_EQ(read[0], 1);
    EXPECT_TRUE(std::isnan(read[130]) && std::isnan(read[200]));
    EXPECT_EQ(read[299], 1);
  }
}

TEST(ChooseOffloaded, ComesAsNearToTheFractionAsWholeRangesCan) {
  const std::vector<std::int64_t> sizes = {1000, 3, 500, 500, 1, 2000, 7, 64};
  const double total = 4075;
  for (double fraction : {0.0, 0.1, 0.5, 0.77, 1.0}) {
    std::vector<bool> chosen = choose_offloaded(sizes, fraction);
    double sum = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (chosen[i]) sum += static_cast<double>(sizes[i]);
    }
    EXPECT_NEAR(sum, fraction * total, fraction == 0 || fraction == 1 ? 0 : 1000) << fraction;
  }
  EXPECT_TRUE(choose_offloaded({}, 0.5).empty());
}

}  // namespace
}  // namespace bev
