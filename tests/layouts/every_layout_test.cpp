// Every legal layout of 8 ranks gives the result of one rank. Too slow for every change: make
// test-full.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "app/run_config.h"
#include "tests/support/layouts.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

constexpr std::int64_t kSlices = 8;
class EveryLayout : public testing::TestWithParam<std::int64_t> {
 protected:
  void expect_same(const ModelConfig& model) {
    TinyRun single;
    single.model = model;
    // As many micro-batches as the deepest pipeline has stages, so that every schedule can start.
    single.global_batch_size = single.micro_batch_size = 8;
    single.sequence_length = 9;
    LayoutAnswer expected = run_tiny(single);
    std::vector<ParallelConfig> layouts = all_layouts(8, {});
    if (model.moe.any()) layouts = with_experts(layouts);
    std::size_t ran = 0;
    for (auto i = static_cast<std::size_t>(GetParam()); i < layouts.size(); i += kSlices) {
      RunConfig config;
      config.model = model;
      config.parallel = layouts[i];
      if (!config.resolve_layout().empty()) continue;
      TinyRun run = single;
      run.parallel = config.parallel;
      run.micro_batch_size = 1;
      EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << layout_text(layouts[i]);
      ++ran;
    }
    EXPECT_GE(ran, layouts.size() / kSlices / 4);
    std::printf("%zu layouts\n", ran);
  }
};

TEST_P(EveryLayout, DISABLED_OfAGptGivesOneRanksAnswer) { expect_same(uneven_gpt()); }
TEST_P(EveryLayout, DISABLED_OfALlamaGivesOneRanksAnswer) { expect_same(uneven_llama()); }
TEST_P(EveryLayout, DISABLED_OfADeepseekGivesOneRanksAnswer) {
  ModelConfig model = tiny_deepseek();
  model.num_layers = 9;
  model.mtp_num_layers = 1;
  model.moe.num_experts = 8;
  model.moe.layer_freq = {0, 1, 1, 1, 1, 1, 1, 1, 1};
  model.moe.ffn_hidden_size = model.moe.shared_expert_size = 8;
  model.moe.score_function = RouterScore::kSigmoid;
  model.moe.expert_bias = true;
  model.moe.num_groups = 4;
  model.moe.group_topk = 2;
  expect_same(model);
}
TEST_P(EveryLayout, DISABLED_OfAGptOssGivesOneRanksAnswer) {
  ModelConfig model = tiny_gpt_oss();
  model.num_layers = 9;
  model.window_layers = {2};
  model.moe.num_experts = 5;
  model.moe.router_bias = true;
  expect_same(model);
}

INSTANTIATE_TEST_SUITE_P(Slices, EveryLayout, testing::Range<std::int64_t>(0, kSlices));

}  // namespace
}  // namespace bev::test
