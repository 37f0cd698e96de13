#include "models/families/family.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/text.h"
#include "models/rope.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace bev {
namespace {

using test::golden_config;
using test::golden_models;
using test::golden_path;

constexpr std::string_view kLlama = R"({"model_type": "llama", "hidden_size": 32,
  "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 97})";

// The model of `text` with additional keys.
ModelConfig read_with(std::string_view text, const std::string& extra) {
  std::string json(text);
  if (!extra.empty()) json.insert(json.rfind('}'), ", " + extra);
  return from_hf(HfConfig::parse(json));
}

TEST(Family, EveryGoldenConfigMapsBothWays) {
  for (const std::string& name : golden_models()) {
    ModelConfig config = from_hf(golden_config(name));
    EXPECT_EQ(config.hidden_dropout, 0) << name;
    EXPECT_EQ(config.attention_dropout, 0) << name;
    HfConfig written = to_hf(config, Dtype::kF32);
    ModelConfig back = from_hf(HfConfig::parse(written.dump()));
    EXPECT_EQ(differing_fields(config, back), std::vector<std::string>{}) << name;
    EXPECT_EQ(written.text("dtype"), "float32");
    EXPECT_EQ(written.texts("architectures"), golden_config(name).texts("architectures")) << name;
    EXPECT_EQ(written.dump(), to_hf(back, Dtype::kF32).dump()) << name;
  }
}

TEST(Family, BothLayoutsOfConfigJsonAreTheSameModel) {
  int compared = 0;
  for (const std::string& name : golden_models()) {
    if (!path_exists(golden_path(name, "config_v4.json"))) continue;
    ++compared;
    EXPECT_EQ(differing_fields(from_hf(golden_config(name)),
                               from_hf(golden_config(name, "config_v4.json"))),
              std::vector<std::string>{})
        << name;
  }
  EXPECT_GE(compared, 5);
}

TEST(Family, ReadsEverySettingOfGemma2) {
  ModelConfig config = from_hf(golden_config("gemma2"));
  EXPECT_EQ(config.family, "gemma2");
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.hidden_size, 30);
  EXPECT_EQ(config.ffn_hidden_size, 50);
  EXPECT_EQ(config.num_attention_heads, 6);
  EXPECT_EQ(config.num_query_groups, 2);
  EXPECT_EQ(config.kv_channels, 12);
  EXPECT_EQ(config.vocab_size, 149);
  EXPECT_EQ(config.rotary_base, 200);
  EXPECT_EQ(config.window_size, 4);
  EXPECT_EQ(config.window_layers, (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(config.softmax_scale, 1 / std::sqrt(7.0));
  EXPECT_EQ(config.attn_logit_softcapping, 2.5);
  EXPECT_EQ(config.final_logit_softcapping, 6);
  EXPECT_EQ(config.embedding_multiplier, std::sqrt(30.0));
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_TRUE(config.gated && config.apply_layernorm_1p);
  EXPECT_EQ(config.norm_placement, NormPlacement::kPreAndPost);
  EXPECT_FALSE(config.untie_embeddings_and_output_weights || config.has_mlp_bias());
}

TEST(Family, ReadsEverySettingOfGpt2) {
  ModelConfig config = from_hf(golden_config("gpt2_gelu_inner"));
  EXPECT_EQ(config.position_embedding_type, PositionKind::kLearned);
  EXPECT_EQ(config.max_position_embeddings, 48);
  EXPECT_EQ(config.ffn_hidden_size, 50);
  EXPECT_EQ(config.activation, Activation::kGelu);
  EXPECT_EQ(config.norm_epsilon, 1e-3);
  EXPECT_TRUE(config.scale_by_inverse_layer && config.add_bias_linear);
  EXPECT_EQ(from_hf(golden_config("gpt2_relu_untied")).softmax_scale, 1);
  EXPECT_EQ(from_hf(golden_config("gpt2")).ffn_hidden_size, 4 * 28);
}

TEST(Family, ReadsWindowsOfEveryFamily) {
  EXPECT_EQ(from_hf(golden_config("mistral_window_mqa")).window_size, 4);
  EXPECT_EQ(from_hf(golden_config("mistral_full")).window_size, 0);
  EXPECT_EQ(from_hf(golden_config("qwen2_mixed_window")).window_layers,
            (std::vector<std::int64_t>{0, 1, 1}));
  EXPECT_EQ(from_hf(golden_config("qwen3_tied")).window_size, 0);
  ModelConfig gemma3 = from_hf(golden_config("gemma3"));
  EXPECT_EQ(gemma3.window_layers, (std::vector<std::int64_t>{1, 1, 0, 1}));
  EXPECT_EQ(gemma3.rotary_base, 300);
  EXPECT_EQ(gemma3.rotary_base_local, 20);
  EXPECT_EQ(gemma3.rope_scaling.kind, RopeScalingKind::kLinear);
  EXPECT_EQ(from_hf(golden_config("phi3")).window_size, 6);
}

TEST(Family, ReadsNeoxBiasesAndPartialRotation) {
  ModelConfig config = from_hf(golden_config("gpt_neox_sequential"));
  EXPECT_FALSE(config.has_qkv_bias() || config.has_proj_bias() || config.parallel_residual);
  EXPECT_TRUE(config.has_mlp_bias());
  EXPECT_EQ(config.rotary_percent, 0.6);
  EXPECT_EQ(rotary_dims(config), 6);
  ModelConfig old = from_hf(HfConfig::parse(R"({"model_type": "gpt_neox", "hidden_size": 32,
      "intermediate_size": 70, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 113,
      "rotary_pct": 0.5, "rotary_emb_base": 500})"));
  EXPECT_EQ(old.rotary_percent, 0.5);
  EXPECT_EQ(old.rotary_base, 500);
}

// Also where all other linears have biases too.
TEST(Family, LatentsKeepTheirBiases) {
  HfConfig hf = golden_config("deepseek_v2_dense");
  hf.set("attention_bias", true);
  ModelConfig config = from_hf(hf);
  EXPECT_TRUE(config.has_mlp_bias());
  EXPECT_TRUE(config.has_proj_bias());
  EXPECT_TRUE(config.has_qkv_bias());
}

TEST(Family, NullAndMissingAreWhatTransformersTakesThemFor) {
  constexpr std::string_view kMistral = R"({"model_type": "mistral", "hidden_size": 64,
      "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 16,
      "vocab_size": 97})";
  EXPECT_EQ(read_with(kMistral, "").window_size, 4095);
  EXPECT_EQ(read_with(kMistral, "").num_query_groups, 8);
  EXPECT_EQ(read_with(kMistral, R"("num_key_value_heads": null)").num_query_groups, 16);
  EXPECT_EQ(read_with(kMistral, R"("sliding_window": null)").window_size, 0);
  constexpr std::string_view kGemma = R"({"model_type": "gemma2", "hidden_size": 64,
      "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
      "vocab_size": 97})";
  EXPECT_EQ(read_with(kGemma, "").attn_logit_softcapping, 50);
  EXPECT_EQ(read_with(kGemma, R"("attn_logit_softcapping": null)").attn_logit_softcapping, 0);
  EXPECT_EQ(read_with(kGemma, "").head_size(), 256);
  EXPECT_EQ(read_with(kLlama, R"("head_dim": null)").head_size(), 8);
}

