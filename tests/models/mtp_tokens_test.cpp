#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/batch.h"
#include "models/model.h"
#include "tests/support/op_rig.h"

namespace bev::test {
namespace {

using testing::ElementsAre;

TEST(MtpTokens, StayWithinTheirDocument) {
  Bench bench(Dtype::kF64);
  TokenSample sample{
      {10, 11, 12, 13, 14, 15, 16}, {20, 21, 22, 23, 24, -1, 26}, {1, 1, 0.5, 1, 1, 0, 1}, {4, 3}};
  MicroBatch batch = make_micro_batch(bench.ctx, std::span(&sample, 1), 0, {2, 0.25});
  ASSERT_EQ(batch.mtp.size(), 2u);
  auto tokens = [&](const Tensor& x) { return bench.ctx.download<std::int32_t>(x); };
  const MtpTokens &next = batch.mtp[0], &second = batch.mtp[1];
  EXPECT_THAT(tokens(next.tokens), ElementsAre(11, 12, 13, 0, 15, 16, 0));
  EXPECT_THAT(tokens(next.targets.targets), ElementsAre(21, 22, 23, -1, -1, 26, -1));
  EXPECT_THAT(bench.ctx.download<float>(next.targets.weights),
              ElementsAre(0.25f, 0.125f, 0.25f, 0, 0, 0.25f, 0));
  EXPECT_THAT(tokens(second.tokens), ElementsAre(12, 13, 0, 0, 16, 0, 0));
  EXPECT_THAT(tokens(second.targets.targets), ElementsAre(22, 23, -1, -1, 26, -1, -1));
  EXPECT_TRUE(make_micro_batch(bench.ctx, std::span(&sample, 1), 0).mtp.empty());
}

TEST(MtpTokens, DepthsShareTheirWeight) {
  ModelConfig model;
  EXPECT_EQ(mtp_spec(model).depths, 0);
  model.mtp_num_layers = 4;
  model.mtp_loss_scaling_factor = 0.2;
  EXPECT_EQ(mtp_spec(model).depths, 4);
  EXPECT_DOUBLE_EQ(mtp_spec(model).weight, 0.05);
}

}  // namespace
}  // namespace bev::test
