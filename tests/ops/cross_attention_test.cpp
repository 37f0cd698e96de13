#include <gtest/gtest.h>

#include <cmath>

#include "ops/attention/attention.h"
#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

constexpr std::int64_t kQueries = 7, kKeys = 9, kHeads = 4, kKvHeads = 2, kSize = 3;

AttentionSpec cross_spec(std::int64_t v_size, double softcap) {
  AttentionSpec spec;
  spec.q_heads = kHeads;
  spec.kv_heads = kKvHeads;
  spec.head_size = kSize;
  spec.v_head_size = v_size;
  spec.rule.scale = 0.7;
  spec.rule.softcap = softcap;
  spec.rule.causal = false;
  return spec;
}

// Three documents with 3, 0 and 4 queries and 4, 3 and 2 keys.
std::vector<AttentionRun> cross_runs() {
  return {{.q_begin = 0, .q_count = 3, .k_begin = 0, .k_count = 4},
          {.q_begin = 3, .q_count = 4, .k_begin = 7, .k_count = 2}};
}

OpCase cross_case(const char* name, const AttentionSpec& spec) {
  return {name,
          {{{kQueries, spec.q_columns()}, PlaceState::kShard1},
           {{kKeys, spec.k_columns() + spec.v_columns()}, PlaceState::kShard1}},
          {},
          [spec](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{cross_attention(bench.ctx, in[0], in[1], cross_runs(), spec)}};
          }};
}

const OpRows kCrossRows("CrossAttention", {cross_case("plain", cross_spec(kSize, 0)),
                                           cross_case("large values", cross_spec(5, 0)),
                                           cross_case("softcap", cross_spec(2, 0.6))});

TEST(CrossAttention, AQuerySeesAllKeysOfItsDocumentAndNoOthers) {
  Bench bench(Dtype::kF64);
  AttentionSpec spec = cross_spec(kSize, 0);
  std::int64_t width = spec.k_columns() + spec.v_columns();
  std::vector<double> q = case_numbers(kQueries * spec.q_columns(), 3);
  std::vector<double> kv = case_numbers(kKeys * width, 4);
  Placement heads = Placement().with(Axis::kTp, PlaceState::kShard1);
  Var out = cross_attention(
      bench.ctx, {bench.tensor({kQueries, spec.q_columns()}, q), heads, -1, nullptr},
      {bench.tensor({kKeys, width}, kv), heads, -1, nullptr}, cross_runs(), spec);
  std::vector<double> got = values_of(out.tensor);
  auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  for (std::int64_t t = 0; t < kQueries; ++t) {
    std::int64_t begin = t < 3 ? 0 : 7, end = t < 3 ? 4 : 9;
    for (std::int64_t h = 0; h < kHeads; ++h) {
      std::int64_t shared = h / (kHeads / kKvHeads);
      std::vector<double> expected(kSize, 0.0);
      double sum = 0;
      for (std::int64_t k = begin; k < end; ++k) {
        double score = 0;
        for (std::int64_t d = 0; d < kSize; ++d) {
          score +=
              q[at(t * spec.q_columns() + h * kSize + d)] * kv[at(k * width + shared * kSize + d)];
        }
        double weight = std::exp(spec.rule.scale * score);
        sum += weight;
        for (std::int64_t d = 0; d < kSize; ++d) {
          expected[at(d)] += weight * kv[at(k * width + spec.k_columns() + shared * kSize + d)];
        }
      }
      for (std::int64_t d = 0; d < kSize; ++d) {
        EXPECT_NEAR(got[at(t * spec.out_columns() + h * kSize + d)], expected[at(d)] / sum, 1e-13);
      }
    }
  }
}

}  // namespace
}  // namespace bev::test
