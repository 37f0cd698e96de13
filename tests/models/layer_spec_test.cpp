// Layer descriptions derived from a configuration, and the resulting parameters.
#include "models/layer_spec.h"

#include <gtest/gtest.h>

#include <set>

#include "models/families/family.h"
#include "models/model.h"
#include "tests/support/layouts.h"

namespace bev::test {
namespace {

TEST(LayerSpec, HasWhatDiffersBetweenLayers) {
  ModelConfig gemma = preset("gemma3-1b");
  std::vector<LayerSpec> layers = layer_specs(gemma);
  ASSERT_EQ(std::ssize(layers), gemma.num_layers);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    bool full = (i + 1) % 6 == 0;
    EXPECT_EQ(layers[i].attention.window, full ? -1 : gemma.window_size);
    EXPECT_EQ(layers[i].rope, full ? RopeKind::kGlobal : RopeKind::kLocal);
    EXPECT_EQ(layers[i].norms, NormPlacement::kPreAndPost);
  }
}

TEST(LayerSpec, ScalesByTheLayerWhereTheModelDoes) {
  ModelConfig model = tiny_gpt();
  model.scale_by_inverse_layer = true;
  std::vector<LayerSpec> layers = layer_specs(model);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    EXPECT_DOUBLE_EQ(layers[i].attention.scale,
                     model.attention_scale() / static_cast<double>(i + 1));
    EXPECT_EQ(layers[i].rope, RopeKind::kNone);
  }
}

TEST(LayerSpec, NamesMixersAndFeedForwardParts) {
  ModelConfig model = deepseek_like();
  for (std::int64_t i = 0; i < model.num_layers; ++i) {
    LayerSpec spec = decoder_layer(model, i);
    EXPECT_EQ(spec.mixer, &kLatentAttentionMixer);
    EXPECT_EQ(spec.feed_forward == FeedForwardKind::kExperts, model.moe.in_layer(i));
  }
  EXPECT_EQ(decoder_layer(tiny_llama(), 0).mixer->name, "attention");
}

// FSDP unit: parameters that ZeRO-3 gathers together.
TEST(LayerSpec, ParametersOfALayerAreOneUnit) {
  ModelConfig model = deepseek_like();
  std::set<std::string> units;
  for (const Param& param : declare_params(model)) {
    bool layered = param.name.find("layers.") != std::string::npos;
    EXPECT_EQ(param.unit.empty(), !layered) << param.name;
    if (!layered) continue;
    EXPECT_TRUE(param.name.starts_with(param.unit + ".")) << param.name << " in " << param.unit;
    units.insert(param.unit);
  }
  EXPECT_EQ(std::ssize(units), model.num_layers + model.mtp_num_layers);
  EXPECT_TRUE(units.contains("mtp.layers.0"));
}

// A mixer with its own FSDP unit, and a layer without a feed-forward part.
TEST(LayerSpec, AMixerMayBeAUnitOfItsOwn) {
  static const MixerType kAlone = [] {
    MixerType type = kAttentionMixer;
    type.fsdp_unit = "mixer";
    return type;
  }();
  static const Architecture kArchitecture = [] {
    Architecture architecture = kDecoderArchitecture;
    architecture.layers = [](const ModelConfig& config) {
      std::vector<LayerSpec> layers = decoder_layers(config);
      layers[0].mixer = &kAlone;
      layers[0].feed_forward = FeedForwardKind::kNone;
      return layers;
    };
    return architecture;
  }();
  ModelConfig model = tiny_llama();
  model.architecture = &kArchitecture;
  std::set<std::string> names;
  for (const Param& param : declare_params(model)) {
    names.insert(param.name);
    if (!param.name.starts_with("decoder.layers.0.self_attention")) continue;
    EXPECT_EQ(param.unit, "decoder.layers.0.mixer") << param.name;
  }
  EXPECT_FALSE(names.contains("decoder.layers.0.mlp.linear_fc1.weight"));
  EXPECT_FALSE(names.contains("decoder.layers.0.pre_mlp_layernorm.weight"));
  EXPECT_TRUE(names.contains("decoder.layers.1.mlp.linear_fc1.weight"));
  TinyRun run;
  run.model = model;
  LayoutAnswer expected = run_tiny(run);
  run.parallel.data_parallel_size = 2;
  run.parallel.data_parallel_sharding_strategy = ShardingStrategy::kOptimGradsParams;
  EXPECT_EQ(answer_difference(expected, run_tiny(run)), "");
}

}  // namespace
}  // namespace bev::test
