#include "ops/norm.h"

#include <gtest/gtest.h>

#include "ops/elementwise.h"
#include "ops/linear.h"
#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

struct Kind {
  const char* name;
  bool center, bias;
  double offset;
};
constexpr Kind kKinds[] = {{"rms", false, false, 0},
                           {"rms one plus", false, false, 1},
                           {"rms with bias", false, true, 0},
                           {"layer", true, true, 0},
                           {"layer without bias", true, false, 0},
                           {"layer one plus", true, true, 1}};

NormSpec spec_of(const Kind& kind, const Bench& bench, bool regenerate = false) {
  NormSpec spec;
  spec.weight = bench.params[0].get();
  if (kind.bias) spec.bias = bench.params[1].get();
  spec.center = kind.center;
  spec.offset = kind.offset;
  spec.regenerate = regenerate;
  return spec;
}

OpCase norm_case(const Kind& kind) {
  OpCase test{kind.name, {{{4, 7}}}, {{{7}}}};
  if (kind.bias) test.params.push_back({{7}});
  test.build = [kind](Bench& bench, const std::vector<Var>& in) {
    return OpOutputs{{norm(bench.ctx, in[0], spec_of(kind, bench))}};
  };
  return test;
}

enum class Used { kBoth, kSum, kNormalised };

OpCase add_norm_case(const Kind& kind, Used used) {
  OpCase test = norm_case(kind);
  test.name = concat("add ", kind.name, " ", static_cast<int>(used));
  test.inputs.push_back({{4, 7}});
  test.build = [kind, used](Bench& bench, const std::vector<Var>& in) {
    AddNorm out = add_norm(bench.ctx, in[0], in[1], spec_of(kind, bench));
    OpOutputs outputs;
    if (used != Used::kNormalised) outputs.vars.push_back(out.sum);
    if (used != Used::kSum) outputs.vars.push_back(out.normalised);
    return outputs;
  };
  return test;
}

TEST(Norm, EveryKindPassesAllChecks) {
  for (const Kind& kind : kKinds) check_op(norm_case(kind));
}

TEST(AddNorm, PassesAllChecksWithBothOutputsOrTheNormalisedOne) {
  for (const Kind& kind : {kKinds[0], kKinds[3]}) {
    check_op(add_norm_case(kind, Used::kBoth));
    check_op(add_norm_case(kind, Used::kNormalised));
  }
}

TEST(AddNorm, OnlyTheSumUsedGivesTheSumsGradientAndNoneForTheWeight) {
  OpCase test = add_norm_case(kKinds[0], Used::kSum);
  OpResult result = run_op(test, values_for(test), {});
  EXPECT_EQ(result.input_grads[0], result.input_grads[1]);
  EXPECT_EQ(result.sinks[0], 0);
  EXPECT_EQ(result.input_grads[0].size(), 28u);
}

TEST(AddNorm, IsAddThenNorm) {
  for (const Kind& kind : kKinds) {
    OpCase fused = add_norm_case(kind, Used::kNormalised), apart = fused;
    apart.build = [kind](Bench& bench, const std::vector<Var>& in) {
      Var sum = add(bench.ctx, in[0], in[1]);
      return OpOutputs{{norm(bench.ctx, sum, spec_of(kind, bench))}};
    };
    OpValues values = values_for(fused);
    OpResult a = run_op(fused, values, {}), b = run_op(apart, values, {});
    EXPECT_LT(relative_error(a.outputs[0], b.outputs[0]), 1e-14);
    EXPECT_LT(relative_error(a.input_grads[0], b.input_grads[0]), 1e-14);
    EXPECT_LT(relative_error(a.param_grads[0], b.param_grads[0]), 1e-14);
  }
}

// A linear keeps the norm's result; with a recipe it is made again instead.
TEST(Norm, RegeneratedResultGivesTheSameBits) {
  for (const Kind& kind : kKinds) {
    for (bool fused : {false, true}) {
      auto build = [kind, fused](bool regenerate) {
        return [kind, fused, regenerate](Bench& bench, const std::vector<Var>& in) {
          NormSpec spec = spec_of(kind, bench, regenerate);
          Var y = fused ? add_norm(bench.ctx, in[0], in[1], spec).normalised
                        : norm(bench.ctx, in[0], spec);
          return OpOutputs{{linear(bench.ctx, y, *bench.params.back(), nullptr)}};
        };
      };
      OpCase kept = fused ? add_norm_case(kind, Used::kNormalised) : norm_case(kind);
      kept.params.push_back({{3, 7}});
      kept.build = build(false);
      OpCase made_again = kept;
      made_again.build = build(true);
      expect_same_bits(kept, made_again);
    }
  }
}

OpCase head_norm_case(double offset) {
  // 3 q heads and 1 kv head of 4
  return {concat("heads offset ", offset),
          {{{3, 20}, PlaceState::kShard1}},
          {{{4}}, {{4}}},
          [offset](Bench& bench, const std::vector<Var>& in) {
            HeadNormSpec spec{bench.params[0].get(), bench.params[1].get(), 3, 1, 4, 1e-6, offset};
            return OpOutputs{{head_norm(bench.ctx, in[0], spec)}};
          }};
}

TEST(HeadNorm, PassesAllChecks) {
  check_op(head_norm_case(0));
  check_op(head_norm_case(1));
}

TEST(HeadNorm, IsANormOfEachHead) {
  OpCase test = head_norm_case(0);
  OpValues values = values_for(test);
  OpResult result = run_op(test, values, {});
  std::vector<double> expected = values.inputs[0];
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t head = 0; head < 4; ++head) {  // the v head stays
      double* x = expected.data() + row * 20 + head * 4;
      double squares = 0;
      for (int d = 0; d < 4; ++d) squares += x[d] * x[d];
      const std::vector<double>& weight = values.params[head < 3 ? 0 : 1];
      for (std::size_t d = 0; d < 4; ++d) x[d] *= weight[d] / std::sqrt(squares / 4 + 1e-6);
    }
  }
  EXPECT_LT(relative_error(result.outputs[0], expected), 1e-14);
}

}  // namespace
}  // namespace bev::test
