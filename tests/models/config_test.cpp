#include "models/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/fields.h"
#include "base/text.h"
#include "models/families/family.h"

namespace bev {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ModelConfig small() {
  ModelConfig model;
  model.num_layers = 4;
  model.hidden_size = 48;
  model.num_attention_heads = 6;
  model.vocab_size = 100;
  model.max_position_embeddings = 32;
  return model;
}

TEST(ModelConfig, FfnSizeFollowsMegatron) {
  ModelConfig model = small();
  EXPECT_EQ(model.ffn_size(), 192);
  model.hidden_size = 4096;
  model.gated = true;
  EXPECT_EQ(model.ffn_size(), 10880);  // int(4h * 2/3 / 64) * 64
  model.hidden_size = 16;
  EXPECT_EQ(model.ffn_size(), 64);
  model.ffn_hidden_size = 99;
  EXPECT_EQ(model.ffn_size(), 99);
}

TEST(ModelConfig, AttentionScaleIsOfTheHead) {
  ModelConfig model = small();
  EXPECT_DOUBLE_EQ(model.attention_scale(), 1 / std::sqrt(8.0));
  model.kv_channels = 16;
  EXPECT_DOUBLE_EQ(model.attention_scale(), 0.25);
  model.softmax_scale = 0.3;
  EXPECT_DOUBLE_EQ(model.attention_scale(), 0.3);
}

TEST(ModelConfig, WindowsFollowFrequencyOrPattern) {
  ModelConfig model = small();
  auto windows = [&] {
    std::vector<bool> out;
    for (int i = 0; i < model.num_layers; ++i) out.push_back(model.windowed(i));
    return out;
  };
  EXPECT_THAT(windows(), ElementsAre(false, false, false, false));
  model.window_size = 8;
  EXPECT_THAT(windows(), ElementsAre(true, true, true, true));
  model.window_layers = {2};
  EXPECT_THAT(windows(), ElementsAre(true, false, true, false));
  model.window_layers = {0, 1, 1, 0};
  EXPECT_THAT(windows(), ElementsAre(false, true, true, false));
  EXPECT_THAT(model.problems(), IsEmpty());
  model.num_layers = 1;
  model.window_layers = {1};
  EXPECT_THAT(windows(), ElementsAre(true));
}

TEST(ModelConfig, AGoodOneHasNoProblems) {
  EXPECT_THAT(small().problems(), IsEmpty());
  ModelConfig model = small();
  model.position_embedding_type = PositionKind::kRope;
  model.num_query_groups = 2;
  model.max_position_embeddings = 0;
  EXPECT_THAT(model.problems(), IsEmpty());
}

TEST(ModelConfig, ProblemsAreAllReported) {
  EXPECT_THAT(ModelConfig().problems(),
              ElementsAre(HasSubstr("--num-layers: is 0; give a number >= 1"),
                          HasSubstr("--hidden-size"), HasSubstr("--num-attention-heads"),
                          HasSubstr("--vocab-size"), HasSubstr("--max-position-embeddings")));
  ModelConfig model = small();
  model.hidden_size = 50;
  model.num_query_groups = 4;
  model.window_layers = {1, 0};
  EXPECT_THAT(
      model.problems(),
      ElementsAre("--num-attention-heads: 6 does not divide --hidden-size 50; change one, or give "
                  "the head size with --kv-channels",
                  "--num-query-groups: 4 does not divide --num-attention-heads 6; use 1, 2, 3 or 6",
                  "--window-attn-skip-freq: lists 2 layers, --num-layers is 4",
                  HasSubstr("there is no window; give --window-size too")));
}

TEST(ModelConfig, LimitsOfKernelsAndCountersAreProblems) {
  ModelConfig model = small();
  model.num_layers = 4095;
  model.kv_channels = 256;
  EXPECT_THAT(model.problems(), IsEmpty());
  model.num_layers = 4096;
  model.kv_channels = 257;
  EXPECT_THAT(model.problems(),
              ElementsAre("--num-layers: 4096 is too many; at most 4095",
                          HasSubstr("--kv-channels: a head of 257 is too large; at most 256")));
  model = small();
  model.num_attention_heads = 65536;
  model.kv_channels = 8;
  EXPECT_THAT(model.problems(),
              ElementsAre("--num-attention-heads: 65536 is too many; at most 65535"));
}

TEST(ModelConfig, RopeNeedsEvenDimsAndFittingFactors) {
  ModelConfig model = small();
  model.position_embedding_type = PositionKind::kRope;
  model.kv_channels = 5;
  EXPECT_THAT(model.problems(), ElementsAre(HasSubstr("turns 5 dims; rope needs an even number")));
  model.kv_channels = 8;
  model.rope_scaling.kind = RopeScalingKind::kLongRope;
  model.rope_scaling.factor = 0.5;
  model.rope_scaling.short_factor = {1, 1, 1, 1};
  EXPECT_THAT(model.problems(),
              ElementsAre(HasSubstr("--rope-scaling-factor: 0.5"),
                          HasSubstr("--longrope-long-factor: has 0 numbers; longrope needs 4")));
}

ModelConfig latent_config() {
  ModelConfig config = preset("deepseek-v2-lite");
  EXPECT_TRUE(config.problems().empty());
  return config;
}

TEST(ModelConfig, LatentAttentionNeedsItsSizes) {
  ModelConfig config = latent_config();
  config.kv_lora_rank = config.v_head_dim = 0;
  config.qk_pos_emb_head_dim = 63;
  config.num_query_groups = 4;
  std::string text = join(config.problems(), "\n");
  for (const char* flag :
       {"--kv-lora-rank", "--v-head-dim", "--qk-pos-emb-head-dim: 63", "--num-query-groups: 4"}) {
    EXPECT_NE(text.find(flag), std::string::npos) << flag << " in " << text;
  }
  config = latent_config();
  config.qk_head_dim = 200;
  config.kv_lora_rank = 1000;
  text = join(config.problems(), "\n");
  EXPECT_NE(text.find("at most 256"), std::string::npos) << text;
  EXPECT_NE(text.find("at most 1024 together"), std::string::npos) << text;
}

// DeepSeek's rule: the square of yarn's magnitude, independent of the scale of cos and sin.
TEST(ModelConfig, LatentScoresFollowTheMagnitudeOfAllDims) {
  ModelConfig config = latent_config();
  double magnitude = 0.1 * 0.707 * std::log(40.0) + 1;
  EXPECT_NEAR(config.attention_scale(), magnitude * magnitude / std::sqrt(192.0), 1e-12);
  config.rope_scaling.mscale = 0;
  EXPECT_NEAR(config.attention_scale(), magnitude * magnitude / std::sqrt(192.0), 1e-12);
  config.rope_scaling.mscale_all_dim = 0;
  EXPECT_NEAR(config.attention_scale(), 1 / std::sqrt(192.0), 1e-12);
}

TEST(ModelConfig, LimitsOfGatesNeedAGate) {
  ModelConfig config = preset("gpt2-124m");
  config.activation_clamp = 7;
  EXPECT_NE(join(config.problems(), "\n").find("--activation-func-clamp-value"), std::string::npos);
}

TEST(ModelConfig, WindowTakesMegatronsPair) {
  ModelConfig model = small();
  FieldList list;
  model.fields(list);
  Field& window = *list.find("window-size");
  for (const char* text : {"127", "127,0", "(127, 0)"}) {
    model.window_size = 0;
    EXPECT_EQ(window.set_text(text), "") << text;
    EXPECT_EQ(model.window_size, 127) << text;
  }
  EXPECT_EQ(window.set_text("127,5"), "'127,5' reaches to the right; give one number a, or a,0");
  EXPECT_NE(window.set_text("1,0,0"), "");
  EXPECT_NE(window.set_text(""), "");
  EXPECT_NE(window.set_text("-1,0"), "");
  EXPECT_EQ(model.window_size, 127);
}

TEST(ModelConfig, LayersWithExpertsAreANumberOrAPythonList) {
  ModelConfig model = small();
  model.moe.num_experts = 8;
  FieldList list;
  model.fields(list);
  Field& field = *list.find("moe-layer-freq");
  auto layers = [&](const char* text) {
    EXPECT_EQ(field.set_text(text), "") << text;
    std::string marks;
    for (std::int64_t i = 0; i < model.num_layers; ++i) marks += model.moe.in_layer(i) ? '1' : '0';
    return marks;
  };
  EXPECT_EQ(layers("1"), "1111");
  EXPECT_EQ(layers("2"), "1010");
  EXPECT_EQ(layers("0,1,1,0"), "0110");
  EXPECT_EQ(layers("[0, 1, 1, 1]"), "0111");
  EXPECT_EQ(layers("([0]*3+[1]*1)"), "0001");
  EXPECT_EQ(layers("([0] + ([1]*1)*2)+[0,]"), "0110");
  EXPECT_THAT(model.problems(), IsEmpty());
  for (const char* bad :
       {"[0]*", "([0]*3", "[0]*3+", "([0]*9999999)", "[0]*[1]", "1+1", "[-1]*4"}) {
    EXPECT_THAT(field.set_text(bad), HasSubstr("neither a number nor a list")) << bad;
  }
  EXPECT_EQ(field.set_text("[1]*3"), "");
  EXPECT_THAT(model.problems(), ElementsAre(HasSubstr("lists 3 layers, --num-layers is 4")));
}

TEST(ModelConfig, ExpertsThatDoNotFitAreProblems) {
  ModelConfig model = small();
  model.moe.num_experts = 12;
  model.moe.topk = 13;
  EXPECT_THAT(model.problems(), ElementsAre(HasSubstr("--moe-router-topk: 13 of")));
  model.moe.topk = 4;
  model.moe.num_groups = 5;
  EXPECT_THAT(model.problems(), ElementsAre(HasSubstr("5 does not divide --num-experts 12")));
  model.moe.num_groups = 6;
  model.moe.group_topk = 1;
  EXPECT_THAT(model.problems(), ElementsAre(HasSubstr("--moe-router-group-topk: 1 of 6 groups")));
  model.moe.group_topk = 2;
  model.moe.expert_bias = model.moe.shared_expert_gate = model.moe.pre_softmax = true;
  EXPECT_THAT(model.problems(), ElementsAre(HasSubstr("sigmoid or sqrtsoftplus"),
                                            HasSubstr("there is no shared expert")));
}

TEST(ModelConfig, ExpertSettingsWithoutEffectAreProblems) {
  ModelConfig model = small();
  model.moe.num_experts = 12;
  model.moe.group_topk = 3;
  EXPECT_THAT(model.problems(), ElementsAre(HasSubstr("give --moe-router-num-groups too")));
  model.moe.group_topk = 1;
  EXPECT_THAT(model.problems(), IsEmpty());
  model.moe.norm_topk_prob = false;
  EXPECT_THAT(model.problems(), ElementsAre(HasSubstr("is --moe-router-pre-softmax")));
  model.moe.norm_topk_prob = true;
  model.moe.layer_freq.assign(static_cast<std::size_t>(model.num_layers), 0);
  EXPECT_THAT(model.problems(), ElementsAre(HasSubstr("no layer has experts")));
  model.moe.layer_freq = {1};
  model.moe_training.load_balancing = {"aux_loss", "none"};
  model.moe_training.aux_loss_coeff = {0.1, 0.2};
  EXPECT_THAT(model.problems(), ElementsAre(HasSubstr("--moe-aux-loss-coeff: 0.2 of none")));
  FieldList list;
  model.fields(list);
  EXPECT_THAT(list.find("moe-router-topk-scaling-factor")->set_text("0"),
              HasSubstr("it must be > 0"));
}

TEST(ModelConfig, FieldsUseMegatronsNames) {
  ModelConfig model;
  FieldList list;
  model.fields(list);
  EXPECT_EQ(list.find("position-embedding-type")->set_text("rope"), "");
  EXPECT_EQ(model.position_embedding_type, PositionKind::kRope);
  EXPECT_EQ(list.find("normalization")->set_text("RMSNorm"), "");
  EXPECT_EQ(model.normalization, NormKind::kRmsNorm);
  EXPECT_NE(list.find_shorthand("swiglu"), nullptr);
  EXPECT_EQ(&list.find_negated("disable-bias-linear")->field, list.find("add-bias-linear"));
  EXPECT_EQ(list.find("hidden-dropout")->set_text("1"),
            "1 is out of range; it must be >= 0 and < 1");
  for (const Shorthand& shorthand : list.shorthands()) {
    for (const auto& [name, value] : shorthand.settings) {
      ASSERT_NE(list.find(name), nullptr) << shorthand.name;
      EXPECT_EQ(list.find(name)->set_text(value), "") << shorthand.name;
    }
  }
}

}  // namespace
}  // namespace bev
