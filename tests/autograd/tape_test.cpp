#include "autograd/tape.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "autograd/recompute.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

using Numbers = std::vector<double>;

Placement on_tp(PlaceState state) { return Placement().with(Axis::kTp, state); }

TEST(Tape, AccumulationNeverWritesSharedMemory) {
  Bench bench(Dtype::kF64);
  Tape tape;
  Var x = tape.track(bench.tensor({2}, {0, 0}), {});
  Tensor first = bench.tensor({2}, {1, 2}), second = bench.tensor({2}, {10, 20});
  tape.add_gradient(bench.ctx, GradSlot(x), first, {});
  tape.add_gradient(bench.ctx, GradSlot(x), second, {});
  EXPECT_EQ(values_of(first), (Numbers{1, 2}));
  EXPECT_EQ(values_of(second), (Numbers{10, 20}));
  EXPECT_EQ(values_of(tape.take_gradient(x.id)), (Numbers{11, 22}));
  EXPECT_TRUE(tape.take_gradient(x.id).empty());
}

TEST(Tape, AccumulationReusesMemoryThatNobodyElseHolds) {
  Bench bench(Dtype::kF64);
  Tape tape;
  Var x = tape.track(bench.tensor({2}, {0, 0}), {});
  Tensor held = bench.tensor({2}, {1, 2}), free = bench.tensor({2}, {10, 20});
  const void* reused = free.view().data;
  tape.add_gradient(bench.ctx, GradSlot(x), held, {});
  tape.add_gradient(bench.ctx, GradSlot(x), std::move(free), {});
  Tensor sum = tape.take_gradient(x.id);
  EXPECT_EQ(sum.view().data, reused);
  EXPECT_EQ(values_of(sum), (Numbers{11, 22}));
  EXPECT_EQ(values_of(held), (Numbers{1, 2}));
}

// Makes one tensor, and counts.
class CountedRecipe final : public Recipe {
 public:
  explicit CountedRecipe(Tensor tensor) : tensor_(std::move(tensor)) {}
  Tensor make(Context&) const override {
    ++made;
    return tensor_;
  }
  mutable int made = 0;

 private:
  Tensor tensor_;
};

TEST(Tape, GradientsThatNobodyWroteAreMadeWhereSomebodyNeedsThem) {
  Bench bench(Dtype::kF64);
  Tape tape;
  Var x = tape.track(bench.tensor({2}, {0, 0}), {});
  auto recipe = std::make_shared<CountedRecipe>(bench.tensor({2}, {1, 2}));
  Value unwritten(Tensor::unwritten(Dtype::kF64, {2}), recipe, {});
  tape.add_gradient(bench.ctx, GradSlot(x), unwritten, {});
  EXPECT_EQ(tape.take_value(x.id).source, recipe);
  EXPECT_EQ(recipe->made, 0);
  tape.add_gradient(bench.ctx, GradSlot(x), unwritten, {});
  tape.add_gradient(bench.ctx, GradSlot(x), Value(bench.tensor({2}, {10, 20})), {});
  EXPECT_EQ(values_of(tape.take_gradient(x.id)), (Numbers{11, 22}));
  EXPECT_EQ(recipe->made, 1);
  tape.add_gradient(bench.ctx, GradSlot(x), unwritten, {});
  expect_error(ErrorKind::kInternal, {"gradient"}, [&] { tape.take_gradient(x.id); });
}

// A largest number is that of one gradient, not of a sum.
TEST(Tape, SumsLoseTheLargestNumber) {
  Bench bench(Dtype::kF64);
  Tape tape;
  Var x = tape.track(bench.tensor({2}, {0, 0}), {});
  Value known(bench.tensor({2}, {1, 2}), bench.tensor({1}, {2}, Dtype::kF32));
  tape.add_gradient(bench.ctx, GradSlot(x), known, {});
  EXPECT_FALSE(tape.take_value(x.id).amax.empty());
  tape.add_gradient(bench.ctx, GradSlot(x), known, {});
  tape.add_gradient(bench.ctx, GradSlot(x), known, {});
  EXPECT_TRUE(tape.take_value(x.id).amax.empty());
}