TEST(Family, OldRopeSpellingsMeanTheSame) {
  RopeScaling scaling =
      read_with(kLlama, R"("rope_scaling": {"type": "linear", "factor": 2})").rope_scaling;
  EXPECT_EQ(scaling.kind, RopeScalingKind::kLinear);
  EXPECT_EQ(scaling.factor, 2);
  // rope_scaling wins over rope_parameters, unless it is empty.
  EXPECT_EQ(
      read_with(kLlama, R"("rope_scaling": {}, "rope_parameters": {"rope_theta": 7})").rotary_base,
      7);
  ModelConfig su = from_hf(HfConfig::parse(R"({"model_type": "phi3", "hidden_size": 16,
      "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 97,
      "max_position_embeddings": 8192,
      "rope_scaling": {"type": "su", "short_factor": [1, 2], "long_factor": [3, 4]}})"));
  EXPECT_EQ(su.rope_scaling.kind, RopeScalingKind::kLongRope);
  EXPECT_EQ(su.rope_scaling.original_max_positions, 4096);
  EXPECT_EQ(su.rope_scaling.factor, 2);
}

TEST(Family, LongRopeWithoutStretchingLeavesMagnitudesAlone) {
  ModelConfig config = read_with(kLlama, R"("max_position_embeddings": 64, "rope_scaling": {
      "rope_type": "longrope", "factor": 1.0, "original_max_position_embeddings": 16,
      "short_factor": [1, 1, 1, 1], "long_factor": [2, 2, 2, 2]})");
  EXPECT_EQ(rope_frequencies(config, false, 8).scale, 1);
  ModelConfig back = from_hf(to_hf(config, Dtype::kF32));
  EXPECT_EQ(rope_frequencies(back, false, 8).scale, 1);
}

