#include "ops/loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/cpu_kernels.h"
#include "kernels/loss.h"
#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

constexpr std::int64_t kHidden = 3, kVocabulary = 6;

struct Head {
  const char* name;
  std::int64_t tokens = 7;
  double logit_scale = 1, softcap = 0;
  bool chunks = false;
  bool padded = false;  // rows of logits
};
const Head kHeads[] = {{"plain"},
                       {"scale", 7, 0.3},
                       {"softcap", 7, 1, 1.2},
                       {"scale and softcap", 7, 1.7, 0.9},
                       {"chunks", 67, 1, 0, true},
                       {"chunks with all", 67, 1.7, 0.9, true},
                       {"padded", 7, 1.7, 0.9, false, true},
                       {"padded chunks", 67, 1, 0, true, true}};

std::vector<std::int32_t> targets_of(std::int64_t tokens) {
  std::vector<std::int32_t> targets;
  for (std::int64_t t = 0; t < tokens; ++t) {
    targets.push_back(t % 4 == 2 ? -100 : static_cast<std::int32_t>(t * 5 % kVocabulary));
  }
  return targets;
}
double weight_of(std::int64_t token) { return token % 4 == 2 ? 0 : token % 3 == 0 ? 0.5 : 2; }

LossTargets targets_on(Bench& bench, std::int64_t tokens) {
  std::vector<double> weights;
  for (std::int64_t t = 0; t < tokens; ++t) weights.push_back(weight_of(t));
  return {bench.integers(targets_of(tokens)), bench.tensor({tokens}, weights, Dtype::kF32)};
}

// Bench's, on a device that pads rows of logits. NaN would show if their padding counted.
Context context_of(const Head& head, const Bench& bench) {
  static const LossKernels loss = [] {
    LossKernels changed = cpu_kernels().loss;
    changed.logits.row_multiple = 16;
    return changed;
  }();
  static const Kernels padding = with_table(cpu_kernels(), loss);
  const Context& own = bench.ctx;
  Context ctx{head.padded ? padding : own.kernels,
              own.stream,
              own.arena,
              own.inputs,
              own.mesh,
              own.weights,
              own.grads,
              own.step,
              own.dtype};
  ctx.tape = own.tape;
  return ctx;
}

HeadSpec spec_of(const Head& head, const Bench& bench) {
  HeadSpec spec{bench.params[0].get(), head.logit_scale, head.softcap};
  if (head.chunks) spec.chunk_bytes = 1;
  return spec;
}

OpCase loss_case(const Head& head) {
  return {concat("loss ", head.name),
          {{{head.tokens, kHidden}, PlaceState::kCopied}},
          {{{kVocabulary, kHidden}, {Axis::kTp, 0, {}}}},
          [head](Bench& bench, const std::vector<Var>& in) {
            LossTargets targets = targets_on(bench, head.tokens);
            Context ctx = context_of(head, bench);
            LossResult result = lm_head_loss(ctx, in[0], targets, spec_of(head, bench));
            std::vector<double> losses = values_of(result.token_loss);
            double sum = 0;
            for (std::size_t t = 0; t < losses.size(); ++t) {
              sum += weight_of(static_cast<std::int64_t>(t)) * losses[t];
            }
            return OpOutputs{
                {result.loss}, bench.step.loss_factor * sum, {std::move(result.token_loss)}};
          }};
}

std::vector<double> dense_logits(const Head& head, const OpValues& values) {
  std::vector<double> logits;
  for (std::size_t t = 0; t < static_cast<std::size_t>(head.tokens); ++t) {
    for (std::size_t v = 0; v < kVocabulary; ++v) {
      double z = 0;
      for (std::size_t i = 0; i < kHidden; ++i) {
        z += values.inputs[0][t * kHidden + i] * values.params[0][v * kHidden + i];
      }
      z *= head.logit_scale;
      logits.push_back(head.softcap > 0 ? head.softcap * std::tanh(z / head.softcap) : z);
    }
  }
  return logits;
}

std::vector<double> dense_losses(const Head& head, const OpValues& values) {
  std::vector<double> logits = dense_logits(head, values), losses;
  std::vector<std::int32_t> targets = targets_of(head.tokens);
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const double* row = logits.data() + t * kVocabulary;
    double sum = 0;
    for (std::size_t v = 0; v < kVocabulary; ++v) sum += std::exp(row[v]);
    losses.push_back(targets[t] < 0 ? 0 : std::log(sum) - row[targets[t]]);
  }
  return losses;
}

TEST(LmHeadLoss, EveryOptionPassesAllChecks) {
  for (const Head& head : kHeads) check_op(loss_case(head));
}

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

// The head's weight into the bench, and its input.
Var head_input(const Head& head, const OpValues& values, Bench& bench) {
  bench.param("head", {kVocabulary, kHidden}, {Axis::kTp, 0, {}}, values.params[0]);
  return {bench.tensor({head.tokens, kHidden}, values.inputs[0]),
          Placement().with(Axis::kTp, PlaceState::kCopied), -1, nullptr};
}

TEST(LmHeadLogits, AreTheDenseLogits) {
  for (const Head& head : kHeads) {
    Bench bench(Dtype::kF64);
    OpValues values = values_for(loss_case(head));
    Var hidden = head_input(head, values, bench);
    Context ctx = context_of(head, bench);
    Tensor logits = lm_head_logits(ctx, hidden, spec_of(head, bench));
    EXPECT_LT(relative_error(values_of(logits), dense_logits(head, values)), 1e-13) << head.name;
  }
}

TEST(LmHeadLogits, ArePaddedAFewRowsAtATime) {
  Head head{"padded chunks", 640, 1, 0, true, true};
  Bench bench(Dtype::kF64);
  OpValues values = values_for(loss_case(head));
  Var hidden = head_input(head, values, bench);
  Context ctx = context_of(head, bench);
  std::size_t before = bench.arena.in_use();
  bench.arena.reset_peak();
  Tensor logits = lm_head_logits(ctx, hidden, spec_of(head, bench));
  std::size_t padded = 32 * 16 * sizeof(double);  // the fewest rows, to a multiple of 16
  EXPECT_LE(bench.arena.peak() - before, logits.view().bytes() + padded + 512);
}

// The vocabulary cut over ranks, also unevenly, gives one rank's losses and gradients.
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
