#include "ops/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "kernels/rope.h"
#include "tests/ops/decode_steps.h"
#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kSize = 3;

std::int64_t width_of(const AttentionSpec& spec) {
  return spec.q_columns() + spec.k_columns() + spec.v_columns();
}

AttentionSpec plain_spec() {
  AttentionSpec spec;
  spec.q_heads = kHeads;
  spec.kv_heads = kKvHeads;
  spec.head_size = spec.v_head_size = kSize;
  spec.rule.scale = 0.7;
  return spec;
}

struct Option {
  const char* name;
  AttentionSpec spec;
  bool learned = false;  // learned sinks

  // The spec with the sink logits of the bench.
  AttentionSpec on(const Bench& bench) const {
    AttentionSpec out = spec;
    if (learned) out.sinks.logits = bench.params[0].get();
    return out;
  }
};
std::vector<Option> options() {
  std::vector<Option> list;
  auto option = [&](const char* name, bool learned = false) -> AttentionSpec& {
    list.push_back({name, plain_spec(), learned});
    if (learned) list.back().spec.rule.sink = SoftmaxSink::kLearned;
    return list.back().spec;
  };
  option("causal");
  option("window").rule.window = 2;
  AttentionSpec& chunks = option("chunks");
  chunks.rule.window = 1;
  chunks.rule.chunked = true;
  option("softcap").rule.softcap = 0.5;
  option("bidirectional").rule.causal = false;
  AttentionSpec& both = option("bidirectional window");
  both.rule.causal = false;
  both.rule.window = 1;
  option("dropout").rule.dropout = 0.3;
  option("small values").v_head_size = 2;
  option("large values").v_head_size = 5;
  option("sink of 0").rule.sink = SoftmaxSink::kOne;
  option("sinks", true);
  AttentionSpec& all = option("recompute with all", true);
  all.v_head_size = 2;
  all.recompute = true;
  all.rule.window = 3;
  all.rule.softcap = 0.8;
  all.rule.dropout = 0.2;
  all.head_offset = 5;
  return list;
}

OpCase attention_case(const Option& option, std::vector<std::int32_t> documents) {
  const std::int64_t tokens = std::accumulate(documents.begin(), documents.end(), std::int64_t{0});
  OpCase test{option.name,
              {{{tokens, width_of(option.spec)}, PlaceState::kShard1}},
              {},
              [option](Bench& bench, const std::vector<Var>& in) {
                return OpOutputs{{attention(
                    bench.ctx, in[0],
                    {bench.layout.runs, bench.layout.samples, bench.layout.sample_positions},
                    option.on(bench))}};
              },
              std::move(documents),
              true};
  if (option.learned) test.params.push_back({{kHeads}, {Axis::kTp, 0, {}}});
  return test;
}

// Reference: softmax over all keys of the document, in double.
std::vector<double> dense(const OpValues& values, const std::vector<std::int32_t>& documents,
                          const Option& option) {
  const AttentionSpec& spec = option.spec;
  auto at = [&](std::int64_t row, std::int64_t column) {
    return values.inputs[0][static_cast<std::size_t>(row * width_of(spec) + column)];
  };
  auto sink = [&](std::int64_t head) {
    if (spec.rule.sink == SoftmaxSink::kNone) return 0.0;
    return option.learned ? std::exp(values.params[0][static_cast<std::size_t>(head)]) : 1.0;
  };
  std::vector<double> out;
  std::int64_t begin = 0;
  for (std::int32_t length : documents) {
    for (std::int64_t i = begin; i < begin + length; ++i) {
      for (std::int64_t h = 0; h < kHeads; ++h) {
        std::int64_t kv_head = h / (kHeads / kKvHeads);
        std::int64_t k = spec.q_columns() + kv_head * kSize;
        std::int64_t v = spec.q_columns() + spec.k_columns() + kv_head * spec.v_head_size;
        double sum = sink(h);
        std::vector<double> mixed(static_cast<std::size_t>(spec.v_head_size));
        for (std::int64_t j = begin; j < begin + length; ++j) {
          bool seen = !(spec.rule.causal && j > i) &&
                      (spec.rule.window < 0 || std::abs(i - j) <= spec.rule.window);
          const std::int64_t chunk = spec.rule.chunked ? spec.rule.window + 1 : length;
          seen = seen && (i - begin) / chunk == (j - begin) / chunk;
          if (!seen) continue;
          double score = 0;
          for (std::int64_t d = 0; d < kSize; ++d)
            score += spec.rule.scale * at(i, h * kSize + d) * at(j, k + d);
          if (spec.rule.softcap > 0)
            score = spec.rule.softcap * std::tanh(score / spec.rule.softcap);
          sum += std::exp(score);
          for (std::int64_t d = 0; d < spec.v_head_size; ++d) {
            mixed[static_cast<std::size_t>(d)] += std::exp(score) * at(j, v + d);
          }
        }
        for (double value : mixed) out.push_back(value / sum);
      }
    }
    begin += length;
  }
  return out;
}

