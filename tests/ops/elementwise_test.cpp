#include "ops/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/linear.h"
#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

constexpr Activation kKinds[] = {
    Activation::kGelu,        Activation::kGeluTanh,  Activation::kSilu, Activation::kRelu,
    Activation::kSquaredRelu, Activation::kQuickGelu, Activation::kTanh};

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
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kXielu:  // an op of its own
      break;
  }
  return 0;
}

OpCase activation_case(Activation kind, bool gated, const Shape& x = {4, 6}) {
  return {concat("activation ", static_cast<int>(kind), gated ? " gated " : " ", x[0], " x ", x[1]),
          {{x, PlaceState::kShard1, 3}},
          {},
          [kind, gated](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{activation(bench.ctx, in[0], {kind, gated, false})}};
          }};
}

OpCase limited_case(Activation kind, const GateLimits& limits, const Shape& x = {5, 8}) {
  return {concat("limited activation ", static_cast<int>(kind), " clamp ", limits.clamp, " ", x[0],
                 " x ", x[1]),
          {{x, PlaceState::kShard1, 3}},
          {},
          [kind, limits](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{activation(bench.ctx, in[0], {kind, true, false, limits})}};
          }};
}

// One number in a row, whole vectors of a kernel and parts of one, many rows.
std::vector<OpCase> activation_rows() {
  std::vector<OpCase> rows;
  for (Activation kind : kKinds) {
    for (bool gated : {false, true}) {
      const std::int64_t parts = gated ? 2 : 1;
      rows.push_back(activation_case(kind, gated));
      rows.push_back(activation_case(kind, gated, {13, parts}));
      rows.push_back(activation_case(kind, gated, {1001, 8 * parts}));
      rows.push_back(activation_case(kind, gated, {13, 77 * parts}));
      rows.push_back(activation_case(kind, gated, {2, 4096 * parts}));
    }
  }
  for (Activation kind : {Activation::kSilu, Activation::kQuickGelu}) {
    rows.push_back(limited_case(kind, {0.7, 1}));
    rows.push_back(limited_case(kind, {0, 0.5}));
    rows.push_back(limited_case(kind, {0.75, 1}, {13, 2 * 77}));
    rows.push_back(limited_case(kind, {0.75, 1}, {3, 2 * 2048}));
  }
  return rows;
}
const OpRows kActivationRows("Activation", activation_rows());

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

std::vector<OpCase> add_rows() {
  std::vector<OpCase> rows;
  for (const Shape& x : {Shape{3, 4}, {13, 769}}) {
    rows.push_back({concat("two of ", x[0], " x ", x[1]),
                    {{x}, {x}},
                    {},
                    [](Bench& bench, const std::vector<Var>& in) {
                      return OpOutputs{{add(bench.ctx, in[0], in[1])}};
                    }});
    rows.push_back({concat("one twice of ", x[0], " x ", x[1]),
                    {{x}},
                    {},
                    [](Bench& bench, const std::vector<Var>& in) {
                      return OpOutputs{{add(bench.ctx, in[0], in[0])}};
                    }});
  }
  return rows;
}
const OpRows kAddRows("Add", add_rows());

// Both readers' gradients arrive.
const OpRows kBranchRows(
    "Branch", {{"branch", {{{3, 4}}, {{3, 4}}}, {}, [](Bench& bench, const std::vector<Var>& in) {
                  Var other = branch(bench.ctx, in[0]);
                  return OpOutputs{{add(bench.ctx, in[0], in[1]), add(bench.ctx, other, other)}};
                }}});

OpCase dropout_case(double p, std::int64_t columns, std::vector<std::int32_t> documents) {
  std::int64_t tokens = 0;
  for (std::int32_t length : documents) tokens += length;
  return {concat("columns ", columns),
          {{{tokens, columns}}},
          {},
          [p](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{dropout(bench.ctx, in[0], p, bench.layout, RandomUse::kMlpDropout)}};
          },
          std::move(documents),
          true};
}

const OpRows kDropoutRows("Dropout",
                          {dropout_case(0.4, 6, {3, 5}), dropout_case(0.3, 1, {200, 301}),
                           dropout_case(0.3, 64, {37}), dropout_case(0.3, 1001, {30, 7}),
                           dropout_case(0.3, 1000, {37})});

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
  // Different rows have different masks.
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
