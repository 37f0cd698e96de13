#include "ops/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kSize = 3, kTokens = 7;
constexpr std::int64_t kWidth = (kHeads + 2 * kKvHeads) * kSize;

AttentionSpec plain_spec() {
  AttentionSpec spec;
  spec.q_heads = kHeads;
  spec.kv_heads = kKvHeads;
  spec.head_size = kSize;
  spec.scale = 0.7;
  return spec;
}

struct Option {
  const char* name;
  AttentionSpec spec;
};
std::vector<Option> options() {
  std::vector<Option> list;
  auto option = [&](const char* name) -> AttentionSpec& {
    list.push_back({name, plain_spec()});
    return list.back().spec;
  };
  option("causal");
  option("window").window = 2;
  option("softcap").softcap = 0.5;
  option("bidirectional").causal = false;
  AttentionSpec& both = option("bidirectional window");
  both.causal = false;
  both.window = 1;
  option("dropout").dropout = 0.3;
  AttentionSpec& all = option("recompute with all");
  all.recompute = true;
  all.window = 3;
  all.softcap = 0.8;
  all.dropout = 0.2;
  all.head_offset = 5;
  return list;
}

OpCase attention_case(const std::string& name, const AttentionSpec& spec,
                      std::vector<std::int32_t> documents) {
  return {name,
          {{{kTokens, kWidth}, PlaceState::kShard1}},
          {},
          [spec](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{attention(
                bench.ctx, in[0],
                {bench.layout.runs, bench.layout.samples, bench.layout.sample_positions}, spec)}};
          },
          std::move(documents),
          true};
}

// Softmax over all keys of the document, in double.
std::vector<double> dense(const std::vector<double>& qkv,
                          const std::vector<std::int32_t>& documents, const AttentionSpec& spec) {
  auto at = [&](std::int64_t row, std::int64_t head, std::int64_t d) {
    return qkv[static_cast<std::size_t>(row * kWidth + head * kSize + d)];
  };
  std::vector<double> out;
  std::int64_t begin = 0;
  for (std::int32_t length : documents) {
    for (std::int64_t i = begin; i < begin + length; ++i) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        std::int64_t k_head = kHeads + h / (kHeads / kKvHeads), v_head = k_head + kKvHeads;
        double sum = 0, mixed[kSize] = {};
        for (std::int64_t j = begin; j < begin + length; ++j) {
          bool seen =
              !(spec.causal && j > i) && (spec.window < 0 || std::abs(i - j) <= spec.window);
          if (!seen) continue;
          double score = 0;
          for (std::int64_t d = 0; d < kSize; ++d)
            score += spec.scale * at(i, h, d) * at(j, k_head, d);
          if (spec.softcap > 0) score = spec.softcap * std::tanh(score / spec.softcap);
          sum += std::exp(score);
          for (std::int64_t d = 0; d < kSize; ++d) mixed[d] += std::exp(score) * at(j, v_head, d);
        }
        for (double value : mixed) out.push_back(value / sum);
      }
    }
    begin += length;
  }
  return out;
}

TEST(Attention, EveryOptionPassesAllChecks) {
  for (const Option& option : options()) {
    check_op(attention_case(option.name, option.spec, {4, 3}));
  }
}

TEST(Attention, IsTheDenseSoftmaxWithinDocuments) {
  for (const Option& option : options()) {
    for (std::vector<std::int32_t> documents : {std::vector<std::int32_t>{7}, {1, 4, 2}}) {
      AttentionSpec spec = option.spec;
      spec.dropout = 0;
      OpCase test = attention_case(option.name, spec, documents);
      OpValues values = values_for(test);
      EXPECT_LT(relative_error(run_op(test, values, {}).outputs[0],
                               dense(values.inputs[0], documents, spec)),
                1e-13)
          << option.name;
    }
  }
}

TEST(Attention, RecomputeGivesTheSameBits) {
  for (const Option& option : options()) {
    AttentionSpec kept = option.spec, again = option.spec;
    kept.recompute = false;
    again.recompute = true;
    expect_same_bits(attention_case(option.name, kept, {5, 2}),
                     attention_case("again", again, {5, 2}));
  }
}

