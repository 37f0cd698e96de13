#include "ops/loss.h"

#include <gtest/gtest.h>

#include "tests/ops/head_cases.h"

namespace bev::test {
namespace {

double weight_of(std::int64_t token) { return token % 4 == 2 ? 0 : token % 3 == 0 ? 0.5 : 2; }

LossTargets targets_on(Bench& bench, std::int64_t tokens) {
  std::vector<double> weights;
  for (std::int64_t t = 0; t < tokens; ++t) weights.push_back(weight_of(t));
  return {bench.integers(targets_of(tokens)), bench.tensor({tokens}, weights, Dtype::kF32)};
}

OpCase loss_case(const Head& head) {
  return head_case("loss", head, [head](Bench& bench, const std::vector<Var>& in) {
    LossResult result =
        lm_head_loss(bench.ctx, in[0], targets_on(bench, head.tokens), spec_of(head, bench));
    std::vector<double> losses = bench.values(result.token_loss);
    double sum = 0;
    for (std::size_t t = 0; t < losses.size(); ++t) {
      sum += weight_of(static_cast<std::int64_t>(t)) * losses[t];
    }
    return OpOutputs{{result.loss}, bench.step.loss_factor * sum, {std::move(result.token_loss)}};
  });
}

const OpRows kLossRows("LmHeadLoss", head_rows(loss_case));

TEST(LmHeadLoss, IsTheDenseCrossEntropy) {
  for (const Head& head : kHeads) {
    OpCase test = loss_case(head);
    OpValues values = values_for(test);
    EXPECT_LT(relative_error(run_op(test, values, {}).outputs[1], dense_losses(head, values)),
              1e-13)
        << test.name;
  }
}

TEST(LmHeadLoss, ChunksGiveTheUnchunkedGradients) {
  OpCase chunked = loss_case(kHeads[5]), whole = chunked;
  Head head = kHeads[5];
  head.chunks = false;
  whole.build = loss_case(head).build;
  OpValues values = values_for(chunked);
  OpResult a = run_op(chunked, values, {}), b = run_op(whole, values, {});
  EXPECT_LT(relative_error(a.outputs[1], b.outputs[1]), 1e-14);
  EXPECT_LT(relative_error(a.input_grads[0], b.input_grads[0]), 1e-14);
  EXPECT_LT(relative_error(a.param_grads[0], b.param_grads[0]), 1e-13);
}

TEST(LmHeadLoss, PaddedRowsGiveTheSameBits) {
  Head padded = kHeads[7], plain = padded;
  plain.padded = false;
  OpValues values = values_for(loss_case(plain));
  for (Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBf16}) {
    OpRunOptions options;
    options.dtype = dtype;
    OpResult a = run_op(loss_case(padded), values, options);
    OpResult b = run_op(loss_case(plain), values, options);
    EXPECT_EQ(a.outputs[1], b.outputs[1]);
    EXPECT_EQ(a.input_grads[0], b.input_grads[0]);
    EXPECT_EQ(a.param_grads[0], b.param_grads[0]);
  }
}

TEST(LmHeadLoss, AnIgnoredTokenHasNoGradient) {
  OpCase test = loss_case(kHeads[0]);
  OpResult result = run_op(test, values_for(test), {});
  for (std::size_t i = 2 * kHidden; i < 3 * kHidden; ++i) EXPECT_EQ(result.input_grads[0][i], 0);
}

TEST(LmHeadLoss, NoTokensGiveAZeroGradient) {
  Head empty{"no tokens", 0};
  OpCase test = loss_case(empty);
  OpResult result = run_op(test, values_for(test), {});
  EXPECT_EQ(result.param_grads[0], std::vector<double>(kVocabulary * kHidden, 0.0));
}

// Adds the weight of the head to the bench and returns its input.
Var head_input(const Head& head, const OpValues& values, Bench& bench) {
  bench.param("head", {kVocabulary, kHidden}, {Axis::kTp, 0, {}}, values.params[0]);
  return {bench.tensor({head.tokens, kHidden}, values.inputs[0]),
          Placement().with(Axis::kTp, PlaceState::kCopied), -1, nullptr};
}

TEST(LmHeadLogits, AreTheDenseLogits) {
  for (const Head& head : kHeads) {
    Bench bench(Dtype::kF64, 1, kernels_of(head));
    OpValues values = values_for(loss_case(head));
    Var hidden = head_input(head, values, bench);
    Tensor logits = lm_head_logits(bench.ctx, hidden, spec_of(head, bench));
    EXPECT_LT(relative_error(values_of(logits), dense_logits(head, values)), 1e-13) << head.name;
  }
}

TEST(LmHeadLogits, ArePaddedAFewRowsAtATime) {
  Head head{"padded chunks", 640, 1, 0, true, true};
  Bench bench(Dtype::kF64, 1, kernels_of(head));
  OpValues values = values_for(loss_case(head));
  Var hidden = head_input(head, values, bench);
  std::size_t before = bench.arena.in_use();
  bench.arena.reset_peak();
  Tensor logits = lm_head_logits(bench.ctx, hidden, spec_of(head, bench));
  // The minimum number of rows, padded to a multiple of 16.
  std::size_t padded = 32 * 16 * sizeof(double);
  EXPECT_LE(bench.arena.peak() - before, logits.view().bytes() + padded + 512);
}

// A vocabulary split over ranks, also unevenly, gives the losses and gradients of one rank.
TEST(LmHeadLoss, TensorParallelRanksGiveOneRanksResult) {
  const Head& head = kHeads[3];
  OpCase test = loss_case(head);
  OpValues values = values_for(test);
  OpResult expected = run_op(test, values, {});
  for (int ranks : {2, 3, 4}) {
    SCOPED_TRACE(ranks);
    run_thread_ranks(ranks, {20.0}, [&](World& world) {
      Bench bench(world, {ranks, 1, 1, 1}, Dtype::kF64);
      Range rows = shard_range(kVocabulary, ranks, world.rank());
      auto first = values.params[0].begin();
      bench.param("head", {kVocabulary, kHidden}, {Axis::kTp, 0, {}},
                  {first + rows.begin * kHidden, first + rows.end * kHidden});
      Tape tape;
      bench.ctx.tape = &tape;
      Var hidden = tape.track(bench.tensor({head.tokens, kHidden}, values.inputs[0]),
                              Placement().with(Axis::kTp, PlaceState::kCopied));
      GradSlot in(hidden);
      LossResult result =
          lm_head_loss(bench.ctx, hidden, targets_on(bench, head.tokens), spec_of(head, bench));
      EXPECT_LT(relative_error(values_of(result.token_loss), expected.outputs[1]), 1e-13);
      tape.add_gradient(bench.ctx, GradSlot(result.loss), bench.tensor({1}, {1}), Placement());
      tape.backward(bench.ctx);
      Tensor dhidden = tape.take_gradient(in.id);
      bench.mesh.tp().all_reduce(dhidden, Reduction::kSum, "parts").wait();
      EXPECT_LT(relative_error(values_of(dhidden), expected.input_grads[0]), 1e-13);
      auto part = expected.param_grads[0].begin();
      EXPECT_LT(relative_error(bench.store.gradient(*bench.params[0]),
                               {part + rows.begin * kHidden, part + rows.end * kHidden}),
                1e-13);
    });
  }
}

}  // namespace
}  // namespace bev::test
