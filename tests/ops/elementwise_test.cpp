#include "ops/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/linear.h"
#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

constexpr Activation kKinds[] = {Activation::kGelu,        Activation::kGeluTanh,
                                 Activation::kSilu,        Activation::kRelu,
                                 Activation::kSquaredRelu, Activation::kQuickGelu};

double reference(Activation kind, double x) {
  switch (kind) {
    case Activation::kGelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kSquaredRelu:
      return x > 0 ? x * x : 0;
    case Activation::kQuickGelu:
      return x / (1 + std::exp(-1.702 * x));
  }
  return 0;
}

OpCase activation_case(Activation kind, bool gated) {
  return {concat("activation ", static_cast<int>(kind), gated ? " gated" : ""),
          {{{4, 6}, PlaceState::kShard1, 3}},
          {},
          [kind, gated](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{activation(bench.ctx, in[0], {kind, gated, false})}};
          }};
}

TEST(Activation, EveryKindPassesAllChecks) {
  for (Activation kind : kKinds) {
    check_op(activation_case(kind, false));
    check_op(activation_case(kind, true));
  }
}

TEST(Activation, GatedIsActivationOfTheGateTimesUp) {
  for (Activation kind : kKinds) {
    for (bool gated : {false, true}) {
      OpCase test = activation_case(kind, gated);
      OpValues values = values_for(test);
      std::size_t width = gated ? 3 : 6;
      std::vector<double> expected;
      for (std::size_t row = 0; row < 4; ++row) {
        for (std::size_t i = 0; i < width; ++i) {
          const double* x = values.inputs[0].data() + row * 6;
          expected.push_back(reference(kind, x[i]) * (gated ? x[3 + i] : 1));
        }
      }
      EXPECT_LT(relative_error(run_op(test, values, {}).outputs[0], expected), 1e-14) << test.name;
    }
  }
}

OpCase limited_case(Activation kind, const GateLimits& limits) {
  return {concat("limited activation ", static_cast<int>(kind)),
          {{{5, 8}, PlaceState::kShard1, 3}},
          {},
          [kind, limits](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{activation(bench.ctx, in[0], {kind, true, false, limits})}};
          }};
}

TEST(Activation, LimitedGatePassesAllChecks) {
  for (Activation kind : {Activation::kSilu, Activation::kQuickGelu}) {
    check_op(limited_case(kind, {0.7, 1}));
    check_op(limited_case(kind, {0, 0.5}));
  }
}

TEST(Activation, LimitsTheGateAboveAndUpOnBothSides) {
  OpCase test = limited_case(Activation::kQuickGelu, {0.7, 1});
  OpValues values = values_for(test);
  std::vector<double> expected;
  for (std::size_t row = 0; row < 5; ++row) {
    for (std::size_t i = 0; i < 4; ++i) {
      const double* x = values.inputs[0].data() + row * 8;
      expected.push_back(reference(Activation::kQuickGelu, std::min(x[i], 0.7)) *
                         (std::clamp(x[4 + i], -0.7, 0.7) + 1));
    }
  }
  EXPECT_LT(relative_error(run_op(test, values, {}).outputs[0], expected), 1e-14);
}

TEST(Activation, RegeneratedResultGivesTheSameBits) {
  for (bool gated : {false, true}) {
    auto build = [gated](bool regenerate) {
      return [gated, regenerate](Bench& bench, const std::vector<Var>& in) {
        Var y = activation(bench.ctx, in[0], {Activation::kSilu, gated, regenerate});
        return OpOutputs{{linear(bench.ctx, y, *bench.params[0], nullptr)}};
      };
    };
    OpCase kept = activation_case(Activation::kSilu, gated);
    kept.params.push_back({{5, gated ? 3 : 6}, {Axis::kTp, 1, {}}});
    kept.build = build(false);
    OpCase made_again = kept;
    made_again.build = build(true);
    expect_same_bits(kept, made_again);
  }
}

