// Models with layers of the gated delta rule: their layers, parameters, errors and sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "models/families/family.h"
#include "models/families/follow_sizes.h"
#include "models/layer_spec.h"
#include "models/model.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

ModelConfig delta_model() {
  ModelConfig model = tiny_llama();
  model.num_layers = 4;
  model.hybrid_layer_pattern = "gaG*";
  model.delta = {.conv_kernel = 4,
                 .key_head_dim = 4,
                 .value_head_dim = 6,
                 .num_key_heads = 2,
                 .num_value_heads = 4};
  return model;
}

TEST(GatedDelta, LettersAreLayers) {
  const std::vector<LayerSpec> layers = layer_specs(delta_model());
  EXPECT_EQ(layers[0].mixer, &kGatedDeltaMixer);
  EXPECT_EQ(layers[0].feed_forward, FeedForwardKind::kDense);
  EXPECT_EQ(layers[1].mixer, &kAttentionMixer);
  EXPECT_EQ(layers[1].feed_forward, FeedForwardKind::kDense);
  EXPECT_EQ(layers[2].mixer, &kGatedDeltaMixer);
  EXPECT_EQ(layers[2].feed_forward, FeedForwardKind::kNone);
  EXPECT_EQ(layers[3].mixer, &kAttentionMixer);
  EXPECT_EQ(layers[3].feed_forward, FeedForwardKind::kNone);
}

TEST(GatedDelta, ParametersHaveMegatronsNamesSizesAndDecay) {
  const ModelConfig model = delta_model();
  const std::int64_t hidden = model.hidden_size;
  // in_proj: q | k | v | z | b | a
  const std::map<std::string, Shape> shapes = {{"in_proj.weight", {72, hidden}},
                                               {"conv1d.weight", {40, 1, 4}},
                                               {"out_norm.weight", {6}},
                                               {"out_proj.weight", {hidden, 24}}};
  std::vector<std::string> names;
  for (const Param& param : declare_params(model)) {
    const std::string prefix = "decoder.layers.0.self_attention.";
    if (!param.name.starts_with(prefix)) continue;
    names.push_back(param.name.substr(prefix.size()));
    EXPECT_EQ(param.wd_mult, param.shape.ndim() > 1 ? 1 : 0) << param.name;
    const bool rate = names.back() == "A_log" || names.back() == "dt_bias";
    EXPECT_EQ(param.format, rate ? ParamFormat::kF32 : ParamFormat::kModel) << param.name;
    if (shapes.contains(names.back())) {
      EXPECT_EQ(param.shape, shapes.at(names.back())) << param.name;
    }
  }
  EXPECT_THAT(names, testing::ElementsAre("in_proj.weight", "conv1d.weight", "dt_bias", "A_log",
                                          "out_norm.weight", "out_proj.weight"));
}

TEST(GatedDelta, ProblemsNameTheFlag) {
  EXPECT_THAT(delta_model().problems(), IsEmpty());
  ModelConfig model = delta_model();
  model.delta.num_value_heads = 5;
  ASSERT_FALSE(model.problems().empty());
  EXPECT_THAT(model.problems().front(), HasSubstr("--linear-num-value-heads: 5"));
  model = tiny_deepseek();
  model.attention_output_gate = true;
  EXPECT_THAT(model.problems(), testing::Contains(HasSubstr("--attention-output-gate")));
  model = delta_model();
  model.causal = false;
  ASSERT_FALSE(model.problems().empty());
  EXPECT_THAT(model.problems().front(), HasSubstr("gated delta layers are causal"));
}

TEST(GatedDelta, PatternsAndHeadsFollowOtherSizes) {
  const ModelConfig base = preset("qwen3.5-9b");
  auto changed = [&](auto change, std::string_view given) {
    ModelConfig model = base;
    change(model);
    follow_sizes(
        base, [&](std::string_view flag) { return flag == given; }, model);
    return model;
  };
  ModelConfig model = changed([](ModelConfig& m) { m.num_layers = 6; }, "num-layers");
  EXPECT_EQ(model.hybrid_layer_pattern, "gggagg");
  model = changed([](ModelConfig& m) { m.hidden_size = 1024; }, "hidden-size");
  EXPECT_EQ(model.delta.num_key_heads, 4);
  EXPECT_EQ(model.delta.num_value_heads, 8);
  model = changed([](ModelConfig& m) { m.delta.num_key_heads = 8; }, "linear-num-key-heads");
  EXPECT_EQ(model.delta.num_value_heads, 16);
}

}  // namespace
}  // namespace bev::test