struct BadSetting {
  std::string setting;             // added to kLlama
  std::vector<std::string> parts;  // of the message
};

TEST(Family, WhatWouldChangeTheComputationIsAnError) {
  const std::vector<BadSetting> settings = {
      {R"("hidden_act": "mish")", {"hidden_act is \"mish\"", "known activations are gelu"}},
      {R"("quantization_config": {"bits": 4})", {"quantization_config is {\"bits\":4}"}},
      {R"("rope_scaling": {"type": "mrope", "mrope_section": [1]})",
       {"rope_scaling.mrope_section"}},
      {R"("rope_scaling": {"type": "ntk", "factor": 2})", {"rope_scaling.type is \"ntk\""}},
      {R"("rope_scaling": {"rope_type": "linear"})", {"rope_scaling.factor is missing"}},
      {R"("rope_scaling": {"rope_type": "linear", "factor": 0.5})", {"0.5", "it must be >= 1"}},
      {R"("rope_scaling": "linear")", {"rope_scaling must be an object, got \"linear\""}},
      {R"("rope_parameters": {"full_attention": {"rope_type": "default"}})",
       {"rope_parameters.full_attention"}},
      {R"("rope_theta": 0)", {"rope_theta must be a positive number, got 0"}},
      {R"("rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1]})",
       {"longrope needs 4"}},
      {R"("rope_scaling": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 4,
           "high_freq_factor": 1})",
       {"is not above"}},
      {R"("partial_rotary_factor": 0.5)", {"partial_rotary_factor is 0.5"}},
      {R"("layer_types": ["chunked_attention", "full_attention", "full_attention"])",
       {"layer_types", "only full_attention and sliding_attention"}},
      {R"("layer_types": ["full_attention"])", {"must have 3 entries"}},
      {R"("layer_types": ["sliding_attention", "full_attention", "full_attention"])",
       {"llama models have no such mixture"}},
      {R"("attention_chunk_size": 8192)", {"attention_chunk_size is 8192"}},
      {R"("add_cross_attention": true)", {"add_cross_attention is true"}},
      {R"("is_encoder_decoder": true)", {"is_encoder_decoder is true"}},
      {R"("use_bidirectional_attention": "all")", {"use_bidirectional_attention is \"all\""}},
      {R"("num_key_value_heads": 3)", {"3 does not divide --num-attention-heads 4"}},
      {R"("num_key_value_heads": "x")", {"num_key_value_heads must be a positive integer"}},
      {R"("head_dim": 7)", {"rope needs an even number"}},
      {R"("rms_norm_eps": -1)", {"rms_norm_eps must be a positive number, got -1"}},
      {R"("rms_norm_eps": 5)", {"--norm-epsilon"}},
      {R"("tie_word_embeddings": "yes")", {"tie_word_embeddings must be true or false"}},
      {R"("attention_bias": 1)", {"attention_bias must be true or false, got 1"}},
  };
  for (const BadSetting& bad : settings) {
    expect_error(ErrorKind::kInput, {"config.json: "}, [&] { read_with(kLlama, bad.setting); });
    expect_error(ErrorKind::kInput, bad.parts, [&] { read_with(kLlama, bad.setting); });
  }
}