TEST(Tape, AWrongPlacementNamesOpLayerAndPlacements) {
  Bench bench(Dtype::kF64);
  Tape tape;
  Var x = tape.track(bench.tensor({2}, {0, 0}), on_tp(PlaceState::kCopied));
  tape.record("guilty_op", 17, [slot = GradSlot(x)](Backward& back) {
    back.add(slot, back.ctx.allocate(Dtype::kF64, {2}, "test"), Placement());
  });
  expect_error(ErrorKind::kInternal,
               {"guilty_op", "layer 17", "{replicated}", "{tp: copied}", "{tp: partial}"},
               [&] { tape.backward(bench.ctx); });
}

TEST(Tape, GradientsOfOneValueMustAgreeInShape) {
  Bench bench(Dtype::kF64);
  Tape tape;
  Var x = tape.track(bench.tensor({2}, {0, 0}), {});
  tape.add_gradient(bench.ctx, GradSlot(x), bench.tensor({2}, {1, 2}), {});
  expect_error(ErrorKind::kShape, {"[2]", "[3]"}, [&] {
    tape.add_gradient(bench.ctx, GradSlot(x), bench.tensor({3}, {1, 2, 3}), {});
  });
}

TEST(Tape, EveryPlacementIsTheDualOfItsDual) {
  for (int state = 0; state < 5; ++state) {
    Placement placement = on_tp(static_cast<PlaceState>(state));
    EXPECT_EQ(placement.dual().dual(), placement);
  }
  EXPECT_EQ(on_tp(PlaceState::kCopied).dual(), on_tp(PlaceState::kPartial));
  EXPECT_EQ(on_tp(PlaceState::kShard1).dual(), on_tp(PlaceState::kShard1));
}

struct Counted {
  int* alive;
  explicit Counted(int* count) : alive(count) { ++*alive; }
  Counted(const Counted& other) : Counted(other.alive) {}
  ~Counted() { --*alive; }
};

TEST(Tape, ClosuresRunLastFirstAndAreDestroyedAsItGoes) {
  Bench bench(Dtype::kF64);
  Tape tape;
  int alive = 0;
  std::vector<int> order, alive_in_call;
  std::vector<std::int64_t> layers;
  for (int i = 0; i < 3; ++i) {
    tape.record("op", i, [i, &order, &alive_in_call, &layers, c = Counted(&alive)](Backward& back) {
      order.push_back(i);
      alive_in_call.push_back(*c.alive);
      layers.push_back(back.ctx.layer);
    });
  }
  EXPECT_EQ(tape.size(), 3u);
  EXPECT_EQ(alive, 3);
  bench.ctx.layer = 9;
  tape.backward(bench.ctx);
  EXPECT_EQ(order, (std::vector<int>{2, 1, 0}));
  EXPECT_EQ(alive_in_call, (std::vector<int>{3, 2, 1}));
  EXPECT_EQ(layers, (std::vector<std::int64_t>{2, 1, 0}));
  EXPECT_EQ(bench.ctx.layer, 9);
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(tape.size(), 0u);
}

TEST(Tape, ClearAndTheDestructorDestroyClosures) {
  int alive = 0;
  {
    Tape tape;
    tape.record("op", 0, [c = Counted(&alive)](Backward&) {});
    tape.clear();
    EXPECT_EQ(alive, 0);
    tape.record("op", 0, [c = Counted(&alive)](Backward&) {});
    EXPECT_EQ(alive, 1);
  }
  EXPECT_EQ(alive, 0);
}

TEST(Tape, AThrowingClosureIsStillDestroyedOnce) {
  Bench bench(Dtype::kF64);
  int alive = 0;
  {
    Tape tape;
    tape.record("op", 0, [c = Counted(&alive)](Backward&) {});
    tape.record("op", 0, [c = Counted(&alive)](Backward&) { BEV_FAIL("on purpose"); });
    expect_error(ErrorKind::kShape, {"on purpose"}, [&] { tape.backward(bench.ctx); });
  }
  EXPECT_EQ(alive, 0);
}