// Tokens one by one over kept keys and values give what all at once give.
TEST(CachedAttention, ContinuesASequence) {
  for (const Option& option : options()) {
    if (!option.spec.causal) continue;
    SCOPED_TRACE(option.name);
    AttentionSpec spec = option.spec;
    spec.dropout = 0;
    OpCase test = attention_case(option.name, spec, {7});
    OpValues values = values_for(test);
    std::vector<double> expected = run_op(test, values, {}).outputs[0], got;
    Bench bench(Dtype::kF64);
    // Kept rows start at 2 of 12.
    std::vector<double> empty(12 * kKvHeads * kSize, std::nan(""));
    KvRows cache{bench.tensor({12, kKvHeads * kSize}, empty),
                 bench.tensor({12, kKvHeads * kSize}, empty)};
    std::int32_t row = 0;
    for (std::int32_t count : {4, 1, 2}) {
      auto first = values.inputs[0].begin() + row * kWidth;
      Var qkv{bench.tensor({count, kWidth}, {first, first + count * kWidth}),
              Placement().with(Axis::kTp, PlaceState::kShard1), -1, nullptr};
      // Runs that know their keys, and one that is told.
      bool told = count == 1;
      std::vector<std::int32_t> write, keys = {row + count};
      for (std::int32_t i = 0; i < count; ++i) write.push_back(2 + row + i);
      DecodeStep step{{{0, count, 2, told ? 10 : row + count, told ? 0 : row}},
                      bench.ctx.upload<std::int32_t>(write, "test"),
                      told ? bench.ctx.upload<std::int32_t>(keys, "test") : Tensor()};
      Var out = cached_attention(bench.ctx, qkv, cache, step, spec);
      EXPECT_FALSE(out.tracked());
      std::vector<double> part = values_of(out.tensor);
      got.insert(got.end(), part.begin(), part.end());
      row += count;
    }
    EXPECT_LT(relative_error(got, expected), 1e-13);
  }
}

struct RopeOption {
  const char* name;
  std::vector<double> frequencies;
  bool interleaved;
};
const RopeOption kRopes[] = {{"full", {1, 0.3, 0.01}, false},
                             {"partial", {1, 0.2}, false},
                             {"full interleaved", {1, 0.3, 0.01}, true},
                             {"partial interleaved", {0.5}, true}};

// 2 q heads, 1 k head, 1 v head of 6
OpCase rope_case(const RopeOption& option) {
  return {concat("rope ", option.name),
          {{{7, 24}, PlaceState::kShard1}},
          {},
          [option](Bench& bench, const std::vector<Var>& in) {
            Tensor table = rope_table(bench.ctx, bench.layout.positions, option.frequencies, 1.25);
            return OpOutputs{{rope(bench.ctx, in[0], {table, 3, 6, option.interleaved})}};
          },
          {3, 4}};
}

TEST(Rope, EveryOptionPassesAllChecks) {
  for (const RopeOption& option : kRopes) check_op(rope_case(option));
}

TEST(Rope, TurnsPairsByPositionTimesFrequency) {
  for (const RopeOption& option : kRopes) {
    OpCase test = rope_case(option);
    OpValues values = values_for(test);
    std::vector<double> expected = values.inputs[0];
    std::size_t half = option.frequencies.size();
    for (std::size_t row = 0; row < 7; ++row) {
      double position = static_cast<double>(row < 3 ? row : row - 3);
      for (std::size_t head = 0; head < 3; ++head) {
        for (std::size_t i = 0; i < half; ++i) {
          double* x = expected.data() + row * 24 + head * 6;
          double& a = option.interleaved ? x[2 * i] : x[i];
          double& b = option.interleaved ? x[2 * i + 1] : x[half + i];
          double angle = position * option.frequencies[i], old = a;
          a = 1.25 * (old * std::cos(angle) - b * std::sin(angle));
          b = 1.25 * (b * std::cos(angle) + old * std::sin(angle));
        }
      }
    }
    EXPECT_LT(relative_error(run_op(test, values, {}).outputs[0], expected), 1e-14) << test.name;
  }
}

}  // namespace
}  // namespace bev::test
