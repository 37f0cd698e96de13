// Tokens sampled on the device are those that the host samples from the same logits.
#include "infer/sampler.h"
#include "tests/backend_cuda/rig.h"

namespace bev::cuda_test {
namespace {

class CudaSample : public CudaRig {
 protected:
  struct Drawn {
    std::vector<RowSummary> rows;
    std::vector<SampledToken> tokens;
    bool served = false;
  };
  // Draws one token per place.
  Drawn draw(const Tensor& logits, const SamplingOptions& options,
             const std::vector<TokenPlace>& places) {
    std::vector<double> fractions;
    for (const TokenPlace& place : places) {
      fractions.push_back(random_fraction(options.seed, place));
    }
    const auto count = static_cast<std::int64_t>(places.size());
    Twin random = words(fractions);
    Tensor rows(device_arena(), Dtype::kF64, {3 * count}, "test");
    Tensor tokens(device_arena(), Dtype::kF64, {2 * count}, "test");
    auto* summaries = static_cast<RowSummary*>(rows.view().data);
    auto* sampled = static_cast<SampledToken*>(tokens.view().data);
    Drawn out{std::vector<RowSummary>(places.size()), std::vector<SampledToken>(places.size())};
    cuda().loss.summary(cuda_stream(), {logits, summaries});
    out.served =
        cuda().loss.sample(cuda_stream(), {logits,
                                           summaries,
                                           random.device.as<double>(),
                                           {options.temperature, options.top_k, options.top_p},
                                           sampled});
    cuda().device.fetch(cuda_stream(), rows, out.rows.data()).wait();
    cuda().device.fetch(cuda_stream(), tokens, out.tokens.data()).wait();
    return out;
  }
  static std::vector<TokenPlace> places(std::int64_t count) {
    std::vector<TokenPlace> out;
    for (std::int64_t i = 0; i < count; ++i) out.push_back({i, 3 * i + 1});
    return out;
  }
  void compare(const Twin& logits, const SamplingOptions& options) {
    const std::int64_t rows = logits.exact.shape()[0], columns = logits.exact.shape()[1];
    const std::vector<TokenPlace> at = places(rows);
    const Drawn drawn = draw(logits.device, options, at);
    ASSERT_TRUE(drawn.served);
    for (std::size_t row = 0; row < at.size(); ++row) {
      const double* z = logits.exact.as<double>() + static_cast<std::int64_t>(row) * columns;
      const std::vector<float> values(z, z + columns);
      const TokenChoice want = pick_token(values, options, at[row]);
      const TokenChoice got = pick_drawn(drawn.rows[row], drawn.tokens[row], at[row]);
      EXPECT_EQ(got.token, want.token) << "row " << row;
      EXPECT_NEAR(got.logprob, want.logprob, 1e-4);
    }
  }
};

// Temperature, top_k, top_p, seed.
const std::vector<SamplingOptions> kRules = {
    {1, 0, 1, 5},        {0.3, 0, 1, 6},   {100, 0, 1, 7},     {1, 50, 1, 8},
    {2.5, 900, 1, 9},    {1, 0, 0.9, 10},  {0.7, 0, 0.5, 11},  {1.5, 0, 0.999, 12},
    {0.8, 40, 0.95, 13}, {1, 2, 1e-9, 14}, {3, 1000, 0.3, 15}, {1e-3, 5, 0.9, 16}};

TEST_F(CudaSample, TokensAreTheHosts) {
  for (std::int64_t columns : {1, 2, 77, 1024, 5000, 128256}) {
    for (double scale : {0.5, 12.0}) {
      Twin logits = random(Dtype::kF32, {columns > 5000 ? 8 : 40, columns}, scale);
      for (const SamplingOptions& options : kRules) {
        SCOPED_TRACE(testing::Message()
                     << columns << " columns, scale " << scale << ", rule " << options.temperature
                     << " " << options.top_k << " " << options.top_p);
        compare(logits, options);
      }
    }
  }
}

TEST_F(CudaSample, EqualAndImpossibleTokens) {
  constexpr std::int64_t kRows = 40, kColumns = 1100;
  std::vector<double> values;
  for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
    values.push_back(i % 7 == 3 ? -INFINITY : static_cast<double>(i % 11));
  }
  Twin logits = twin(Dtype::kF32, {kRows, kColumns}, values);
  for (const SamplingOptions& options : kRules) {
    SCOPED_TRACE(testing::Message()
                 << options.temperature << " " << options.top_k << " " << options.top_p);
    compare(logits, options);
  }
}

TEST_F(CudaSample, WhatIsNotServedIsSaid) {
  Twin logits = random(Dtype::kF32, {2, 5000});
  EXPECT_FALSE(draw(logits.device, {101, 0, 1, 1}, places(2)).served);
  EXPECT_FALSE(draw(logits.device, {1, 1025, 1, 1}, places(2)).served);
  EXPECT_TRUE(draw(logits.device, {1, 5000, 1, 1}, places(2)).served);
  // More equal logits than a block can hold: left to the host.
  Twin equal = twin(Dtype::kF32, {2, 5000}, std::vector<double>(10000, 0.25));
  for (const SampledToken& token : draw(equal.device, {1, 0, 0.5, 1}, places(2)).tokens) {
    EXPECT_EQ(token.token, -1);
  }
  compare(equal, {1, 0, 1, 1});
}

}  // namespace
}  // namespace bev::cuda_test