TEST(Family, WhatDoesNotMatterIsIgnored) {
  ModelConfig plain = read_with(kLlama, "");
  ModelConfig same =
      read_with(kLlama, R"("pretraining_tp": 4, "use_cache": false, "bos_token_id": 9,
      "eos_token_id": [1, 2], "auto_map": {"x": "y"}, "attn_implementation": "flash",
      "quantization_config": null, "unheard_of": {"deep": [1]}, "attention_dropout": 0.3,
      "layer_types": ["full_attention", "full_attention", "full_attention"])");
  EXPECT_EQ(differing_fields(plain, same), std::vector<std::string>{});
}

// json.dumps writes numbers that JSON does not have.
TEST(Family, NumbersOfPythonAreRead) {
  std::string text = to_hf(preset("gemma2-2b"), Dtype::kF32).dump();
  auto with = [&](const std::string& key, const std::string& value) {
    std::size_t at = text.find(concat("\"", key, "\": ")), from = text.find(": ", at) + 2;
    return concat(text.substr(0, from), value, text.substr(text.find_first_of(",\n", from)));
  };
  HfConfig hf = HfConfig::parse(with("attn_logit_softcapping", "Infinity"));
  EXPECT_EQ(from_hf(hf).attn_logit_softcapping, 0);
  EXPECT_NE(hf.dump().find("\"attn_logit_softcapping\": Infinity,"), std::string::npos);
  // Keys that are not known keep theirs.
  hf = HfConfig::parse(concat("{\"time_step_limit\": [0.0, Infinity], ", text.substr(1)));
  EXPECT_EQ(from_hf(hf).num_layers, 26);
  EXPECT_NE(hf.dump().find("Infinity\n"), std::string::npos);
  for (const char* value : {"NaN", "-Infinity", "Infinity"}) {
    expect_error(ErrorKind::kInput, {"hidden_size must be a positive integer, got ", value},
                 [&] { from_hf(HfConfig::parse(with("hidden_size", value))); });
    expect_error(ErrorKind::kInput, {"rms_norm_eps", value},
                 [&] { from_hf(HfConfig::parse(with("rms_norm_eps", value))); });
  }
  expect_error(ErrorKind::kInput, {"model_type must be text, got NaN"},
               [&] { from_hf(HfConfig::parse(with("model_type", "NaN"))); });
}

TEST(Family, ImpossibleSizesAreErrorsAndNotAllocated) {
  for (const char* size : {"1000000000", "100000000", "1e9", "-3", "0", "\"12\"", "null", "[3]"}) {
    std::string json = concat(R"({"model_type": "llama", "num_hidden_layers": )", size,
                              R"(, "hidden_size": 32, "intermediate_size": 48,
        "num_attention_heads": 4, "vocab_size": 97})");
    expect_error(ErrorKind::kInput, {"config.json: num_hidden_layers"},
                 [&] { from_hf(HfConfig::parse(json)); });
  }
  expect_error(ErrorKind::kInput, {"--hidden-size"}, [] {
    from_hf(HfConfig::parse(R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 200000000,
        "n_head": 4, "vocab_size": 97})"));
  });
}

TEST(Family, WindowsThatMakeNoSenseAreErrors) {
  constexpr std::string_view kQwen = R"({"model_type": "qwen2", "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "vocab_size": 97})";
  expect_error(ErrorKind::kInput, {"sliding_window is missing"}, [&] {
    read_with(kQwen, R"("layer_types": ["full_attention", "sliding_attention"])");
  });
  expect_error(ErrorKind::kInput, {"sliding_window is 1"}, [&] {
    read_with(kQwen, R"("use_sliding_window": true, "sliding_window": 1, "max_window_layers": 0)");
  });
  EXPECT_EQ(read_with(kQwen, R"("sliding_window": 8, "max_window_layers": 0)").window_size, 0);
}

