#include "optim/param_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "autograd/param.h"
#include "base/error.h"

namespace bev {
namespace {

TEST(MatchesPattern, StarsAndQuestionMarksStandForCharacters) {
  struct Row {
    const char *pattern, *name;
    bool matches;
  };
  for (const Row& row :
       {Row{"a.b", "a.b", true}, Row{"a.b", "a.bc", false}, Row{"a", "", false}, Row{"", "", true},
        Row{"*", "", true}, Row{"*", "a.b", true}, Row{"*.bias", "a.b.bias", true},
        Row{"*.bias", "a.bias.c", false}, Row{"a.*.c", "a.b.b.c", true}, Row{"a.*.c", "a.c", false},
        Row{"a.?.c", "a.1.c", true}, Row{"a.?.c", "a.12.c", false}, Row{"*a*b*", "xaxxbx", true},
        Row{"*ab*ab", "abab", true}, Row{"*ab*abc", "ababab", false}, Row{"a**", "a", true},
        Row{"?*", "", false}}) {
    EXPECT_EQ(matches_pattern(row.pattern, row.name), row.matches)
        << row.pattern << " " << row.name;
  }
}

std::vector<Param> some_params() {
  std::vector<Param> params;
  for (const char* name : {"embedding.word_embeddings.weight", "layers.0.weight", "layers.0.bias",
                           "layers.1.weight", "output_layer.weight"}) {
    params.emplace_back();
    params.back().name = name;
    params.back().wd_mult = params.back().name.ends_with("bias") ? 0 : 1;
  }
  return params;
}

std::vector<Param> grouped(const ParamGroupConfig& config) {
  std::vector<Param> params = some_params();
  std::vector<Param*> pointers;
  for (Param& param : params) pointers.push_back(&param);
  apply_rules(config.rules(), pointers);
  return params;
}

template <class T>
std::vector<T> each(const std::vector<Param>& params, T Param::*member) {
  std::vector<T> out;
  for (const Param& param : params) out.push_back(param.*member);
  return out;
}

using testing::ElementsAre;

TEST(ParamRules, WithoutOneNothingChanges) {
  std::vector<Param> params = grouped({});
  EXPECT_THAT(each(params, &Param::lr_mult), ElementsAre(1, 1, 1, 1, 1));
  EXPECT_THAT(each(params, &Param::wd_mult), ElementsAre(1, 1, 0, 1, 1));
  EXPECT_THAT(each(params, &Param::lr_index), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(each(params, &Param::trains), ElementsAre(true, true, true, true, true));
}

TEST(ParamRules, LaterOnesWinValueByValue) {
  std::vector<Param> params = grouped({.param_group = {"layers.*:lr-mult=0.5:wd-mult=2",
                                                       "*.bias:wd-mult=3", "layers.0.*:lr-mult=0"},
                                       .head_lr_mult = 10});
  EXPECT_THAT(each(params, &Param::lr_mult), ElementsAre(1, 0, 0, 0.5, 10));
  EXPECT_THAT(each(params, &Param::wd_mult), ElementsAre(1, 2, 3, 2, 1));
}

TEST(ParamRules, FreezeAfterTrainOnly) {
  EXPECT_THAT(each(grouped({.freeze = {"layers.0.*", "emb*"}}), &Param::trains),
              ElementsAre(false, false, false, true, true));
  EXPECT_THAT(each(grouped({.train_only = {"layers.*"}, .freeze = {"*.bias"}}), &Param::trains),
              ElementsAre(false, true, false, true, false));
  EXPECT_THAT(
      each(grouped({.train_only = {"layers.*"}, .freeze_all_layers = true}), &Param::trains),
      ElementsAre(false, false, false, false, false));
}

TEST(ParamRules, KeepFromTrainingWhatTheModuleDoes) {
  Param fixed;
  fixed.name = "fixed";
  fixed.trains = false;
  Param* pointer = &fixed;
  apply_rules(ParamGroupConfig{.train_only = {"*"}}.rules(), {&pointer, 1});
  EXPECT_FALSE(fixed.trains);
}

TEST(ParamRules, OwnSchedulesAreNumberedInTheirOrder) {
  std::vector<Param> params =
      grouped({.param_group = {"layers.1.*:lr=1", "*.bias:lr-mult=2", "layers.0.weight:lr=3"},
               .decoupled_lr = 0.1});
  EXPECT_THAT(each(params, &Param::lr_index), ElementsAre(kDecoupledLrIndex, 3, 0, 2, 1));
}

TEST(ParamRules, ThatCannotBeReadAreErrors) {
  EXPECT_THROW((ParamGroupConfig{.param_group = {"a:b=1"}}.rules()), Error);
}

// Megatron's get_lr with the max_lr and min_lr of the group; warmup begins at the run's init_lr.
TEST(LearningRates, GroupsGoThroughTheRunsScheduleBetweenTheirOwnEnds) {
  LrSchedule run{.max_lr = 0.1,
                 .min_lr = 0.001,
                 .init_lr = 0.01,
                 .warmup_steps = 100,
                 .decay_steps = 1000,
                 .style = LrSchedule::Style::kCosine};
  ParamGroupConfig config{
      .param_group = {"*:lr=0.02"}, .decoupled_lr = 0.5, .decoupled_min_lr = 0.2};
  std::vector<ParamRule> rules = config.rules();
  auto fall = [](double ratio) { return 0.5 * (std::cos(std::numbers::pi * ratio) + 1); };
  struct Row {
    std::int64_t samples;
    double run, decoupled, own;
  };
  for (const Row& row : {Row{0, 0.01, 0.01, 0.01}, Row{50, 0.055, 0.01 + 0.49 * 0.5, 0.015},
                         Row{100, 0.1, 0.5, 0.02}, Row{550, 0.0505, 0.35, 0.0105},
                         Row{400, 0.001 + 0.099 * fall(300.0 / 900), 0.2 + 0.3 * fall(300.0 / 900),
                             0.001 + 0.019 * fall(300.0 / 900)},
                         Row{1001, 0.001, 0.2, 0.001}}) {
    LearningRates rates = learning_rates(run, rules, row.samples);
    EXPECT_EQ(rates.values[0], run.lr(row.samples));
    EXPECT_DOUBLE_EQ(rates.values[0], row.run) << row.samples;
    EXPECT_DOUBLE_EQ(rates.values[1], row.decoupled) << row.samples;
    EXPECT_DOUBLE_EQ(rates.values[2], row.own) << row.samples;
  }
}

TEST(LearningRates, OfANumberAreTheSameForEveryGroup) {
  LearningRates rates = 0.25;
  for (double rate : rates.values) EXPECT_EQ(rate, 0.25);
}

}  // namespace
}  // namespace bev
