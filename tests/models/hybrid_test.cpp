// Layers of different kinds: patterns, their rules, sizes that follow, and Megatron's numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/families/family.h"
#include "models/families/follow_sizes.h"
#include "models/model.h"
#include "tests/support/expect_error.h"
#include "tests/support/hybrids.h"

namespace bev::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// As in Megatron's test of hybrid models.
ModelConfig megatron_hybrid() {
  ModelConfig model;
  model.num_layers = 3;
  model.hidden_size = 256;
  model.num_attention_heads = 4;
  model.vocab_size = 100;
  model.hybrid_layer_pattern = "M*-";
  model.position_embedding_type = PositionKind::kNone;
  model.untie_embeddings_and_output_weights = true;
  return model;
}

TEST(Hybrid, HasAsManyParametersAsMegatrons) {
  EXPECT_EQ(count_parameters(megatron_hybrid()), 1774872);
}

TEST(Hybrid, LayersAreThoseOfThePattern) {
  ModelConfig model = tiny_nemotron_h();
  const std::vector<LayerSpec> layers = layer_specs(model);
  ASSERT_EQ(layers.size(), 6u);
  EXPECT_EQ(layers[0].mixer, &kMambaMixer);
  EXPECT_EQ(layers[0].feed_forward, FeedForwardKind::kNone);
  EXPECT_EQ(layers[1].mixer, nullptr);
  EXPECT_EQ(layers[1].feed_forward, FeedForwardKind::kExperts);
  EXPECT_EQ(layers[2].mixer, &kAttentionMixer);
  EXPECT_EQ(layers[3].feed_forward, FeedForwardKind::kDense);
  model = tiny_granite_h();
  for (const LayerSpec& layer : layer_specs(model)) {
    EXPECT_EQ(layer.feed_forward, FeedForwardKind::kExperts);
  }
  EXPECT_EQ(layer_specs(model)[2].mixer, &kAttentionMixer);
  EXPECT_EQ(layer_specs(tiny_falcon_h1())[0].mixer, &kParallelMambaMixer);
}

// Output projections have the variance of a sum over everything that is added.
TEST(Hybrid, ResidualBranchesArePartsOfLayers) {
  EXPECT_EQ(tiny_llama().residual_branches(), 8);
  EXPECT_EQ(tiny_mamba().residual_branches(), 4);
  EXPECT_EQ(tiny_nemotron_h().residual_branches(), 6);
  EXPECT_EQ(tiny_granite_h().residual_branches(), 8);
}

TEST(Hybrid, InitialStepsAndDecaysAreInTheirRanges) {
  for (const Param& param : declare_params(tiny_mamba())) {
    const bool of_heads = param.name.ends_with("A_log") || param.name.ends_with("dt_bias");
    EXPECT_EQ(of_heads, param.init.kind == InitKind::kLogUniform ||
                            param.init.kind == InitKind::kSoftplusUnder)
        << param.name;
    if (of_heads) {
      EXPECT_EQ(param.format, ParamFormat::kF32);
    }
    if (param.name.ends_with("conv1d.weight")) {
      EXPECT_EQ(param.wd_mult, 1);
    }
    if (param.shape.ndim() == 1) {
      EXPECT_EQ(param.wd_mult, 0) << param.name;
    }
  }
}

void expect_problem(const ModelConfig& model, std::initializer_list<const char*> words) {
  const std::vector<std::string> problems = model.problems();
  ASSERT_FALSE(problems.empty());
  for (const char* word : words) EXPECT_THAT(problems.front(), HasSubstr(word));
}

TEST(Hybrid, ProblemsNameThePattern) {
  EXPECT_THAT(tiny_mamba().problems(), IsEmpty());
  EXPECT_THAT(tiny_nemotron_h().problems(), IsEmpty());
  EXPECT_THAT(tiny_falcon_h1().problems(), IsEmpty());
  EXPECT_THAT(tiny_granite_h().problems(), IsEmpty());
  ModelConfig model = tiny_mamba();
  model.hybrid_layer_pattern = "MMXM";
  expect_problem(model, {"--hybrid-layer-pattern", "'X'"});
  model.hybrid_layer_pattern = "MMM";
  expect_problem(model, {"--hybrid-layer-pattern", "3 layers", "--num-layers is 4"});
  model.hybrid_layer_pattern = "MMME";
  expect_problem(model, {"E has experts", "--num-experts"});
  model = tiny_mamba();
  model.norm_placement = NormPlacement::kPreAndPost;
  expect_problem(model, {"--norm-placement"});
  model = tiny_mamba();
  model.mtp_num_layers = 1;
  expect_problem(model, {"--mtp-num-layers"});
  model = tiny_mamba();
  model.mamba.num_groups = 3;
  expect_problem(model, {"--mamba-num-groups", "8 Mamba heads"});
  model = tiny_mamba();
  model.mamba.part_multipliers = {1, 2};
  expect_problem(model, {"--mamba-part-multipliers", "five"});
  model = tiny_mamba();
  model.causal = false;
  expect_problem(model, {"causal"});
}

TEST(Hybrid, PatternsAndHeadsFollowOtherSizes) {
  const ModelConfig base = preset("nemotron-h-8b");
  auto changed = [&](std::initializer_list<std::string_view> given, auto change) {
    ModelConfig model = base;
    change(model);
    follow_sizes(
        base,
        [&](std::string_view flag) {
          return std::find(given.begin(), given.end(), flag) != given.end();
        },
        model);
    return model;
  };
  ModelConfig model = changed({"num-layers"}, [](ModelConfig& m) { m.num_layers = 6; });
  EXPECT_EQ(model.hybrid_layer_pattern, "M-M-M-");
  model =
      changed({"hybrid-layer-pattern"}, [](ModelConfig& m) { m.hybrid_layer_pattern = "M*-|M-"; });
  EXPECT_EQ(model.num_layers, 5);
  model = changed({"hidden-size"}, [](ModelConfig& m) { m.hidden_size = 1024; });
  EXPECT_EQ(model.mamba.num_heads, 32);
  EXPECT_EQ(model.mamba.num_groups, 8);
  model = changed({"hidden-size"}, [](ModelConfig& m) { m.hidden_size = 96; });
  EXPECT_EQ(model.mamba.num_heads, 3);
  EXPECT_EQ(model.mamba.num_groups, 3);
}

TEST(Hybrid, StepLimitsAreReadAsEveryVersionWritesThem) {
  auto limits = [](const char* text) {
    return HfConfig::parse(concat(R"({"x": )", text, "}")).limits("x");
  };
  EXPECT_THAT(limits("[0.5, Infinity]"), ElementsAre(0.5, HUGE_VAL));
  EXPECT_THAT(limits(R"([0.0, {"__float__": "Infinity"}])"), ElementsAre(0.0, HUGE_VAL));
  EXPECT_THAT(limits("[1, 2.5]"), ElementsAre(1, 2.5));
  EXPECT_THAT(limits("null"), IsEmpty());
  for (const char* wrong : {"[-1.0, 2.0]", R"(["many"])", "3", R"([{"__float__": "NaN"}])"}) {
    expect_error(ErrorKind::kInput, {"x must be a list of numbers >= 0"}, [&] { limits(wrong); });
  }
}

}  // namespace
}  // namespace bev::test