TEST(Tape, SlabsAreReused) {
  Bench bench(Dtype::kF64);
  Tape tape;
  auto addresses = [&] {
    std::set<const void*> seen;
    for (int i = 0; i < 300; ++i) {
      std::array<std::byte, 1000> payload{};
      tape.record("op", 0, [payload, &seen](Backward&) { seen.insert(&payload); });
    }
    tape.backward(bench.ctx);
    return seen;
  };
  std::set<const void*> first = addresses();
  EXPECT_EQ(first.size(), 300u);
  EXPECT_EQ(addresses(), first);
}

TEST(Tape, AClosureLargerThanASlabIsAnError) {
  Tape tape;
  struct Huge {
    std::byte bytes[70'000];
  };
  auto huge = std::make_unique<Huge>();
  expect_error(ErrorKind::kInternal, {"closure"},
               [&] { tape.record("op", 0, [copy = *huge](Backward&) { (void)copy; }); });
  EXPECT_EQ(tape.size(), 0u);
}

// x -> linear a -> linear b -> linear c
struct Chain {
  explicit Chain(Bench& bench) {
    for (const char* name : {"a", "b", "c"}) {
      params.push_back(&bench.param(name, {3, 3}, {}, case_numbers(9, params.size())));
    }
  }
  Var run(Bench& bench, Var x) {
    for (const Param* param : params) x = linear(bench.ctx, x, *param, nullptr);
    return x;
  }
  std::vector<Param*> params;
};

TEST(Tape, RecordsNothingUpstreamOfTheFirstThingThatTrains) {
  for (std::size_t trains = 0; trains < 3; ++trains) {
    Bench bench(Dtype::kF64);
    Chain chain(bench);
    for (std::size_t i = 0; i < 3; ++i) chain.params[i]->trains = i == trains;
    Tape tape;
    bench.ctx.tape = &tape;
    GradSlot out(chain.run(bench, Var{bench.tensor({2, 3}, case_numbers(6, 9)), {}, -1, nullptr}));
    EXPECT_EQ(tape.size(), 3 - trains);
    tape.add_gradient(bench.ctx, out, bench.tensor({2, 3}, case_numbers(6, 10)), {});
    tape.backward(bench.ctx);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(bench.store.sinks(*chain.params[i]), i == trains ? 1 : 0);
    }
  }
}

TEST(Tape, RecordsNothingWhenNothingTrainsOrNoTapeIsSet) {
  Bench bench(Dtype::kF64);
  Chain chain(bench);
  Var x{bench.tensor({2, 3}, case_numbers(6, 9)), {}, -1, nullptr};
  EXPECT_FALSE(chain.run(bench, x).tracked());
  Tape tape;
  bench.ctx.tape = &tape;
  for (Param* param : chain.params) param->trains = false;
  EXPECT_FALSE(chain.run(bench, x).tracked());
  EXPECT_EQ(tape.size(), 0u);
}

TEST(Tape, WhatIsNotUsedCostsNoBackward) {
  Bench bench(Dtype::kF64);
  Chain chain(bench);
  Tape tape;
  bench.ctx.tape = &tape;
  Var x = tape.track(bench.tensor({2, 3}, case_numbers(6, 9)), {});
  Var used = linear(bench.ctx, x, *chain.params[0], nullptr);
  linear(bench.ctx, used, *chain.params[1], nullptr);
  tape.add_gradient(bench.ctx, GradSlot(used), bench.tensor({2, 3}, case_numbers(6, 1)), {});
  tape.backward(bench.ctx);
  EXPECT_EQ(bench.store.sinks(*chain.params[0]), 1);
  EXPECT_EQ(bench.store.sinks(*chain.params[1]), 0);
}

