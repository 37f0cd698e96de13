#include "ops/objective.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/token_log_probs.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

using Numbers = std::vector<double>;

// Packed documents, a sample without tokens, and samples with fewer tokens than there are chunks.
const std::vector<SampleShape> kSamples = {{{3, 4}}, {{}}, {{5}}, {{1, 1}}, {{1}}, {{}}};
constexpr std::int64_t kTokens = 15;
constexpr std::size_t kCount = 6;
const Numbers kLengths = {7, 0, 5, 2, 1, 0};

OpInput tokens_input() { return {{kTokens}, PlaceState::kReplicated, 1, PlaceState::kShard0}; }

OpCase sum_case() {
  return {"sum by sample", {tokens_input()}, {}, [](Bench& bench, const std::vector<Var>& in) {
            SequenceLayout layout = SequenceLayout::make(bench.ctx, kSamples, 5);
            return OpOutputs{{sum_by_sample(bench.ctx, in[0], layout)}};
          }};
}

// Sums of consecutive elements, one sum per sample.
Numbers sums_of(const Numbers& x) {
  Numbers sums;
  auto at = x.begin();
  for (double length : kLengths) {
    double sum = 0;
    for (auto end = at + static_cast<std::ptrdiff_t>(length); at != end; ++at) sum += *at;
    sums.push_back(sum);
  }
  return sums;
}

const OpRows kSumRows("SumBySample", {sum_case()});

TEST(SumBySample, AddsTheTokensOfEachSample) {
  OpCase test = sum_case();
  OpValues values = values_for(test);
  EXPECT_LT(relative_error(run_op(test, values, {}).outputs[0], sums_of(values.inputs[0])), 1e-15);
}

// Rows of this rank, selected from the rows of all tokens.
Numbers own_rows(const SequenceLayout& layout, const Numbers& all) {
  Numbers begins = {0}, rows;
  for (double length : kLengths) begins.push_back(begins.back() + length);
  for (const DocumentPiece& piece : layout.own.pieces()) {
    auto begin = static_cast<std::int32_t>(begins[static_cast<std::size_t>(piece.sample)]);
    for (std::int32_t i = 0; i < piece.count; ++i) {
      rows.push_back(all[static_cast<std::size_t>(begin + piece.sample_begin + i)]);
    }
  }
  return rows;
}

TEST(SumBySample, ContextParallelRanksGiveOneRanksResult) {
  Numbers x = case_numbers(kTokens, 3), dy = case_numbers(kCount, 4), dx;
  for (std::size_t s = 0; s < kCount; ++s) {
    dx.insert(dx.end(), static_cast<std::size_t>(kLengths[s]), dy[s]);
  }
  struct Layout {
    int tp, cp;
  };
  for (Layout shape : {Layout{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 2}}) {
    SCOPED_TRACE(concat("tp ", shape.tp, " cp ", shape.cp));
    run_thread_ranks(shape.tp * shape.cp, {20.0}, [&](World& world) {
      Bench bench(world, {.tp = shape.tp, .cp = shape.cp}, Dtype::kF64);
      SequenceLayout layout = SequenceLayout::make(bench.ctx, kSamples, 0);
      Tape tape;
      bench.ctx.tape = &tape;
      Var tokens =
          tape.track(bench.tensor({layout.tokens}, own_rows(layout, x)), batch_placement());
      GradSlot in(tokens);
      Var sums = sum_by_sample(bench.ctx, tokens, layout);
      EXPECT_EQ(sums.placement, Placement().with(Axis::kDp, PlaceState::kShard0));
      EXPECT_LT(relative_error(values_of(sums.tensor), sums_of(x)), 1e-12);
      tape.add_gradient(bench.ctx, GradSlot(sums), bench.tensor({kCount}, dy), sums.placement);
      tape.backward(bench.ctx);
      EXPECT_EQ(values_of(tape.take_gradient(in.id)), own_rows(layout, dx));
    });
  }
}

TEST(SumBySample, NamesAnInputOfAnotherPlacement) {
  OpCase test = sum_case();
  test.inputs[0].cp = PlaceState::kReplicated;
  expect_error(ErrorKind::kInternal, {"sum_by_sample", "shard(0) over cp"},
               [&] { run_op(test, values_for(test), {}); });
  test = sum_case();
  test.inputs[0].tp = PlaceState::kCopied;
  expect_error(ErrorKind::kInternal, {"sum_by_sample", "replicated over tp"},
               [&] { run_op(test, values_for(test), {}); });
}

// sum of sin(x) + 2 x^2, which does not cancel, with its derivative.
Var sine_loss(Bench& bench, const Var& x) {
  Numbers slopes;
  double sum = 0;
  for (double value : bench.values(x.tensor)) {
    sum += std::sin(value) + 2 * value * value;
    slopes.push_back(std::cos(value) + 4 * value);
  }
  return given_gradient(bench.ctx, "sine loss", x, bench.tensor({1}, {sum}, bench.ctx.wide()),
                        bench.tensor(x.shape(), slopes, x.dtype()));
}

OpCase given_case(const char* name, PlaceState tp) {
  return {name, {{{4, 3}, tp}}, {}, [](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{sine_loss(bench, in[0])}};
          }};
}
const OpRows kGivenRows("GivenGradient", {given_case("of a whole input", PlaceState::kReplicated),
                                          given_case("of cut rows", PlaceState::kShard0),
                                          given_case("of cut columns", PlaceState::kShard1)});

TEST(GivenGradient, RefusesAnInputWhoseGradientIsASum) {
  for (PlaceState tp : {PlaceState::kCopied, PlaceState::kPartial}) {
    OpCase test = given_case("of a sum", tp);
    expect_error(ErrorKind::kInternal, {"sine loss", "whole or cut"},
                 [&] { run_op(test, values_for(test), {}); });
  }
}

// An objective over samples: log-probabilities, their sums, a loss of these.
OpCase samples_case() {
  constexpr std::int64_t kHidden = 3, kVocabulary = 7;
  OpInput hidden{{kTokens, kHidden}, PlaceState::kCopied, 1, PlaceState::kShard0};
  return {"log probabilities of samples",
          {hidden},
          {{{kVocabulary, kHidden}, {Axis::kTp, 0, {}}}},
          [](Bench& bench, const std::vector<Var>& in) {
            std::vector<std::int32_t> targets;
            for (std::int32_t t = 0; t < kTokens; ++t) {
              targets.push_back(t % 5 == 1 ? -1 : t * 3 % static_cast<std::int32_t>(kVocabulary));
            }
            SequenceLayout layout = SequenceLayout::make(bench.ctx, kSamples, 0);
            Var log_probs = token_log_probs(bench.ctx, in[0], bench.integers(targets),
                                            {.weight = bench.params[0].get()});
            return OpOutputs{{sine_loss(bench, sum_by_sample(bench.ctx, log_probs, layout))}};
          }};
}
const OpRows kObjectiveRows("Objective", {samples_case()});

}  // namespace
}  // namespace bev::test
