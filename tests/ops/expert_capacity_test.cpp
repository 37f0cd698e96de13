#include "ops/moe/expert_capacity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

using Choices = std::vector<std::int32_t>;

TEST(Capacity, IsTheEvenShareTimesTheFactorRoundedUp) {
  EXPECT_EQ(expert_capacity({1.0, {}}, 8, 2, 4), 4);
  EXPECT_EQ(expert_capacity({1.0, {}}, 9, 2, 4), 5);
  EXPECT_EQ(expert_capacity({1.25, {}}, 8, 2, 4), 5);
  EXPECT_EQ(expert_capacity({0.1, {}}, 1, 1, 64), 1);
}

// Reference: sorts the choices of each expert by preference and keeps the first `capacity`.
Choices reference(const Choices& experts, std::int64_t topk, std::int64_t count,
                  std::int64_t capacity, const std::vector<double>& probs,
                  const std::vector<std::int32_t>& positions, DropPolicy policy) {
  Choices kept(experts.size(), -1);
  for (std::int32_t e = 0; e < count; ++e) {
    std::vector<std::size_t> slots;
    for (std::size_t s = 0; s < experts.size(); ++s) {
      if (experts[s] == e) slots.push_back(s);
    }
    std::stable_sort(slots.begin(), slots.end(), [&](std::size_t a, std::size_t b) {
      auto token = [&](std::size_t s) { return s / static_cast<std::size_t>(topk); };
      return policy == DropPolicy::kProbs ? probs[a] > probs[b]
                                          : positions[token(a)] < positions[token(b)];
    });
    slots.resize(std::min(slots.size(), static_cast<std::size_t>(capacity)));
    for (std::size_t s : slots) kept[s] = e;
  }
  return kept;
}

struct Case {
  const char* name;
  std::vector<std::int32_t> samples;  // lengths
  std::int64_t experts, topk;
  double factor;
  bool skewed;  // nearly all tokens choose the first experts
  bool ties;    // all probabilities are equal
};
const std::vector<Case> kCases = {
    {"even", {12}, 4, 2, 1.0, false, false},
    {"skewed", {13, 3, 7}, 5, 2, 1.0, true, false},
    {"tight", {9, 9}, 6, 3, 0.3, true, false},
    {"ties", {5, 8, 2}, 3, 2, 0.7, true, true},
    {"more experts than tokens", {3}, 16, 4, 1.0, true, false},
    {"room for all", {6}, 3, 2, 9.0, true, false},
    {"one token", {1}, 4, 2, 0.5, false, false},
};

TEST(Capacity, KeepsWhatAPlainReferenceKeeps) {
  for (const Case& item : kCases) {
    for (DropPolicy policy : {DropPolicy::kProbs, DropPolicy::kPosition}) {
      SCOPED_TRACE(concat(item.name, policy == DropPolicy::kProbs ? ", probs" : ", position"));
      Bench bench(Dtype::kF64);
      std::vector<SampleShape> samples;
      std::vector<std::int32_t> positions;
      for (std::int32_t length : item.samples) {
        samples.push_back({{length}});
        for (std::int32_t i = 0; i < length; ++i) positions.push_back(i);
      }
      bench.layout = SequenceLayout::make(bench.ctx, samples, 0);
      auto tokens = static_cast<std::int64_t>(positions.size());
      std::vector<double> logits = case_numbers(tokens * item.experts, 7);
      for (std::size_t i = 0; i < logits.size(); ++i) {
        auto expert = static_cast<std::int64_t>(i) % item.experts;
        if (item.skewed) logits[i] -= static_cast<double>(expert);
        if (item.ties) logits[i] = -static_cast<double>(expert);
      }
      Tape tape;
      bench.ctx.tape = &tape;
      Var in = tape.track(bench.tensor({tokens, item.experts}, logits), batch_placement());
      RouterSpec spec;
      spec.rule = {.topk = item.topk, .pre_softmax = true};
      Tensor sums =
          bench.tensor({1, 2 * item.experts + 3},
                       std::vector<double>(static_cast<std::size_t>(2 * item.experts + 3)));
      RouterStatistics statistics{sums, {}};
      bench.ctx.routers = &statistics;
      bench.ctx.layer = 0;
      Routing all = route(bench.ctx, in, spec, &bench.layout);
      CapacityRule rule{item.factor, policy};
      Routing kept = limit_choices(bench.ctx, all, rule, item.experts, bench.layout);
      Choices experts = bench.ctx.download<std::int32_t>(all.experts);
      std::int64_t capacity = expert_capacity(rule, tokens, item.topk, item.experts);
      Choices want = reference(experts, item.topk, item.experts, capacity,
                               values_of(all.probs.tensor), positions, policy);
      EXPECT_EQ(bench.ctx.download<std::int32_t>(kept.experts), want);

      Tensor seed = bench.tensor({tokens, item.topk},
                                 std::vector<double>(static_cast<std::size_t>(tokens * item.topk)));
      tape.add_gradient(bench.ctx, GradSlot(kept.probs), seed, batch_placement().dual());
      tape.backward(bench.ctx);
      auto dropped = static_cast<double>(std::ranges::count(want, -1));
      EXPECT_EQ(values_of(sums).back(), dropped);
      bench.ctx.tape = nullptr;
    }
  }
}

}  // namespace
}  // namespace bev::test