// The text model of a config.json with a vision tower.
TEST(Family, TextModelsAreReadBesideATower) {
  const std::string text = R"({"model_type": "qwen3_5_text", "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97, "linear_num_key_heads": 2,
      "linear_num_value_heads": 6, "max_position_embeddings": 64, "full_attention_interval": 2,
      "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "mrope_section": [1, 1, 0],
                          "mrope_interleaved": true, "partial_rotary_factor": 0.25})";
  const ModelConfig alone = from_hf(HfConfig::parse(text + R"(, "tie_word_embeddings": true})"));
  EXPECT_EQ(alone.hybrid_layer_pattern, "gaga");
  EXPECT_EQ(alone.delta.num_value_heads, 6);
  EXPECT_EQ(alone.rotary_percent, 0.25);
  EXPECT_TRUE(alone.attention_output_gate);
  EXPECT_FALSE(alone.untie_embeddings_and_output_weights);
  const ModelConfig beside = from_hf(HfConfig::parse(
      concat(R"({"model_type": "qwen3_5", "tie_word_embeddings": true, "image_token_id": 90,
      "vision_config": {"depth": 2}, "text_config": )",
             text, "}}")));
  EXPECT_TRUE(differing_fields(alone, beside).empty());
  const HfConfig other =
      HfConfig::parse(concat(R"({"model_type": "qwen3_5", "text_config": )", text,
                             R"(, "layer_types": ["linear_attention", "full_attention"]}})"));
  expect_error(ErrorKind::kInput, {"layer_types", "4 entries"}, [&] { from_hf(other); });
}

TEST(Family, UnknownModelTypesListTheKnownOnes) {
  expect_error(ErrorKind::kInput,
               {"config.json: model type 'lama' is not supported", "gpt_neox", "qwen3",
                "did you mean llama?"},
               [] { from_hf(HfConfig::parse(R"({"model_type": "lama"})")); });
  expect_error(ErrorKind::kInput, {"did you mean gemma3_text?"}, [] { find_family("gemma3"); });
  expect_error(ErrorKind::kInput, {"model_type is missing"},
               [] { from_hf(HfConfig::parse("{}")); });
}

TEST(Family, WhatAConfigJsonCannotSayIsNotExported) {
  ModelConfig config = preset("llama-tiny");
  config.norm_placement = NormPlacement::kPreAndPost;
  config.logit_scale = 2;
  expect_error(ErrorKind::kConfig,
               {"config.json of llama cannot express --norm-placement", "--logit-scale"},
               [&] { to_hf(config, Dtype::kF32); });
  ModelConfig windowed = preset("llama-tiny");
  windowed.window_size = 8;
  expect_error(ErrorKind::kConfig, {"--window-size"}, [&] { to_hf(windowed, Dtype::kF32); });
  ModelConfig gpt = preset("gpt2-124m");
  gpt.kv_channels = 32;
  expect_error(ErrorKind::kConfig, {"--kv-channels"}, [&] { to_hf(gpt, Dtype::kF32); });
  ModelConfig unsized;
  expect_error(ErrorKind::kConfig, {"--num-layers"}, [&] { to_hf(unsized, Dtype::kF32); });
  expect_error(ErrorKind::kConfig, {"i32"}, [&] { to_hf(preset("llama-tiny"), Dtype::kI32); });
}

TEST(Family, AWidthThatNoLayerHasIsNotExported) {
  for (const char* name : {"mixtral-8x7b", "gpt-oss-20b"}) {
    ModelConfig config = preset(name);
    config.moe.ffn_hidden_size = 96;
    ModelConfig back = from_hf(to_hf(config, Dtype::kF32));
    EXPECT_EQ(back.expert_ffn_size(), 96) << name;
    config.moe.layer_freq = {2};
    expect_error(ErrorKind::kConfig, {"cannot express"}, [&] { to_hf(config, Dtype::kF32); });
  }
}

