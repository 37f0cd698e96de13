#include "ops/norm.h"

#include <gtest/gtest.h>

#include "ops/elementwise.h"
#include "ops/linear.h"
#include "tests/support/op_checks.h"

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

OpCase norm_case(const Kind& kind, const Shape& x = {4, 7}) {
  OpCase test{concat(kind.name, " ", x[0], " x ", x[1]), {{x}}, {{{x[1]}}}};
  if (kind.bias) test.params.push_back({{x[1]}});
  test.build = [kind](Bench& bench, const std::vector<Var>& in) {
    return OpOutputs{{norm(bench.ctx, in[0], spec_of(kind, bench))}};
  };
  return test;
}

enum class Used { kBoth, kSum, kNormalised };

OpCase add_norm_case(const Kind& kind, Used used, const Shape& x = {4, 7}) {
  OpCase test = norm_case(kind, x);
  test.name = concat("add ", test.name, used == Used::kBoth ? "" : ", one used");
  test.inputs.push_back({x});
  test.build = [kind, used](Bench& bench, const std::vector<Var>& in) {
    AddNorm out = add_norm(bench.ctx, in[0], in[1], spec_of(kind, bench));
    OpOutputs outputs;
    if (used != Used::kNormalised) outputs.vars.push_back(out.sum);
    if (used != Used::kSum) outputs.vars.push_back(out.normalised);
    return outputs;
  };
  return test;
}

// Every width of a row of threads, widths that fill none of them, and rows that no register holds.
const Shape kShapes[] = {{1, 5},     {3, 7},     {700, 64},  {17, 256}, {17, 264}, {9, 512},
                         {9, 768},   {9, 1001},  {9, 1024},  {5, 4096}, {3, 5120}, {3, 8192},
                         {2, 12288}, {2, 16384}, {1, 40000}, {1, 70000}};

std::vector<OpCase> norm_rows() {
  std::vector<OpCase> rows;
  for (const Kind& kind : kKinds) rows.push_back(norm_case(kind));
  std::size_t next = 0;
  for (const Shape& shape : kShapes) rows.push_back(norm_case(kKinds[next++ % 6], shape));
  return rows;
}
const OpRows kNormRows("Norm", norm_rows());

std::vector<OpCase> add_norm_rows() {
  std::vector<OpCase> rows;
  for (const Kind& kind : {kKinds[0], kKinds[3]}) {
    rows.push_back(add_norm_case(kind, Used::kBoth));
    rows.push_back(add_norm_case(kind, Used::kNormalised));
  }
  std::size_t next = 3;
  for (const Shape& shape : kShapes) {
    rows.push_back(add_norm_case(kKinds[next++ % 6], Used::kBoth, shape));
  }
  return rows;
}
const OpRows kAddNormRows("AddNorm", add_norm_rows());

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

// A linear saves the result of the norm; with a recipe it is recomputed instead.
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

struct Heads {
  std::int64_t tokens, q, kv, size;
};

OpCase head_norm_case(double offset, const Heads& heads = {3, 3, 1, 4}) {
  return {concat(heads.tokens, " tokens, heads ", heads.q, " and ", heads.kv, " of ", heads.size,
                 ", offset ", offset),
          {{{heads.tokens, (heads.q + 2 * heads.kv) * heads.size}, PlaceState::kShard1}},
          {{{heads.size}}, {{heads.size}}},
          [offset, heads](Bench& bench, const std::vector<Var>& in) {
            HeadNormSpec spec{bench.params[0].get(),
                              bench.params[1].get(),
                              heads.q,
                              heads.kv,
                              heads.size,
                              1e-6,
                              offset};
            return OpOutputs{{head_norm(bench.ctx, in[0], spec)}};
          }};
}

std::vector<OpCase> head_norm_rows() {
  std::vector<OpCase> rows = {head_norm_case(0), head_norm_case(1)};
  for (const Heads& heads : {Heads{1, 1, 1, 64},
                             {17, 8, 2, 128},
                             {9, 4, 4, 256},
                             {7, 3, 1, 32},
                             {90, 5, 1, 128},
                             {20, 6, 2, 80},
                             {5, 2, 1, 33},
                             {5, 2, 2, 512}}) {
    rows.push_back(head_norm_case(1, heads));
  }
  return rows;
}
const OpRows kHeadNormRows("HeadNorm", head_norm_rows());

OpCase unit_head_norm_case(const Heads& heads) {
  OpCase test = head_norm_case(0, heads);
  test.name += ", no weights";
  test.params.clear();
  test.build = [heads](Bench& bench, const std::vector<Var>& in) {
    HeadNormSpec spec{nullptr, nullptr, heads.q, heads.kv, heads.size, 1e-6, 0};
    return OpOutputs{{head_norm(bench.ctx, in[0], spec)}};
  };
  return test;
}
const OpRows kUnitHeadNormRows("UnitHeadNorm", {unit_head_norm_case({3, 3, 1, 4}),
                                                unit_head_norm_case({5, 2, 1, 64})});

struct Widths {
  std::int64_t tokens, q, k, v;
};

OpCase width_norm_case(double offset, const Widths& widths) {
  return {concat(widths.tokens, " tokens, columns ", widths.q, ", ", widths.k, ", ", widths.v,
                 ", offset ", offset),
          {{{widths.tokens, widths.q + widths.k + widths.v}, PlaceState::kShard1}},
          {{{widths.q}}, {{widths.k}}},
          [offset, widths](Bench& bench, const std::vector<Var>& in) {
            WidthNormSpec spec{
                bench.params[0].get(), bench.params[1].get(), widths.q, widths.k, 1e-6, offset};
            return OpOutputs{{width_norm(bench.ctx, in[0], spec)}};
          }};
}
const OpRows kWidthNormRows("WidthNorm",
                            {width_norm_case(0, {3, 6, 4, 4}), width_norm_case(1, {5, 3, 2, 5}),
                             width_norm_case(0, {1, 1, 1, 1}),
                             width_norm_case(0, {37, 512, 128, 128}),
                             width_norm_case(1, {300, 67, 33, 9})});

TEST(WidthNorm, IsANormOfAllQAndOfAllK) {
  OpCase test = width_norm_case(0, {3, 6, 4, 4});
  OpValues values = values_for(test);
  OpResult result = run_op(test, values, {});
  std::vector<double> expected = values.inputs[0];
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t part = 0; part < 2; ++part) {
      const std::size_t columns = part == 0 ? 6 : 4;
      double* x = expected.data() + row * 14 + part * 6;
      double squares = 0;
      for (std::size_t c = 0; c < columns; ++c) squares += x[c] * x[c];
      const double rstd = 1 / std::sqrt(squares / static_cast<double>(columns) + 1e-6);
      for (std::size_t c = 0; c < columns; ++c) x[c] *= values.params[part][c] * rstd;
    }
  }
  EXPECT_LT(relative_error(result.outputs[0], expected), 1e-14);
}

TEST(HeadNorm, IsANormOfEachHead) {
  OpCase test = head_norm_case(0);
  OpValues values = values_for(test);
  OpResult result = run_op(test, values, {});
  std::vector<double> expected = values.inputs[0];
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t head = 0; head < 4; ++head) {  // the v head is unchanged
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
