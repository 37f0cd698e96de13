// Ops of low-rank adapters: products added to some columns, columns scaled by magnitudes, dropout
// of a part of the columns.
#include "ops/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/elementwise.h"
#include "ops/linear.h"
#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

constexpr PlaceState kWhole = PlaceState::kReplicated;

// y [T, width] += 0.7 * x W^T in columns from `first`.
OpCase add_linear_case(std::string name, std::int64_t tokens, std::int64_t rank, std::int64_t out,
                       std::int64_t width, std::int64_t first) {
  OpCase test{
      std::move(name), {{{tokens, width}, kWhole}, {{tokens, rank}, kWhole}}, {{{out, rank}}}};
  test.build = [first](Bench& bench, const std::vector<Var>& in) {
    return OpOutputs{{add_linear(bench.ctx, in[0], in[1], *bench.params[0], {0.7, first})}};
  };
  return test;
}
const OpRows kAddLinearRows("AddLinear", {add_linear_case("all columns", 5, 2, 4, 4, 0),
                                          add_linear_case("middle columns", 5, 3, 2, 7, 3),
                                          add_linear_case("one token", 1, 1, 1, 3, 2),
                                          add_linear_case("many tokens", 131, 9, 40, 77, 16)});

std::vector<double> squares_of(std::int64_t count) {
  std::vector<double> values = case_numbers(count, 11);
  for (double& value : values) value = value * value + 0.5;
  return values;
}

OpCase scale_case(std::string name, std::int64_t tokens, std::int64_t width, std::int64_t first,
                  std::int64_t columns) {
  OpCase test{std::move(name), {{{tokens, width}, kWhole}}, {{{columns}}}};
  test.build = [first, columns](Bench& bench, const std::vector<Var>& in) {
    std::array<MagnitudeColumns, kMostMagnitudes> parts;
    Tensor squares = bench.tensor({columns}, squares_of(columns), bench.ctx.wide());
    parts[1] = {first, bench.params[0].get(), squares};
    return OpOutputs{{scale_columns(bench.ctx, in[0], parts)}};
  };
  return test;
}
const OpRows kScaleColumnsRows("ScaleColumns", {scale_case("all columns", 4, 3, 0, 3),
                                                scale_case("some columns", 5, 7, 2, 3),
                                                scale_case("many columns", 70, 150, 60, 80)});

TEST(RowSquares, AreThoseOfTheAdaptedWeight) {
  Bench bench(Dtype::kF64);
  std::vector<double> w = case_numbers(12, 1), a = case_numbers(6, 2), b = case_numbers(4, 3);
  Param& weight = bench.param("w", {4, 3}, {}, w);
  Param& down = bench.param("a", {2, 3}, {}, a);
  Param& up = bench.param("b", {2, 2}, {}, b);
  Tensor squares = row_squares(bench.ctx, {&weight, 1, &down, &up, 0.5});
  std::vector<double> got = bench.values(squares);
  for (std::size_t row = 0; row < 2; ++row) {
    double expected = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      double value = w[(row + 1) * 3 + i];
      for (std::size_t k = 0; k < 2; ++k) value += 0.5 * b[row * 2 + k] * a[k * 3 + i];
      expected += value * value;
    }
    EXPECT_NEAR(got[row], expected, 1e-14);
  }
}

// Columns cut anywhere get the numbers of the whole tensor.
TEST(DropoutCopy, ColumnsOfARankAreDroppedAsInTheWhole) {
  constexpr std::int64_t kTokens = 7, kColumns = 45;
  auto run = [&](std::int64_t first, std::int64_t columns) {
    Bench bench(Dtype::kF64);
    StepState step = bench.step;
    step.random_key = 99;
    bench.device.set_step(step);
    std::vector<std::int32_t> places(kTokens);
    for (std::int64_t i = 0; i < kTokens; ++i)
      places[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
    bench.layout.tokens = kTokens;
    bench.layout.samples = bench.layout.sample_positions = bench.integers(places);
    bench.ctx.training = true;
    std::vector<double> ones(static_cast<std::size_t>(kTokens * columns), 1.0);
    Var x{bench.tensor({kTokens, columns}, ones), {}, -1, nullptr};
    return bench.values(
        dropout_copy(bench.ctx, x, bench.layout, {0.4, RandomUse::kAdapterDropout, 3, first})
            .tensor);
  };
  std::vector<double> whole = run(0, kColumns);
  for (std::int64_t first : {1, 2, 3, 4, 17, 40}) {
    std::vector<double> part = run(first, kColumns - first);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t i = first; i < kColumns; ++i) {
        EXPECT_EQ(part[static_cast<std::size_t>(t * (kColumns - first) + i - first)],
                  whole[static_cast<std::size_t>(t * kColumns + i)])
            << first << " " << t << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace bev::test
