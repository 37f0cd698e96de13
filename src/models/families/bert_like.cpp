#include "models/families/bert_like.h"

#include <algorithm>

#include "base/text.h"
#include "models/families/hf_shared_keys.h"

namespace bev {

namespace {

constexpr std::string_view kModel = "Model", kMasked = "ForMaskedLM", kPairs = "ForPreTraining",
                           kNextSentence = "ForNextSentencePrediction",
                           kSequence = "ForSequenceClassification",
                           kTokens = "ForTokenClassification", kSpans = "ForQuestionAnswering";

// The end of the class name of a folder; a masked language model if it names none.
std::string head_name(const HfConfig& hf, std::string_view classes) {
  if (!hf.has("architectures")) return std::string(kMasked);
  for (const std::string& name : hf.texts("architectures")) {
    std::string_view end = name;
    end.remove_prefix(std::min(name.rfind("For"), name.size()));
    if (name.ends_with(kModel) && end.empty()) return std::string(kModel);
    for (std::string_view known : {kMasked, kPairs, kNextSentence, kSequence, kTokens, kSpans}) {
      if (end == known) return std::string(known);
    }
  }
  hf.reject("architectures",
            concat("supported are ", classes, "Model and ", classes, "For.. MaskedLM, ",
                   "PreTraining, NextSentencePrediction, SequenceClassification, ",
                   "TokenClassification and QuestionAnswering"));
}

LabelKind label_kind(std::string_view head) {
  return head == kSequence ? LabelKind::kSequence
         : head == kTokens ? LabelKind::kTokens
         : head == kSpans  ? LabelKind::kSpans
                           : LabelKind::kNone;
}

// The number of names in id2label; transformers writes none for its default of 2.
std::int64_t label_count(const HfConfig& hf) {
  std::optional<HfConfig> names = hf.object("id2label");
  std::int64_t count = 0;
  while (names && names->has(concat(count))) ++count;
  return names ? count : hf.positive_integer("num_labels", 2);
}

void check_problem_type(const HfConfig& hf, const ModelConfig& config) {
  const std::string fits = config.num_labels == 1 ? "regression" : "single_label_classification";
  if (config.encoder.labels != LabelKind::kSequence) return;
  if (hf.text("problem_type", fits) != fits) {
    hf.reject("problem_type",
              concat("with ", config.num_labels, " labels only ", fits, " is supported"));
  }
}

std::string_view head_of(const ModelConfig& config) {
  const EncoderConfig& encoder = config.encoder;
  switch (encoder.labels) {
    case LabelKind::kSequence:
      return kSequence;
    case LabelKind::kTokens:
      return kTokens;
    case LabelKind::kSpans:
      return kSpans;
    case LabelKind::kNone:
      break;
  }
  if (encoder.next_sentence) return encoder.language_head ? kPairs : kNextSentence;
  return encoder.language_head ? kMasked : kModel;
}

}  // namespace

void read_encoder_heads(const HfConfig& hf, std::string_view classes, ModelConfig& config) {
  const std::string head = head_name(hf, classes);
  EncoderConfig& encoder = config.encoder;
  encoder.encoder = true;
  config.causal = false;
  encoder.labels = label_kind(head);
  encoder.language_head = head == kMasked || head == kPairs;
  encoder.next_sentence = head == kPairs || head == kNextSentence;
  encoder.pooler = encoder.next_sentence || head == kModel || head == kSequence;
  encoder.transform = encoder.language_head;
  config.add_head_bias = encoder.language_head;
  if (encoder.labels == LabelKind::kNone) return;
  config.num_labels = label_count(hf);
  if (encoder.labels == LabelKind::kSpans && config.num_labels != 2) {
    hf.reject("id2label", "a head for spans has 2 outputs, first and last token");
  }
  check_problem_type(hf, config);
}

void write_encoder_heads(const ModelConfig& config, std::string_view classes, HfConfig& hf) {
  hf.set("architectures", std::vector<std::string>{concat(classes, head_of(config))});
  if (config.num_labels == 0) return;
  HfConfig names, numbers;
  for (std::int64_t label = 0; label < config.num_labels; ++label) {
    names.set(concat(label), concat("LABEL_", label));
    numbers.set(concat("LABEL_", label), label);
  }
  hf.set("id2label", names);
  hf.set("label2id", numbers);
  if (config.encoder.labels != LabelKind::kSequence) return;
  hf.set("problem_type", config.num_labels == 1 ? "regression" : "single_label_classification");
}

ModelConfig bert_block(std::string_view family) {
  ModelConfig config;
  config.family = family;
  config.causal = false;
  config.norm_placement = NormPlacement::kResidual;
  config.norm_epsilon = 1e-12;
  config.add_head_bias = true;
  config.encoder.encoder = true;
  config.encoder.token_types = 2;
  config.encoder.embedding_norm = true;
  config.encoder.transform = true;
  return config;
}

ModelConfig read_bert(const HfConfig& hf, std::string_view family, std::string_view classes) {
  ModelConfig config = bert_block(family);
  read_sizes(hf, 512, config);
  read_encoder_heads(hf, classes, config);
  config.norm_epsilon = hf.positive_number("layer_norm_eps", 1e-12);
  config.activation = read_activation(hf, "hidden_act", "gelu");
  config.encoder.transform_activation = config.activation;
  config.encoder.token_types = hf.positive_integer("type_vocab_size", 2);
  config.untie_embeddings_and_output_weights =
      config.has_output_layer() && !hf.boolean("tie_word_embeddings", true);
  config.init_method_std = hf.magnitude("initializer_range", 0.02);
  reject_set(hf, "is_decoder", "only encoders of this family are supported");
  if (hf.text("position_embedding_type", "absolute") != "absolute") {
    hf.reject("position_embedding_type", "only absolute positions are supported");
  }
  return config;
}

void write_bert(const ModelConfig& config, std::string_view classes, HfConfig& hf) {
  write_sizes(config, hf);
  write_encoder_heads(config, classes, hf);
  hf.set("layer_norm_eps", config.norm_epsilon);
  hf.set("hidden_act", activation_name(config.activation));
  hf.set("type_vocab_size", config.encoder.token_types);
  hf.set("tie_word_embeddings", !config.untie_embeddings_and_output_weights);
  hf.set("initializer_range", config.init_method_std);
  hf.set("hidden_dropout_prob", config.hidden_dropout);
  hf.set("attention_probs_dropout_prob", config.attention_dropout);
}

std::vector<WeightRule> bert_layers(const std::string& prefix) {
  const std::string ours = "decoder.layers.{}.", theirs = prefix + "encoder.layer.{}.",
                    tables = prefix + "embeddings.";
  return {
      {"embedding.word_embeddings", {tables + "word_embeddings"}},
      {"embedding.token_type_embeddings", {tables + "token_type_embeddings"}},
      {"embedding.position_embeddings", {tables + "position_embeddings"}},
      {"embedding.layernorm", {tables + "LayerNorm"}},
      {ours + "self_attention.linear_qkv",
       {theirs + "attention.self.query", theirs + "attention.self.key",
        theirs + "attention.self.value"},
       WeightKind::kQkvRows},
      {ours + "self_attention.linear_proj", {theirs + "attention.output.dense"}},
      {ours + "post_attention_layernorm", {theirs + "attention.output.LayerNorm"}},
      {ours + "mlp.linear_fc1", {theirs + "intermediate.dense"}},
      {ours + "mlp.linear_fc2", {theirs + "output.dense"}},
      {ours + "post_mlp_layernorm", {theirs + "output.LayerNorm"}},
  };
}

std::vector<WeightRule> bert_heads(const std::string& prefix) {
  constexpr WeightKind kPlain = WeightKind::kPlain;
  return {
      {"pooler.dense", {prefix + "pooler.dense"}},
      {"classifier", {"qa_outputs"}, kPlain, {}, LabelKind::kSpans},
      {"classifier", {"classifier"}},
      {"lm_head.dense", {"cls.predictions.transform.dense"}},
      {"lm_head.layer_norm", {"cls.predictions.transform.LayerNorm"}},
      // transformers computes with the bias of the decoder, and ties the other to it or not.
      {"output_layer.bias",
       {"cls.predictions.decoder.bias"},
       kPlain,
       "cls.predictions.bias",
       LabelKind::kNone,
       true},
      {"output_layer.bias", {"cls.predictions.bias"}, kPlain, "cls.predictions.decoder.bias"},
      {"output_layer", {"cls.predictions.decoder"}},
      {"binary_head", {"cls.seq_relationship"}},
  };
}

std::vector<std::string> bert_ignored() {
  return {"embeddings.position_ids",
          "embeddings.token_type_ids",
          "pooler.dense.weight",
          "pooler.dense.bias",
          "cls.predictions.transform.dense.weight",
          "cls.predictions.transform.dense.bias",
          "cls.predictions.transform.LayerNorm.weight",
          "cls.predictions.transform.LayerNorm.bias",
          "cls.predictions.transform.LayerNorm.gamma",
          "cls.predictions.transform.LayerNorm.beta",
          "cls.predictions.bias",
          "cls.predictions.decoder.bias",
          "cls.predictions.decoder.weight",
          "cls.seq_relationship.weight",
          "cls.seq_relationship.bias"};
}

}  // namespace bev