std::vector<OpCase> attention_rows() {
  std::vector<OpCase> rows;
  for (const Option& option : options()) rows.push_back(attention_case(option, {4, 3}));
  // Heads that the tensor cores take, in runs of one length and of several.
  for (std::int64_t size : {64, 128}) {
    Option option{size == 64 ? "heads of 64" : "heads of 128", plain_spec()};
    option.spec.head_size = option.spec.v_head_size = size;
    option.spec.rule.scale = 1 / std::sqrt(static_cast<double>(size));
    if (size == 64) option.spec.rule.window = 50;
    rows.push_back(attention_case(option, size == 64 ? std::vector<std::int32_t>{70, 1, 33}
                                                     : std::vector<std::int32_t>{64, 64}));
  }
  return rows;
}
const OpRows kAttentionRows("Attention", attention_rows());

TEST(Attention, IsTheDenseSoftmaxWithinDocuments) {
  for (const Option& option : options()) {
    for (std::vector<std::int32_t> documents : {std::vector<std::int32_t>{7}, {1, 4, 2}}) {
      Option kept = option;
      kept.spec.rule.dropout = 0;
      OpCase test = attention_case(kept, documents);
      OpValues values = values_for(test);
      EXPECT_LT(relative_error(run_op(test, values, {}).outputs[0], dense(values, documents, kept)),
                1e-13)
          << option.name;
    }
  }
}

TEST(Attention, RecomputeGivesTheSameBits) {
  for (const Option& option : options()) {
    Option kept = option, again = option;
    kept.spec.recompute = false;
    again.spec.recompute = true;
    expect_same_bits(attention_case(kept, {5, 2}), attention_case(again, {5, 2}));
  }
}

