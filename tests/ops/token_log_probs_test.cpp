#include "ops/token_log_probs.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "autograd/recompute.h"
#include "ops/collective.h"
#include "tests/ops/head_cases.h"
#include "tests/support/expect_error.h"

namespace bev::test {
namespace {

using Numbers = std::vector<double>;

Var log_probs(Bench& bench, const Head& head, const Var& hidden) {
  return token_log_probs(bench.ctx, hidden, bench.integers(targets_of(head.tokens)),
                         spec_of(head, bench));
}

OpCase log_probs_case(const Head& head) {
  return head_case("log probs", head, [head](Bench& bench, const std::vector<Var>& in) {
    return OpOutputs{{log_probs(bench, head, in[0])}};
  });
}

// Token weights of an objective, of both signs.
Numbers token_gradients(const Head& head) { return case_numbers(head.tokens, 99, 2); }

Numbers negative(Numbers list) {
  for (double& x : list) x = -x;
  return list;
}

// A weight that two objectives of a micro-batch use gets the sum of both gradients.
OpCase two_uses_case() {
  Head head{"twice", 35, 1.3, 2, true};
  return head_case("log probs", head, [head](Bench& bench, const std::vector<Var>& in) {
    std::vector<std::int32_t> others(static_cast<std::size_t>(head.tokens), 3);
    Var second =
        token_log_probs(bench.ctx, in[0], bench.integers(others), {bench.params[0].get(), 0.5});
    return OpOutputs{{log_probs(bench, head, in[0]), second}};
  });
}

const OpRows kHeadRows("TokenLogProbs", head_rows(log_probs_case));
const OpRows kTwoUses("TokenLogProbs", {two_uses_case()});

TEST(TokenLogProbs, AreTheDenseLogProbabilities) {
  for (const Head& head : kHeads) {
    OpCase test = log_probs_case(head);
    OpValues values = values_for(test);
    Numbers got = run_op(test, values, {}).outputs[0];
    EXPECT_LT(relative_error(got, negative(dense_losses(head, values))), 1e-13) << head.name;
    EXPECT_EQ(got[2], 0) << "an ignored target";
    EXPECT_FALSE(std::signbit(got[2]));
  }
}

TEST(TokenLogProbs, RecomputeGivesTheSameBits) {
  Head head = kHeads[5];
  OpCase again = head_case("log probs", head, [head](Bench& bench, const std::vector<Var>& in) {
    auto run = [&bench, head](Context&, const Var& x) { return log_probs(bench, head, x); };
    return OpOutputs{{recompute(bench.ctx, "again", in[0], run)}};
  });
  expect_same_bits(log_probs_case(head), again);
}

TEST(TokenLogProbs, PaddedRowsGiveTheSameBits) {
  Head padded = kHeads[7], plain = padded;
  plain.padded = false;
  expect_same_bits(log_probs_case(plain), log_probs_case(padded));
}

struct Outcome {
  Numbers log_probs, hidden_gradient, weight_gradient;
};

// One op, forward and backward, on this rank's rows of a head. `enter`: hidden has only this rank's
// tokens (sequence parallel).
Outcome run(Bench& bench, const Head& head, const Numbers& hidden, const Numbers& dy, bool enter) {
  Tape tape;
  TapeScope scope(bench.ctx, &tape);
  Shape shape{static_cast<std::int64_t>(hidden.size()) / kHidden, kHidden};
  PlaceState state = enter ? PlaceState::kShard0 : PlaceState::kCopied;
  Outcome out;
  GradSlot in, result;
  {
    Var x = tape.track(bench.tensor(shape, hidden), Placement().with(Axis::kTp, state));
    in = GradSlot(x);
    Var y = log_probs(bench, head, enter ? enter_tensor_parallel(bench.ctx, x, head.tokens) : x);
    result = GradSlot(y);
    out.log_probs = values_of(y.tensor);
  }
  EXPECT_EQ(result.placement, Placement());
  tape.add_gradient(bench.ctx, result, bench.tensor({head.tokens}, dy), Placement());
  tape.backward(bench.ctx);
  Tensor dhidden = tape.take_gradient(in.id);
  if (!enter) bench.mesh.tp().all_reduce(dhidden, Reduction::kSum, "parts").wait();
  out.hidden_gradient = values_of(dhidden);
  out.weight_gradient = bench.store.gradient(*bench.params[0]);
  return out;
}

Outcome run_on_one_rank(const Head& head, const OpValues& values, const Numbers& dy) {
  Bench bench(Dtype::kF64, 1, kernels_of(head));
  bench.param("head", {kVocabulary, kHidden}, {Axis::kTp, 0, {}}, values.params[0]);
  return run(bench, head, values.inputs[0], dy, false);
}

// The loss is the special case with one weight per token known in advance.
TEST(TokenLogProbs, AgreeWithTheLoss) {
  for (const Head& head : kHeads) {
    SCOPED_TRACE(head.name);
    Numbers weights = token_gradients(head), dy;
    for (double& w : weights) w = static_cast<float>(w);
    for (double w : weights) dy.push_back(-0.25 * w);  // StepState::loss_factor of a bench
    OpCase loss = head_case("loss", head, [&](Bench& bench, const std::vector<Var>& in) {
      LossTargets targets{bench.integers(targets_of(head.tokens)),
                          bench.tensor({head.tokens}, weights, Dtype::kF32)};
      LossResult result = lm_head_loss(bench.ctx, in[0], targets, spec_of(head, bench));
      return OpOutputs{{result.loss}, 0.0, {result.token_loss}};
    });
    OpValues values = values_for(loss);
    OpResult expected = run_op(loss, values, {});
    Outcome got = run_on_one_rank(head, values, dy);
    EXPECT_EQ(got.log_probs, negative(expected.outputs[1]));
    EXPECT_LT(relative_error(got.hidden_gradient, expected.input_grads[0]), 1e-12);
    EXPECT_LT(relative_error(got.weight_gradient, expected.param_grads[0]), 1e-12);
  }
}

// The vocabulary is split over ranks, evenly or not; hidden is replicated or sharded over tokens.
TEST(TokenLogProbs, TensorParallelRanksGiveOneRanksResult) {
  for (const Head& head : {kHeads[3], kHeads[5]}) {
    OpValues values = values_for(log_probs_case(head));
    Numbers dy = token_gradients(head);
    Outcome expected = run_on_one_rank(head, values, dy);
    for (int ranks : {2, 3, 4}) {
      for (bool sequence_parallel : {false, true}) {
        SCOPED_TRACE(concat(head.name, ranks, sequence_parallel ? " sequence parallel" : ""));
        run_thread_ranks(ranks, {20.0}, [&](World& world) {
          auto rows_of = [&](const Numbers& whole, Range rows) {
            return Numbers(whole.begin() + rows.begin * kHidden,
                           whole.begin() + rows.end * kHidden);
          };
          Bench bench(world, {ranks, 1, 1, 1}, Dtype::kF64);
          Range mine = shard_range(kVocabulary, ranks, world.rank());
          Range tokens = sequence_parallel ? shard_range(head.tokens, ranks, world.rank())
                                           : Range{0, head.tokens};
          bench.param("head", {kVocabulary, kHidden}, {Axis::kTp, 0, {}},
                      rows_of(values.params[0], mine));
          Outcome got = run(bench, head, rows_of(values.inputs[0], tokens), dy, sequence_parallel);
          EXPECT_LT(relative_error(got.log_probs, expected.log_probs), 1e-12);
          EXPECT_LT(relative_error(got.hidden_gradient, rows_of(expected.hidden_gradient, tokens)),
                    1e-12);
          EXPECT_LT(relative_error(got.weight_gradient, rows_of(expected.weight_gradient, mine)),
                    1e-12);
        });
      }
    }
  }
}

// In every chunk and split of the vocabulary; log-probabilities keep their bits.
void expect_top_tokens(Bench& bench, const Head& head, const OpValues& values, std::int64_t k) {
  Var hidden{bench.tensor({head.tokens, kHidden}, values.inputs[0]),
             Placement().with(Axis::kTp, PlaceState::kCopied), -1, nullptr};
  Tensor targets = bench.integers(targets_of(head.tokens));
  HeadSpec spec = spec_of(head, bench);
  TopTokens top{Tensor(bench.arena, Dtype::kI32, {head.tokens, k}, "test"),
                bench.tensor({head.tokens, k}, Numbers(static_cast<std::size_t>(head.tokens * k))),
                bench.tensor({head.tokens}, Numbers(static_cast<std::size_t>(head.tokens)))};
  Tensor with = token_log_probs(bench.ctx, hidden, targets, spec, &top).tensor;
  EXPECT_EQ(values_of(with), values_of(token_log_probs(bench.ctx, hidden, targets, spec).tensor));
  const Numbers logits = dense_logits(head, values), found = values_of(top.values);
  const Numbers losses = values_of(top.first_losses);
  const auto* ids = top.ids.as<std::int32_t>();
  for (std::int64_t t = 0; t < head.tokens; ++t) {
    std::vector<std::pair<double, std::int32_t>> row;
    double sum = 0;
    for (std::int32_t v = 0; v < kVocabulary; ++v) {
      row.emplace_back(-logits[static_cast<std::size_t>(t * kVocabulary + v)], v);
      sum += std::exp(-row.back().first);
    }
    std::ranges::sort(row);
    row.resize(static_cast<std::size_t>(k), {INFINITY, -1});
    for (std::int64_t i = 0; i < k; ++i) {
      const auto at = static_cast<std::size_t>(t * k + i);
      EXPECT_EQ(ids[at], row[static_cast<std::size_t>(i)].second);
      if (ids[at] < 0) continue;
      EXPECT_NEAR(found[at], -row[static_cast<std::size_t>(i)].first, 1e-12);
    }
    EXPECT_NEAR(losses[static_cast<std::size_t>(t)], std::log(sum) + row[0].first, 1e-12);
  }
}

TEST(TokenLogProbs, TopTokensAreTheLikeliestOfEveryRow) {
  for (const Head& head : kHeads) {
    OpValues values = values_for(log_probs_case(head));
    for (std::int64_t k : {1, 3, 9}) {
      SCOPED_TRACE(concat(head.name, ", ", k));
      Bench bench(Dtype::kF64, 1, kernels_of(head));
      bench.param("head", {kVocabulary, kHidden}, {Axis::kTp, 0, {}}, values.params[0]);
      expect_top_tokens(bench, head, values, k);
      for (int ranks : {2, 3}) {
        if (head.padded) break;
        run_thread_ranks(ranks, {20.0}, [&](World& world) {
          Bench part(world, {ranks, 1, 1, 1}, Dtype::kF64);
          Range mine = shard_range(kVocabulary, ranks, world.rank());
          part.param("head", {kVocabulary, kHidden}, {Axis::kTp, 0, {}},
                     {values.params[0].begin() + mine.begin * kHidden,
                      values.params[0].begin() + mine.end * kHidden});
          expect_top_tokens(part, head, values, k);
        });
      }
    }
  }
}

// Tokens without a gradient add nothing, and the others get the same gradient as among all.
TEST(TokenLogProbs, AGradientOfSomeTokensIsTheirPartOfAll) {
  const Head& head = kHeads[5];
  OpValues values = values_for(log_probs_case(head));
  Numbers all = token_gradients(head), even = all, odd = all;
  for (std::size_t t = 0; t < all.size(); ++t) (t % 2 == 0 ? odd : even)[t] = 0;
  Outcome whole = run_on_one_rank(head, values, all), a = run_on_one_rank(head, values, even),
          b = run_on_one_rank(head, values, odd);
  for (std::size_t i = 0; i < whole.hidden_gradient.size(); ++i) {
    bool is_even = i / kHidden % 2 == 0;
    EXPECT_EQ((is_even ? a : b).hidden_gradient[i], whole.hidden_gradient[i]);
    EXPECT_EQ((is_even ? b : a).hidden_gradient[i], 0);
  }
  for (std::size_t i = 0; i < a.weight_gradient.size(); ++i) {
    a.weight_gradient[i] += b.weight_gradient[i];
  }
  EXPECT_LT(relative_error(a.weight_gradient, whole.weight_gradient), 1e-13);
}

// Thirds are not representable in f32.
TEST(TokenLogProbs, GradientsOfTokensAreNotRounded) {
  const Head& head = kHeads[3];
  OpValues values = values_for(log_probs_case(head));
  Numbers whole(static_cast<std::size_t>(head.tokens), 1.0), third(whole.size(), 1.0 / 3);
  Outcome expected = run_on_one_rank(head, values, whole);
  Outcome got = run_on_one_rank(head, values, third);
  for (double& x : expected.hidden_gradient) x /= 3;
  for (double& x : expected.weight_gradient) x /= 3;
  EXPECT_LT(relative_error(got.hidden_gradient, expected.hidden_gradient), 1e-14);
  EXPECT_LT(relative_error(got.weight_gradient, expected.weight_gradient), 1e-14);
}

TEST(TokenLogProbs, NoTokensGiveAZeroGradient) {
  OpCase test = log_probs_case({"no tokens", 0});
  OpResult result = run_op(test, values_for(test), {});
  EXPECT_EQ(result.param_grads[0], Numbers(kVocabulary * kHidden, 0.0));
}

std::size_t bytes_of(const Arena::TagTable& table, const std::string& tag) {
  for (const auto& [name, bytes] : table) {
    if (name == tag) return bytes;
  }
  return 0;
}

// Between forward and backward only input, result and targets exist; in both, logits exist one
// chunk at a time.
TEST(TokenLogProbs, NoLogitsAreKeptForTheBackward) {
  const Head head{"long", 640, 1.7, 0.9, true};
  const std::size_t chunk = 32 * kVocabulary * sizeof(double) + 64;
  Bench bench(Dtype::kF64);
  OpValues values = values_for(log_probs_case(head));
  bench.param("head", {kVocabulary, kHidden}, {Axis::kTp, 0, {}}, values.params[0]);
  Tape tape;
  TapeScope scope(bench.ctx, &tape);
  Var hidden = tape.track(bench.tensor({head.tokens, kHidden}, values.inputs[0]),
                          Placement().with(Axis::kTp, PlaceState::kCopied));
  Tensor targets = bench.integers(targets_of(head.tokens));
  std::size_t before = bench.arena.in_use();
  bench.arena.reset_peak();
  Var y = token_log_probs(bench.ctx, hidden, targets, spec_of(head, bench));
  EXPECT_LE(bytes_of(bench.arena.peak_by_tag(), "logits"), chunk);
  EXPECT_EQ(bytes_of(bench.arena.by_tag(), "logits"), 0u);
  EXPECT_EQ(bench.arena.in_use(), before + y.tensor.view().bytes());
  GradSlot result(y);
  Tensor dy = bench.tensor({head.tokens}, token_gradients(head));
  y = Var();
  tape.add_gradient(bench.ctx, result, std::move(dy), Placement());
  bench.arena.reset_peak();
  tape.backward(bench.ctx);
  EXPECT_LE(bytes_of(bench.arena.peak_by_tag(), "logits"), chunk);
}

TEST(TokenLogProbs, TargetsMustFitTheTokens) {
  Head head = kHeads[0];
  expect_error(ErrorKind::kShape, {"token_log_probs", "6 targets"}, [&] {
    run_op(head_case("log probs", head,
                     [&](Bench& bench, const std::vector<Var>& in) {
                       return OpOutputs{{token_log_probs(
                           bench.ctx, in[0], bench.integers(targets_of(6)), spec_of(head, bench))}};
                     }),
           values_for(log_probs_case(head)), {});
  });
}

}  // namespace
}  // namespace bev::test
