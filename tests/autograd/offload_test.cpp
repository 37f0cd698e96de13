#include "autograd/offload.h"

#include <gtest/gtest.h>

#include "tests/support/lazy_lane.h"
#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

using Numbers = std::vector<double>;

// Layers that keep what they are told to, on lanes that copy as late as they may.
struct Rig {
  explicit Rig(std::int64_t min_elements = 1)
      : bench(Dtype::kF64),
        offloader(lazy_kernels(), bench.ctx.stream, bench.arena, {100, {}, 1, min_elements}),
        pass(&offloader) {
    bench.ctx.tape = &tape;
  }

  Tensor make(const Numbers& numbers, const char* tag = "activations") {
    Tensor out = bench.ctx.allocate(Dtype::kF64, {static_cast<std::int64_t>(numbers.size())}, tag);
    bench.ctx.kernels.device.upload(bench.ctx.stream, numbers.data(), out);
    return out;
  }
  // The backward finds the kept tensors with these numbers.
  void keep(const Tensor& kept, Numbers expected) {
    tape.record("test", 0, [this, kept, expected](Backward&) {
      EXPECT_EQ(values_of(kept), expected);
      ++checked;
    });
  }
  void begin(const Tensor& input) { pass.begin_layer(bench.ctx, {0, 9, false}, input); }
  void end(const Tensor& result = {}) { pass.end_layer(bench.ctx, result); }
  // Ends another layer, and gives memory that is free by then to somebody who writes to it.
  void next_layer() {
    begin({});
    end();
    overwritten.push_back(make(Numbers(64, -7)));
  }
  // The same in a pass of another micro-batch.
  void next_pass() {
    OffloadPass other(&offloader);
    other.begin_layer(bench.ctx, {0, 9, false}, {});
    other.end_layer(bench.ctx, {});
    overwritten.push_back(make(Numbers(64, -7)));
  }
  std::size_t on_host() const { return offloader.host().in_use(); }

  Bench bench;
  Offloader offloader;
  OffloadPass pass;
  Tape tape;
  std::vector<Tensor> overwritten;
  int checked = 0;
};

TEST(Offload, ABlockMovesOnceHoweverManyHoldPartsOfIt) {
  Rig rig;
  {
    Tensor x = rig.make({0, 1, 2, 3, 4, 5, 6, 7}), made, result = rig.make({8});
    rig.begin(x);
    made = rig.make({9, 9});
    rig.keep(x, {0, 1, 2, 3, 4, 5, 6, 7});
    rig.keep(x.rows(2, 4), {2, 3});
    rig.keep(x.reshape({2, 4}).rows(1, 2).reshape({4}).rows(1, 3), {5, 6});
    rig.keep(made, {9, 9});
    result = rig.make({8});
    rig.keep(result, {8});
    rig.end(result);
    EXPECT_EQ(rig.on_host(), 128u);
  }
  std::size_t before = rig.bench.arena.in_use();
  rig.begin({});
  rig.end();
  EXPECT_EQ(rig.bench.arena.in_use(), before - 128);
  rig.next_layer();
  rig.tape.backward(rig.bench.ctx);
  EXPECT_EQ(rig.checked, 5);
  EXPECT_EQ(rig.on_host(), 0u);
}

TEST(Offload, WhoReadsATensorThatIsAwayGetsIt) {
  Rig rig;
  Tensor x = rig.make({1, 2, 3});
  Tensor part = x.rows(1, 3);
  const void* before = x.view().data;
  rig.begin(x);
  rig.keep(x, {1, 2, 3});
  rig.end();
  rig.next_layer();
  EXPECT_EQ(x.shape(), Shape{3});
  EXPECT_GT(rig.on_host(), 0u);
  EXPECT_EQ(values_of(part), (Numbers{2, 3}));
  EXPECT_EQ(rig.on_host(), 0u);
  EXPECT_NE(x.view().data, before);
  EXPECT_EQ(values_of(x), (Numbers{1, 2, 3}));
  rig.tape.backward(rig.bench.ctx);
  EXPECT_EQ(rig.checked, 1);
}

TEST(Offload, WhatNobodyKeepsAndWeightsAndSmallTensorsStay) {
  Rig rig(4);
  Tensor weight = rig.make({1, 2, 3, 4}, "weights"), small = rig.make({1, 2, 3});
  rig.begin(weight);
  rig.keep(weight, {1, 2, 3, 4});
  rig.keep(small, {1, 2, 3});
  rig.make({5, 6, 7, 8});
  rig.pass.mark(small);
  rig.pass.mark(Tensor());
  rig.end();
  EXPECT_EQ(rig.on_host(), 0u);
}

// In any state: on the way, away, on the way back, and arrived.
TEST(Offload, APassThatIsGivenUpLeavesNothing) {
  for (int state = 0; state < 4; ++state) {
    Rig rig;
    std::size_t empty = rig.bench.arena.in_use();
    {
      Tensor x = rig.make({1, 2, 3}), y = rig.make({4, 5});
      rig.begin(x);
      rig.keep(x, {1, 2, 3});
      rig.pass.mark(y);
      rig.keep(y, {4, 5});
      rig.end();
      if (state > 0) rig.next_pass();
      if (state > 1) rig.pass.prefetch();
      if (state > 2) y.view();
    }
    rig.overwritten.clear();
    rig.tape.clear();
    EXPECT_EQ(rig.on_host(), 0u);
    EXPECT_EQ(rig.bench.arena.in_use(), empty);
    // The memory is somebody else's by now, also that of copies not yet made.
    std::vector<Tensor> others;
    for (int i = 0; i < 16; ++i) others.push_back(rig.make({6, 6, 6}));
    rig.pass.clear();
    for (const Tensor& other : others) EXPECT_EQ(values_of(other), (Numbers{6, 6, 6}));
    rig.begin(others[0]);
    rig.keep(others[0], {6, 6, 6});
    rig.end();
    rig.next_pass();
    rig.tape.backward(rig.bench.ctx);
    EXPECT_EQ(rig.checked, 1);
  }
}

TEST(Offload, PassesInFlightKeepApart) {
  Rig rig;
  Tape tape;
  OffloadPass pass(&rig.offloader);
  for (double number : {1.0, 2.0, 3.0}) {
    rig.bench.ctx.tape = &rig.tape;
    Tensor x = rig.make({number, number}), y = rig.make({-number});
    rig.begin(x);
    rig.keep(x, {number, number});
    rig.end();
    rig.bench.ctx.tape = &tape;
    pass.begin_layer(rig.bench.ctx, {0, 9, false}, y);
    tape.record("test", 0, [&rig, y, number](Backward&) {
      EXPECT_EQ(values_of(y), Numbers{-number});
      ++rig.checked;
    });
    pass.end_layer(rig.bench.ctx, {});
  }
  std::size_t reserved = rig.offloader.host().reserved();
  pass.prefetch();
  tape.backward(rig.bench.ctx);
  rig.pass.prefetch();
  rig.tape.backward(rig.bench.ctx);
  EXPECT_EQ(rig.checked, 6);
  EXPECT_EQ(rig.on_host(), 0u);
  EXPECT_EQ(rig.offloader.host().reserved(), reserved);
}

}  // namespace
}  // namespace bev::test