// Decoding token by token over the KV cache gives the result of one pass over all tokens.
TEST(CachedAttention, ContinuesASequence) {
  for (const Option& option : options()) {
    if (!option.spec.rule.causal) continue;
    SCOPED_TRACE(option.name);
    Option kept = option;
    kept.spec.rule.dropout = 0;
    OpCase test = attention_case(kept, {7});
    OpValues values = values_for(test);
    std::vector<double> expected = run_op(test, values, {}).outputs[0], got;
    Bench bench(Dtype::kF64);
    if (kept.learned) bench.param("sinks", {kHeads}, {Axis::kTp, 0, {}}, values.params[0]);
    AttentionSpec spec = kept.on(bench);
    std::int64_t width = width_of(spec);
    auto empty = [&](std::int64_t columns) {
      return bench.tensor(
          {kCacheRows, columns},
          std::vector<double>(static_cast<std::size_t>(kCacheRows * columns), std::nan("")));
    };
    KvRows cache{empty(spec.k_columns()), empty(spec.v_columns())};
    std::int32_t row = 0;
    for (std::int32_t count : {4, 1, 2}) {
      auto first = values.inputs[0].begin() + row * width;
      Var qkv{bench.tensor({count, width}, {first, first + count * width}),
              Placement().with(Axis::kTp, PlaceState::kShard1), -1, nullptr};
      DecodeStep step = decode_step(bench.ctx, row, count, count == 1);
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
  std::int64_t begin = 0;
};
const RopeOption kRopes[] = {{"full", {1, 0.3, 0.01}, false},
                             {"partial", {1, 0.2}, false},
                             {"full interleaved", {1, 0.3, 0.01}, true},
                             {"partial interleaved", {0.5}, true},
                             {"at the end", {1, 0.2}, false, 2},
                             {"at the end, interleaved", {1, 0.2}, true, 1}};

struct RopeHeads {
  std::int64_t tokens, turned, others, size;  // the v heads are others
};
constexpr RopeHeads kSmallHeads = {7, 3, 1, 6};

OpCase rope_case(const RopeOption& option, const RopeHeads& heads = kSmallHeads) {
  const auto second = static_cast<std::int32_t>(heads.tokens / 2 + 1);
  return {concat("rope ", option.name, heads.tokens > 7 ? concat(" of ", heads.size) : ""),
          {{{heads.tokens, (heads.turned + heads.others) * heads.size}, PlaceState::kShard1}},
          {},
          [option, heads](Bench& bench, const std::vector<Var>& in) {
            Tensor table = rope_table(bench.ctx, bench.layout.positions, option.frequencies, 1.25);
            const RopeSpec spec{table, heads.turned, heads.size, option.interleaved, option.begin};
            return OpOutputs{{rope(bench.ctx, in[0], spec)}};
          },
          {static_cast<std::int32_t>(heads.tokens) - second, second}};
}

// Whole heads, parts of heads, sizes that no vector of a kernel divides, odd heads.
std::vector<OpCase> rope_rows() {
  struct Part {
    RopeHeads heads;
    std::int64_t width, begin = 0;
  };
  std::vector<OpCase> rows;
  for (const RopeOption& option : kRopes) rows.push_back(rope_case(option));
  for (const Part& part : {Part{{9, 10, 2, 128}, 128},
                           {{20, 4, 1, 64}, 32},
                           {{17, 3, 1, 80}, 20},
                           {{45, 2, 1, 11}, 6},
                           {{300, 1, 0, 2}, 2},
                           {{17, 2, 1, 256}, 64},
                           {{40, 3, 1, 192}, 64, 128},
                           {{39, 2, 0, 13}, 4, 7}}) {
    std::vector<double> frequencies;
    for (std::int64_t i = 0; i < part.width / 2; ++i) {
      frequencies.push_back(
          std::pow(100.0, -2 * static_cast<double>(i) / static_cast<double>(part.width)));
    }
    for (bool interleaved : {false, true}) {
      rows.push_back(
          rope_case({interleaved ? "interleaved" : "halves", frequencies, interleaved, part.begin},
                    part.heads));
    }
  }
  return rows;
}
const OpRows kRopeRows("Rope", rope_rows());

// The factor of a position: 1 + beta log(1 + floor((position + shift) / period)).
TEST(Rope, ScalesByPositionWithoutTurning) {
  OpCase test = rope_case(kRopes[0], {9, 2, 0, 6});
  test.build = [](Bench& bench, const std::vector<Var>& in) {
    Tensor table = position_scale_table(bench.ctx, bench.layout.positions, {0.4, 2, 1}, 6);
    return OpOutputs{{rope(bench.ctx, in[0], {table, 1, 6})}};
  };
  OpValues values = values_for(test);
  OpResult result = run_op(test, values, {});
  std::vector<double> expected = values.inputs[0];
  for (std::size_t row = 0; row < 9; ++row) {
    const std::size_t position = row < 4 ? row : row - 4;  // documents of 4 and 5
    const double factor = 1 + 0.4 * std::log(1.0 + static_cast<double>((position + 1) / 2));
    for (std::size_t d = 0; d < 6; ++d) expected[row * 12 + d] *= factor;
  }
  EXPECT_LT(relative_error(result.outputs[0], expected), 1e-14);
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
          double* x = expected.data() + row * 24 + head * 6 + option.begin;
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
