#include "models/families/follow_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "base/error.h"
#include "models/families/family.h"

namespace bev {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// A preset with changes to the fields that are named.
ModelConfig changed(const ModelConfig& base, std::set<std::string> given,
                    void (*change)(ModelConfig&)) {
  ModelConfig model = base;
  change(model);
  follow_sizes(
      base, [&](std::string_view flag) { return given.contains(std::string(flag)); }, model);
  return model;
}

void make_tiny(ModelConfig& model) {
  model.num_layers = 2;
  model.hidden_size = 32;
  model.num_attention_heads = 4;
}

const std::set<std::string> kTiny = {"num-layers", "hidden-size", "num-attention-heads"};

TEST(FollowSizes, EveryFamilyHasATinyModelThatItsConfigJsonCanSay) {
  for (const ModelFamily& family : families()) {
    ModelConfig base = family_defaults(family.name);
    ModelConfig model = changed(base, kTiny, make_tiny);
    EXPECT_THAT(model.problems(), IsEmpty()) << family.name;
    EXPECT_EQ(model.moe.any(), base.moe.any()) << family.name;
    EXPECT_LT(model.head_size(), 33) << family.name;
    ModelConfig back = from_hf(HfConfig::parse(to_hf(model, Dtype::kF32).dump()));
    EXPECT_THAT(differing_fields(canonical(model), back), IsEmpty()) << family.name;
  }
}

TEST(FollowSizes, WhatIsNotChangedStays) {
  for (const std::string& name : preset_names()) {
    ModelConfig base = preset(name);
    EXPECT_THAT(differing_fields(base, canonical(changed(base, {}, [](ModelConfig&) {}))),
                IsEmpty())
        << name;
  }
}

TEST(FollowSizes, GroupsKeepTheirShareOfTheHeads) {
  auto heads = [](const char* name, void (*change)(ModelConfig&)) {
    return changed(preset(name), {"num-attention-heads"}, change).num_query_groups;
  };
  EXPECT_EQ(heads("gpt2-124m", [](ModelConfig& model) { model.num_attention_heads = 4; }), 4);
  EXPECT_EQ(heads("llama3-8b", [](ModelConfig& model) { model.num_attention_heads = 16; }), 4);
  EXPECT_EQ(heads("llama3-8b", [](ModelConfig& model) { model.num_attention_heads = 2; }), 1);
  // A quarter of 18 heads is no whole number, and 4 does not divide them.
  EXPECT_EQ(heads("llama3-8b", [](ModelConfig& model) { model.num_attention_heads = 18; }), 3);
}

TEST(FollowSizes, WhatIsGivenIsKept) {
  ModelConfig model =
      changed(preset("llama3-8b"), {"num-attention-heads", "num-query-groups", "ffn-hidden-size"},
              [](ModelConfig& config) {
                config.hidden_size = 64;
                config.num_attention_heads = 16;
                config.num_query_groups = 16;
                config.ffn_hidden_size = 100;
              });
  EXPECT_EQ(model.num_query_groups, 16);
  EXPECT_EQ(model.ffn_size(), 100);
  EXPECT_EQ(model.head_size(), 4);
}

// Heads of a size of their own keep it when only their number changes.
TEST(FollowSizes, HeadSizesFollowTheHiddenSize) {
  auto size = [](const char* name, void (*change)(ModelConfig&)) {
    return changed(preset(name), {}, change).head_size();
  };
  auto fewer = [](ModelConfig& model) { model.num_attention_heads /= 2; };
  EXPECT_EQ(size("gpt2-124m", fewer), 128);
  EXPECT_EQ(size("qwen3-0.6b", fewer), 128);
  EXPECT_EQ(size("gemma3-1b", fewer), 256);
  EXPECT_EQ(size("deepseek-v3", fewer), 192);
  EXPECT_EQ(size("qwen3-0.6b", [](ModelConfig& model) { model.hidden_size = 512; }), 64);
  ModelConfig gemma = changed(preset("gemma3-1b"), {}, make_tiny);
  EXPECT_DOUBLE_EQ(gemma.embedding_multiplier, std::sqrt(32.0));
}

TEST(FollowSizes, ListsFollowTheLayers) {
  auto layers = [](const char* name, std::int64_t count) {
    ModelConfig base = preset(name), model = base;
    model.num_layers = count;
    follow_sizes(
        base, [](std::string_view) { return false; }, model);
    return model;
  };
  EXPECT_THAT(layers("gemma2-2b", 3).window_layers, ElementsAre(1, 0, 1));
  EXPECT_THAT(layers("gemma3-1b", 7).window_layers, ElementsAre(1, 1, 1, 1, 1, 0, 1));
  EXPECT_EQ(layers("gemma2-2b", 40).window_layers.size(), 40u);
  EXPECT_THAT(layers("deepseek-v3", 2).moe.layer_freq, ElementsAre(0, 1));
  EXPECT_THAT(layers("deepseek-v3", 5).moe.layer_freq, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(layers("deepseek-v2-lite", 1).moe.layer_freq, ElementsAre(1));
}

TEST(FollowSizes, TheRouterFollowsTheExperts) {
  ModelConfig model = changed(preset("deepseek-v3"), {"num-experts"},
                              [](ModelConfig& config) { config.moe.num_experts = 4; });
  EXPECT_EQ(model.moe.topk, 4);
  EXPECT_EQ(model.moe.num_groups, 0);
  EXPECT_THAT(model.problems(), IsEmpty());
  model = changed(preset("mixtral-8x7b"), {"ffn-hidden-size"},
                  [](ModelConfig& config) { config.ffn_hidden_size = 48; });
  EXPECT_EQ(model.expert_ffn_size(), 48);
  model = changed(preset("deepseek-v2-lite"), {"moe-ffn-hidden-size"},
                  [](ModelConfig& config) { config.moe.ffn_hidden_size = 24; });
  EXPECT_EQ(model.moe.shared_expert_size, 48);
}

TEST(FollowSizes, AnUnknownFamilyHasANearestName) {
  try {
    family_defaults("lama");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kConfig);
    EXPECT_THAT(error.what(), testing::HasSubstr("--family: 'lama' is not known"));
    EXPECT_THAT(error.what(), testing::HasSubstr("did you mean llama?"));
  }
}

}  // namespace
}  // namespace bev
