#include "autograd/recompute.h"

#include <gtest/gtest.h>

#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

// norm, linear, activation, dropout, linear, residual.
Var part(Bench& bench, Context& ctx, const Var& x) {
  NormSpec spec;
  spec.weight = bench.params[0].get();
  spec.regenerate = true;
  Var y = linear(ctx, norm(ctx, x, spec), *bench.params[1], bench.params[2].get());
  y = activation(ctx, y, {Activation::kSilu, true, true});
  y = dropout(ctx, linear(ctx, y, *bench.params[3], nullptr), 0.25, bench.layout,
              RandomUse::kMlpDropout);
  return add(ctx, x, y);
}

enum class How { kKept, kRecomputed, kNested };

OpCase composite(How how) {
  OpCase test{how == How::kKept ? "composite" : "recomputed",
              {{{5, 4}}},
              {{{4}}, {{6, 4}}, {{6}}, {{4, 3}}}};
  test.documents = {2, 3};
  test.training = true;
  test.build = [how](Bench& bench, const std::vector<Var>& in) {
    auto once = [&bench](Context& ctx, const Var& x) { return part(bench, ctx, x); };
    auto twice = [once](Context& ctx, const Var& x) {
      return recompute(ctx, "inner", once(ctx, x), once);
    };
    if (how == How::kKept) return OpOutputs{{once(bench.ctx, once(bench.ctx, in[0]))}};
    if (how == How::kNested) return OpOutputs{{recompute(bench.ctx, "outer", in[0], twice)}};
    return OpOutputs{
        {recompute(bench.ctx, "second", recompute(bench.ctx, "first", in[0], once), once)}};
  };
  return test;
}

const OpRows kRows("Recompute", {composite(How::kKept), composite(How::kRecomputed)});

TEST(Recompute, DoesNotChangeABit) {
  expect_same_bits(composite(How::kKept), composite(How::kRecomputed));
  expect_same_bits(composite(How::kKept), composite(How::kNested));
}

TEST(Recompute, KeepsTheInputOnly) {
  auto held = [](How how) {
    OpCase test = composite(how);
    OpValues values = values_for(test);
    Bench bench(Dtype::kF64);
    for (std::size_t i = 0; i < 4; ++i) {
      bench.param("p", test.params[i].shape, {}, values.params[i]);
    }
    SampleShape sample{{2, 3}};
    bench.layout = SequenceLayout::make(bench.ctx, {&sample, 1}, 0);
    Tape tape;
    bench.ctx.tape = &tape;
    std::vector<Var> in = {tape.track(bench.tensor({5, 4}, values.inputs[0]), {})};
    std::size_t before = bench.arena.in_use();
    OpOutputs outputs = test.build(bench, in);
    outputs = {};
    return bench.arena.in_use() - before;
  };
  // Between the two parts there is one tensor of [5, 4]; nested, only the input is saved.
  EXPECT_EQ(held(How::kRecomputed), 192u);
  EXPECT_EQ(held(How::kNested), 0u);
  EXPECT_GT(held(How::kKept), 4 * 192u);
}

}  // namespace
}  // namespace bev::test
