// ModernBERT: rotary positions, alternating windows, gated MLP, norms before attention and MLP
// without biases, a norm of the embeddings in place of the first.
#include <algorithm>

#include "models/families/bert_like.h"
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"

namespace bev {

namespace {
constexpr const char *kFamily = "modernbert", *kClasses = "ModernBert";
constexpr double kBase = 160000, kLocalBase = 10000;
constexpr std::int64_t kPeriod = 3, kPad = 50283;
constexpr LayeredRopeKeys kRope = {.default_base = kBase,
                                   .base_key = "global_rope_theta",
                                   .local_key = "local_rope_theta",
                                   .default_local_base = kLocalBase};

ModelConfig block() {
  ModelConfig config;
  config.family = kFamily;
  config.causal = false;
  config.position_embedding_type = PositionKind::kRope;
  config.rotary_base = kBase;
  config.rotary_base_local = kLocalBase;
  config.normalization = NormKind::kLayerNormWithoutBias;
  config.gated = true;
  config.add_bias_linear = false;
  config.add_head_bias = true;
  config.encoder.encoder = true;
  config.encoder.embedding_norm = true;
  config.encoder.first_norm = false;
  config.encoder.transform = true;
  config.encoder.transform_bias = false;
  return config;
}

// Windows of all layers but every period-th, from the first on.
std::vector<std::int64_t> window_marks(std::int64_t period, std::int64_t layers) {
  std::vector<std::int64_t> marks;
  for (std::int64_t layer = 0; layer < layers; ++layer) marks.push_back(layer % period != 0);
  return marks;
}

// The transform is before any head, and there is no pooler.
void read_heads(const HfConfig& hf, ModelConfig& config) {
  read_encoder_heads(hf, kClasses, config);
  EncoderConfig& encoder = config.encoder;
  if (encoder.next_sentence) hf.reject("architectures", "ModernBERT has no next-sentence head");
  encoder.pooler = false;
  encoder.transform = !encoder.bare();
  encoder.transform_bias = encoder.transform && hf.boolean("classifier_bias", false);
  encoder.transform_activation = read_activation(hf, "classifier_activation", "gelu");
  config.add_head_bias = encoder.language_head && hf.boolean("decoder_bias", true);
  const std::string pooling = hf.text("classifier_pooling", "cls");
  if (pooling != "cls" && pooling != "mean") {
    hf.reject("classifier_pooling", "known are cls and mean");
  }
  const bool mean = pooling == "mean" && encoder.labels == LabelKind::kSequence;
  encoder.label_pooling = mean ? LabelPooling::kMean : LabelPooling::kFirst;
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = block();
  read_sizes(hf, 8192, config);
  read_heads(hf, config);
  config.norm_epsilon = hf.positive_number("norm_eps", 1e-5);
  if (hf.boolean("norm_bias", false)) config.normalization = NormKind::kLayerNorm;
  config.activation = read_activation(hf, "hidden_activation", "gelu");
  config.add_qkv_bias = config.add_proj_bias = hf.boolean("attention_bias", false);
  config.add_mlp_bias = hf.boolean("mlp_bias", false);
  read_layered_rope(hf, kRope, config);
  if (config.rope_scaling.kind != RopeScalingKind::kDefault) {
    hf.reject(hf.has("rope_scaling") ? "rope_scaling" : "rope_parameters",
              "scaled rotary positions are not supported in this family");
  }
  const std::int64_t period = hf.positive_integer("global_attn_every_n_layers", kPeriod);
  const std::int64_t reach = hf.positive_integer("local_attention", 128) / 2;
  set_windows(hf, reach + 1, window_marks(period, config.num_layers), LayerTypes::kUsed, config);
  config.untie_embeddings_and_output_weights =
      config.has_output_layer() && !hf.boolean("tie_word_embeddings", true);
  config.init_method_std = hf.magnitude("initializer_range", 0.02);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_sizes(config, hf);
  write_encoder_heads(config, kClasses, hf);
  const EncoderConfig& encoder = config.encoder;
  hf.set("norm_eps", config.norm_epsilon);
  hf.set("norm_bias", config.normalization == NormKind::kLayerNorm);
  hf.set("hidden_activation", activation_name(config.activation));
  hf.set("attention_bias", config.has_proj_bias());
  hf.set("mlp_bias", config.has_mlp_bias());
  hf.set("classifier_bias", encoder.transform_bias);
  hf.set("classifier_activation", activation_name(encoder.transform_activation));
  hf.set("classifier_pooling", encoder.label_pooling == LabelPooling::kMean ? "mean" : "cls");
  hf.set("decoder_bias", config.add_head_bias || !encoder.language_head);
  write_layered_rope(config, kRope, hf);
  std::vector<std::string> types;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    types.emplace_back(config.windowed(layer) ? "sliding_attention" : "full_attention");
  }
  hf.set("layer_types", types);
  hf.set("local_attention", 2 * std::max<std::int64_t>(config.window_size, 1));
  hf.set("tie_word_embeddings", !config.untie_embeddings_and_output_weights);
  hf.set("initializer_range", config.init_method_std);
  hf.set("attention_dropout", config.attention_dropout);
  hf.set("embedding_dropout", config.hidden_dropout);
  hf.set("mlp_dropout", config.hidden_dropout);
}

std::vector<WeightRule> weights() {
  const std::string ours = "decoder.layers.{}.", theirs = "model.layers.{}.";
  return {
      {"embedding.word_embeddings", {"model.embeddings.tok_embeddings"}},
      {"embedding.layernorm", {"model.embeddings.norm"}},
      {ours + "input_layernorm", {theirs + "attn_norm"}},
      {ours + "self_attention.linear_qkv", {theirs + "attn.Wqkv"}},
      {ours + "self_attention.linear_proj", {theirs + "attn.Wo"}},
      {ours + "pre_mlp_layernorm", {theirs + "mlp_norm"}},
      {ours + "mlp.linear_fc1", {theirs + "mlp.Wi"}},
      {ours + "mlp.linear_fc2", {theirs + "mlp.Wo"}},
      {"decoder.final_layernorm", {"model.final_norm"}},
      {"lm_head.dense", {"head.dense"}},
      {"lm_head.layer_norm", {"head.norm"}},
      {"output_layer", {"decoder"}},
      {"classifier", {"classifier"}},
  };
}

ModelConfig sized(const ModelSizes& sizes) {
  ModelConfig config = with_sizes(block(), sizes);
  config.window_size = 64;
  config.window_layers = window_marks(kPeriod, sizes.layers);
  config.padding_row = kPad;
  return config;
}
}  // namespace

ModelFamily modernbert_family() {
  return {.name = kFamily,
          .architecture = "ModernBertForMaskedLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = {"head.dense.weight", "head.dense.bias", "head.norm.weight", "head.norm.bias",
                      "decoder.weight", "decoder.bias"},
          .default_pad = kPad,
          .presets = {{"modernbert-base", sized({22, 768, 1152, 12, 12, 50368, 8192})},
                      {"modernbert-large", sized({28, 1024, 2624, 16, 16, 50368, 8192})}}};
}

}  // namespace bev
