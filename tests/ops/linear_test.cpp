#include "ops/linear.h"

#include <gtest/gtest.h>

#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

constexpr PlaceState kWhole = PlaceState::kReplicated;

struct Sizes {
  std::int64_t tokens = 5, in = 3, out = 4;
};

OpCase linear_case(std::string name, Split split, PlaceState tp, bool bias,
                   const Sizes& sizes = {}) {
  OpCase test{std::move(name), {{{sizes.tokens, sizes.in}, tp}}, {{{sizes.out, sizes.in}, split}}};
  if (bias) test.params.push_back({{sizes.out}, split});
  test.build = [bias](Bench& bench, const std::vector<Var>& in) {
    const Param* b = bias ? bench.params[1].get() : nullptr;
    return OpOutputs{{linear(bench.ctx, in[0], *bench.params[0], b)}};
  };
  return test;
}

OpCase add_bias_case() {
  return {"add_bias", {{{5, 4}}}, {{{4}}}, [](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{add_bias(bench.ctx, in[0], *bench.params[0])}};
          }};
}

const OpRows kLinearRows(
    "Linear",
    {linear_case("whole", {}, kWhole, false), linear_case("whole with bias", {}, kWhole, true),
     linear_case("whole over split tokens", {}, PlaceState::kShard0, true),
     linear_case("column", {Axis::kTp, 0, {}}, PlaceState::kCopied, false),
     linear_case("column with bias", {Axis::kTp, 0, {}}, PlaceState::kCopied, true),
     linear_case("row", {Axis::kTp, 1, {}}, PlaceState::kShard1, false),
     linear_case("many tokens", {}, kWhole, true, {130, 72, 136}),
     linear_case("many odd tokens", {}, kWhole, true, {131, 77, 45})});
const OpRows kAddBiasRows("AddBias", {add_bias_case()});

TEST(Linear, WithBiasIsLinearThenAddBias) {
  OpCase fused = linear_case("fused", {}, kWhole, true), apart = fused;
  apart.build = [](Bench& bench, const std::vector<Var>& in) {
    Var y = linear(bench.ctx, in[0], *bench.params[0], nullptr);
    return OpOutputs{{add_bias(bench.ctx, y, *bench.params[1])}};
  };
  OpValues values = values_for(fused);
  OpResult a = run_op(fused, values, {}), b = run_op(apart, values, {});
  EXPECT_LT(relative_error(a.outputs[0], b.outputs[0]), 1e-15);
}

TEST(Linear, GradientOfTheWeightCarriesItsPlacement) {
  Bench bench(Dtype::kF64);
  Param& column = bench.param("column", {4, 3}, {Axis::kTp, 0, {}}, case_numbers(12, 1));
  Param& whole = bench.param("whole", {4, 3}, {}, case_numbers(12, 2));
  Placement x = Placement().with(Axis::kDp, PlaceState::kShard0);
  EXPECT_EQ(to_text(gradient_placement(column, x.with(Axis::kTp, PlaceState::kCopied))),
            "tp: shard(0), dp: partial");
  EXPECT_EQ(to_text(gradient_placement(whole, x)), "dp: partial");
  EXPECT_EQ(to_text(gradient_placement(whole, x.with(Axis::kTp, PlaceState::kShard0))),
            "tp: partial, dp: partial");
}

}  // namespace
}  // namespace bev::test