TEST(Tape, SavedTensorsGoAsTheBackwardPasses) {
  Bench bench(Dtype::kF64);
  Tape tape;
  std::vector<std::size_t> in_use;
  for (int i = 0; i < 3; ++i) {
    tape.record("op", 0,
                [&in_use, saved = Saved(bench.tensor({8}, Numbers(8, 1.0)))](Backward& back) {
                  in_use.push_back(back.ctx.arena.in_use());
                });
  }
  tape.backward(bench.ctx);
  EXPECT_EQ(in_use, (std::vector<std::size_t>{192, 128, 64}));
  EXPECT_EQ(bench.arena.in_use(), 0u);
}

TEST(DeferredWgrad, RunsInTheOrderItCameAndIsForgotten) {
  Bench bench(Dtype::kF64);
  DeferredWgrad work;
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) {
    work.add("op", i, [i, &order](Context& ctx) {
      EXPECT_EQ(ctx.layer, i);
      order.push_back(i);
    });
  }
  EXPECT_FALSE(work.empty());
  work.run(bench.ctx);
  EXPECT_TRUE(work.empty());
  work.run(bench.ctx);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

// The probe: a chain whose middle weight is bad.
FiniteProbe probe_chain(double middle_weight) {
  Bench bench(Dtype::kF32);
  Chain chain(bench);
  bench.store.use(*chain.params[1]).view.as<float>()[4] = static_cast<float>(middle_weight);
  FiniteProbe probe;
  bench.ctx.probe = &probe;
  Tape tape;
  bench.ctx.tape = &tape;
  Var x = tape.track(bench.tensor({2, 3}, case_numbers(6, 9)), {});
  for (std::size_t i = 0; i < 3; ++i) {
    bench.ctx.layer = static_cast<std::int64_t>(i);
    x = i == 1 ? linear(bench.ctx, x, *chain.params[i], nullptr)
               : recompute(bench.ctx, "unit", x, [w = chain.params[i]](Context& ctx, const Var& y) {
                   return linear(ctx, y, *w, nullptr);
                 });
  }
  tape.add_gradient(bench.ctx, GradSlot(x), bench.tensor({2, 3}, case_numbers(6, 10)), {});
  tape.backward(bench.ctx);
  EXPECT_FALSE(probe.in_backward);
  return probe;
}

TEST(FiniteProbe, FindsNothingInAHealthyStep) { EXPECT_FALSE(probe_chain(0.5).found); }

TEST(FiniteProbe, NamesTheFirstBadOpAndLayerOfTheForward) {
  FiniteProbe probe = probe_chain(std::numeric_limits<double>::infinity());
  EXPECT_TRUE(probe.found);
  EXPECT_FALSE(probe.found_in_backward);
  EXPECT_EQ(probe.message, "layer 1, op linear: result [2, 3] holds NaN or Inf");
}

// Layer 2 is recomputed: its inner backward comes and goes before layer 1's gradient overflows.
TEST(FiniteProbe, KnowsTheBackwardAfterARecomputedPart) {
  Bench bench(Dtype::kF32);
  Param& w = bench.param("w", {3, 3}, {}, case_numbers(9, 1));
  FiniteProbe probe;
  bench.ctx.probe = &probe;
  Tape tape;
  bench.ctx.tape = &tape;
  Var x = tape.track(bench.tensor({2, 3}, case_numbers(6, 9)), {});
  bench.ctx.layer = 1;
  Var bad = make_output(bench.ctx, "explode", bench.tensor({2, 3}, case_numbers(6, 8)), {}, true);
  tape.record("explode", 1, [in = GradSlot(x), out = GradSlot(bad)](Backward& back) {
    Tensor dy = back.take(out);
    dy.as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    back.add(in, std::move(dy));
  });
  bench.ctx.layer = 2;
  Var y = recompute(bench.ctx, "unit", bad,
                    [&w](Context& ctx, const Var& v) { return linear(ctx, v, w, nullptr); });
  tape.add_gradient(bench.ctx, GradSlot(y), bench.tensor({2, 3}, case_numbers(6, 10)), {});
  tape.backward(bench.ctx);
  EXPECT_TRUE(probe.found);
  EXPECT_TRUE(probe.found_in_backward);
  EXPECT_EQ(probe.message, "layer 1, op explode: gradient [2, 3] holds NaN or Inf");
}

}  // namespace
}  // namespace bev::test
