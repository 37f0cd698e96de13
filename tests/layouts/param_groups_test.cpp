// Parameter groups: names are global, so every layout gives one rank's answer.
#include <gtest/gtest.h>

#include "tests/support/layouts.h"
#include "verify/layouts.h"

namespace bev::test {
namespace {

LearningRates rates(std::initializer_list<double> values) {
  LearningRates out = 0;
  std::copy(values.begin(), values.end(), out.values);
  return out;
}

void expect_one_ranks_answer(const TinyRun& single, const std::vector<std::string>& layouts) {
  LayoutAnswer expected = run_tiny(single);
  for (const std::string& layout : layouts) {
    TinyRun run = single;
    run.parallel = parse_layouts(layout, {}).at(0);
    EXPECT_EQ(answer_difference(expected, run_tiny(run)), "") << layout;
  }
}

const std::vector<std::string> kLayouts = {"tp2sp",    "pp2",          "pp2,vpp2",    "dp2zero1",
                                           "dp2zero2", "dp2zero3,tp2", "cp2,dp2zero3"};

// The table of a tied embedding is on the first stage and on the last.
TEST(ParamGroups, OfATiedModelGiveOneRanksAnswer) {
  TinyRun run;
  run.model = tiny_gpt();
  run.lr = rates({1e-2, 3e-2, 2e-3});
  run.groups.decoupled_lr = 1;
  run.groups.param_group = {"*.layers.1.*:lr=1", "*.bias:wd-mult=1", "*_layernorm.*:lr-mult=0.1"};
  run.groups.freeze = {"*.layers.2.mlp.*", "*.position_embeddings.*"};
  expect_one_ranks_answer(run, kLayouts);
}

TEST(ParamGroups, OfAnUntiedModelGiveOneRanksAnswer) {
  TinyRun run;
  run.model = tiny_llama();
  run.lr = rates({1e-2, 3e-2});
  run.groups.decoupled_lr = 1;
  run.groups.head_lr_mult = 0.3;
  run.groups.param_group = {"decoder.layers.?.mlp.*:wd-mult=3"};
  run.groups.freeze = {"decoder.layers.0.self_attention.*"};
  expect_one_ranks_answer(run, kLayouts);
}

TEST(ParamGroups, OfExpertsGiveOneRanksAnswer) {
  TinyRun run;
  run.model = mixtral_like();
  run.lr = rates({1e-2, 3e-2});
  run.groups.param_group = {"*.experts.*:lr=1:wd-mult=2", "*.router.*:lr-mult=0.1"};
  run.groups.freeze = {"decoder.layers.1.mlp.experts.*"};
  expect_one_ranks_answer(run, {"dp2,ep2", "dp2zero3,ep2", "tp2sp,dp2,ep2", "pp2,dp2zero1,ep2"});
}

std::vector<std::string> changed(const TinyRun& run) {
  TinyRun still = run;
  still.lr = 0;
  LayoutAnswer before = run_tiny(still), after = run_tiny(run);
  std::vector<std::string> names;
  for (const auto& [name, values] : after.weights) {
    if (values != before.weights.at(name)) names.push_back(name);
  }
  return names;
}

TEST(ParamGroups, OwnLearningRatesMoveTheirParametersAlone) {
  TinyRun run;
  run.model = tiny_llama();
  run.lr = rates({0, 1e-2});
  run.groups.decoupled_lr = 1;
  const std::vector<std::string> both = {"embedding.word_embeddings.weight", "output_layer.weight"};
  for (const char* layout : {"dp1", "pp2", "tp2sp,dp2zero3"}) {
    run.parallel = parse_layouts(layout, {}).at(0);
    EXPECT_EQ(changed(run), both) << layout;
  }
}

TEST(ParamGroups, FrozenParametersStayAsTheyAre) {
  TinyRun run;
  run.model = tiny_llama();
  run.groups.train_only = {"decoder.layers.3.mlp.*", "output_layer.weight"};
  for (const char* layout : {"dp1", "tp2sp", "dp2zero3"}) {
    run.parallel = parse_layouts(layout, {}).at(0);
    std::vector<std::string> names = changed(run);
    EXPECT_EQ(names.size(), 3u) << layout;
    for (const std::string& name : names) {
      EXPECT_TRUE(name == "output_layer.weight" || name.starts_with("decoder.layers.3.mlp."))
          << name;
    }
  }
}

TEST(ParamGroups, NothingTrainsWithFreezeAllLayers) {
  TinyRun run;
  run.model = tiny_gpt();
  run.groups.freeze_all_layers = true;
  EXPECT_TRUE(changed(run).empty());
  EXPECT_EQ(run_tiny(run).grad_norms.back(), 0);
}

}  // namespace
}  // namespace bev::test