TEST(Add, RowPassesAllChecks) {
  check_op({"add", {{{3, 4}}, {{3, 4}}}, {}, [](Bench& bench, const std::vector<Var>& in) {
              return OpOutputs{{add(bench.ctx, in[0], in[1])}};
            }});
  check_op({"x + x", {{{3, 4}}}, {}, [](Bench& bench, const std::vector<Var>& in) {
              return OpOutputs{{add(bench.ctx, in[0], in[0])}};
            }});
}

// Both readers' gradients arrive.
TEST(Branch, PassesAllChecks) {
  check_op({"branch", {{{3, 4}}, {{3, 4}}}, {}, [](Bench& bench, const std::vector<Var>& in) {
              Var other = branch(bench.ctx, in[0]);
              return OpOutputs{{add(bench.ctx, in[0], in[1]), add(bench.ctx, other, other)}};
            }});
}

OpCase dropout_case(double p, std::int64_t columns, std::vector<std::int32_t> documents) {
  std::int64_t tokens = 0;
  for (std::int32_t length : documents) tokens += length;
  return {"dropout",
          {{{tokens, columns}}},
          {},
          [p](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{dropout(bench.ctx, in[0], p, bench.layout, RandomUse::kMlpDropout)}};
          },
          std::move(documents),
          true};
}

TEST(Dropout, RowPassesAllChecks) { check_op(dropout_case(0.4, 6, {3, 5})); }

TEST(Dropout, KeepsTheRightShareAndScalesIt) {
  OpCase test = dropout_case(0.3, 40, {200});
  OpValues values = values_for(test);
  OpResult result = run_op(test, values, {});
  double kept = 0;
  for (std::size_t i = 0; i < result.outputs[0].size(); ++i) {
    if (result.outputs[0][i] == 0) continue;
    ++kept;
    ASSERT_NEAR(result.outputs[0][i], values.inputs[0][i] / 0.7, 1e-12);
  }
  // Five standard deviations of 8000 draws.
  EXPECT_NEAR(kept / 8000, 0.7, 5 * std::sqrt(0.3 * 0.7 / 8000));
  // No row repeats another's mask.
  EXPECT_NE(std::vector<double>(result.outputs[0].begin(), result.outputs[0].begin() + 40),
            std::vector<double>(result.outputs[0].begin() + 40, result.outputs[0].begin() + 80));
}

TEST(Dropout, IsTheIdentityOutsideOfTraining) {
  OpCase test = dropout_case(0.3, 6, {4});
  test.training = false;
  OpValues values = values_for(test);
  EXPECT_EQ(run_op(test, values, {}).outputs[0], values.inputs[0]);
}

TEST(Dropout, MaskFollowsTheSampleNotTheMicroBatch) {
  auto mask = [](std::int64_t first_sample, std::size_t samples, std::int64_t layer,
                 RandomUse use) {
    Bench bench(Dtype::kF64);
    bench.ctx.training = true;
    bench.ctx.layer = layer;
    std::vector<SampleShape> list(samples, {{2, 3}});
    bench.layout = SequenceLayout::make(bench.ctx, list, first_sample);
    std::int64_t rows = bench.layout.tokens;
    Var x{bench.tensor({rows, 8}, std::vector<double>(static_cast<std::size_t>(rows * 8), 1.0)),
          {},
          -1,
          nullptr};
    return values_of(dropout(bench.ctx, x, 0.5, bench.layout, use).tensor);
  };
  std::vector<double> both = mask(6, 2, 1, RandomUse::kMlpDropout);
  std::vector<double> second = mask(7, 1, 1, RandomUse::kMlpDropout);
  EXPECT_EQ(std::vector<double>(both.begin() + 40, both.end()), second);
  EXPECT_NE(second, mask(7, 1, 2, RandomUse::kMlpDropout));
  EXPECT_NE(second, mask(7, 1, 1, RandomUse::kProjDropout));
  EXPECT_NE(second, mask(8, 1, 1, RandomUse::kMlpDropout));
}

}  // namespace
}  // namespace bev::test