TEST(Family, ModelsWithoutTheExpertsOfTheirFamilyAreExportedWhereTheyCan) {
  const char* all_dense = R"(, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
      "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32,
      "mlp_only_layers": [0, 1]})";
  for (const char* name : {"qwen2_moe", "qwen3_moe"}) {
    ModelConfig config =
        from_hf(HfConfig::parse(concat(R"({"model_type": ")", name, "\"", all_dense)));
    EXPECT_FALSE(config.moe.any());
    HfConfig hf = to_hf(config, Dtype::kF32);
    EXPECT_EQ(hf.count("num_experts", 1), 0) << name;
    EXPECT_THAT(differing_fields(config, from_hf(hf)), testing::IsEmpty()) << name;
  }
  for (const char* name : {"mixtral-8x7b", "gpt-oss-20b"}) {
    ModelConfig config = preset(name);
    config.moe = {};
    expect_error(ErrorKind::kConfig, {"cannot express --num-experts"},
                 [&] { to_hf(config, Dtype::kF32); });
  }
  ModelConfig config = preset("deepseek-v3");
  config.moe.shared_expert_size = 0;
  expect_error(ErrorKind::kConfig,
               {"config.json of deepseek_v3 cannot express this model", "n_shared_experts"},
               [&] { to_hf(config, Dtype::kF32); });
}

TEST(Family, KimiIsDeepSeek) {
  HfConfig hf = golden_config("deepseek_v3");
  ModelConfig expected = from_hf(hf);
  hf.set("model_type", "kimi_k2");
  EXPECT_THAT(differing_fields(from_hf(hf), expected), testing::IsEmpty());
}

// With top-1, transformers normalises the probability to 1, Megatron keeps the score.
TEST(Family, OneExpertOfDeepSeekIsNormalisedWhereTheConfigSaysSo) {
  HfConfig hf = golden_config("deepseek_v3");
  hf.set("num_experts_per_tok", std::int64_t{1});
  for (bool normalised : {true, false}) {
    hf.set("norm_topk_prob", normalised);
    ModelConfig config = from_hf(hf);
    EXPECT_EQ(config.moe.routing().normalize, normalised);
    EXPECT_EQ(to_hf(config, Dtype::kF32).boolean("norm_topk_prob", !normalised), normalised);
  }
  ModelConfig config = preset("deepseek-v3");
  EXPECT_TRUE(config.moe.routing().normalize);
  config.moe.topk = 1;
  EXPECT_FALSE(config.moe.routing().normalize);
  EXPECT_FALSE(to_hf(config, Dtype::kF32).boolean("norm_topk_prob", true));
}

TEST(Family, DropoutIsExportedButNotRead) {
  ModelConfig config = preset("gpt2-124m");
  config.hidden_dropout = 0.1;
  config.attention_dropout = 0.2;
  HfConfig hf = to_hf(config, Dtype::kBf16);
  EXPECT_EQ(hf.positive_number("resid_pdrop"), 0.1);
  EXPECT_EQ(hf.positive_number("attn_pdrop"), 0.2);
  EXPECT_EQ(hf.text("dtype"), "bfloat16");
  EXPECT_EQ(from_hf(hf).hidden_dropout, 0);
}

TEST(Canonical, EqualModelsCompareEqual) {
  ModelConfig sparse = preset("llama-tiny"), full = sparse;
  sparse.num_query_groups = 0;
  sparse.kv_channels = 0;
  sparse.softmax_scale = 0.125;
  sparse.window_layers = {3};
  sparse.rope_scaling.factor = 9;
  EXPECT_EQ(differing_fields(canonical(sparse), canonical(full)), std::vector<std::string>{});
  full.window_size = 4;
  full.window_layers = {2};
  EXPECT_EQ(canonical(full).window_layers, (std::vector<std::int64_t>{1, 0, 1, 0, 1, 0}));
  EXPECT_THAT(differing_fields(canonical(sparse), canonical(full)),
              testing::UnorderedElementsAre("window-size", "window-attn-skip-freq"));
}

}  // namespace
}  // namespace bev
