#include "ops/embedding.h"

#include <gtest/gtest.h>

#include "tests/support/op_checks.h"

namespace bev::test {
namespace {

const std::vector<std::int32_t> kTokens = {4, 0, 4, 2, 1, 4, 0};

OpCase embedding_case(std::int64_t padding_row = -1) {
  return {"embedding",
          {},
          {{{5, 3}, {Axis::kTp, 0, {}}}},
          [padding_row](Bench& bench, const std::vector<Var>&) {
            Tensor tokens = bench.integers(kTokens);
            Placement rows = Placement().with(Axis::kDp, PlaceState::kShard0);
            return OpOutputs{
                {embedding(bench.ctx, tokens, *bench.params[0], {1.5, padding_row}, rows)}};
          }};
}

OpCase positions_case() {
  return {"add_positions",
          {{{7, 3}}},
          {{{6, 3}}},
          [](Bench& bench, const std::vector<Var>& in) {
            return OpOutputs{{add_positions(bench.ctx, in[0], bench.layout, *bench.params[0])}};
          },
          {3, 4}};
}

const OpRows kEmbeddingRows("Embedding", {embedding_case()});
const OpRows kPositionsRows("AddPositions", {positions_case()});

TEST(Embedding, PaddingRowGetsNoGradient) {
  OpValues values = values_for(embedding_case());
  OpResult all = run_op(embedding_case(), values, {}),
           skipping = run_op(embedding_case(4), values, {});
  EXPECT_EQ(all.outputs, skipping.outputs);
  for (std::size_t i = 0; i < 15; ++i) {
    EXPECT_EQ(skipping.param_grads[0][i], i < 12 ? all.param_grads[0][i] : 0.0) << i;
  }
}

TEST(Embedding, TakesRowsAndSumsTheirGradients) {
  OpCase test = embedding_case();
  OpValues values = values_for(test);
  OpResult result = run_op(test, values, {});
  for (std::size_t t = 0; t < kTokens.size(); ++t) {
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(result.outputs[0][t * 3 + i],
                1.5 * values.params[0][static_cast<std::size_t>(kTokens[t]) * 3 + i]);
    }
  }
  // Token 3 does not occur.
  for (std::size_t i = 9; i < 12; ++i) EXPECT_EQ(result.param_grads[0][i], 0);
}

TEST(AddPositions, CountsWithinTheDocument) {
  OpCase test = positions_case();
  OpValues values = values_for(test);
  OpResult result = run_op(test, values, {});
  for (std::size_t t = 0; t < 7; ++t) {
    std::size_t position = t < 3 ? t : t - 3;
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(result.outputs[0][t * 3 + i],
                values.inputs[0][t * 3 + i] + values.params[0][position * 3 + i]);
    }
  }
}

}  // namespace
}  // namespace bev::test
