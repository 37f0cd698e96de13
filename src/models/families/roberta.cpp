// RoBERTa, XLM-RoBERTa, CamemBERT: BERT with positions counted behind the padding token, and heads
// of other names.
#include "base/text.h"
#include "models/families/bert_like.h"
#include "models/families/family_list.h"
#include "models/families/hf_shared_keys.h"

namespace bev {

namespace {
constexpr const char *kFamily = "roberta", *kClasses = "Roberta";
constexpr std::int64_t kPad = 1;

// The position table begins with rows for the padding token and those before it.
void set_offset(std::int64_t pad, ModelConfig& config) {
  config.encoder.position_offset = pad + 1;
  config.max_position_embeddings -= pad + 1;
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_bert(hf, kFamily, kClasses);
  config.encoder.transform_activation = Activation::kGelu;
  if (config.encoder.next_sentence) hf.reject("architectures", "RoBERTa has no next-sentence head");
  const std::int64_t pad = hf.integer("pad_token_id", kPad);
  if (pad < 0 || pad + 1 >= config.max_position_embeddings) {
    hf.reject("pad_token_id", concat("positions begin behind it, and the table has ",
                                     config.max_position_embeddings, " rows"));
  }
  set_offset(pad, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_bert(config, kClasses, hf);
  hf.set("pad_token_id", config.encoder.position_offset - 1);
  hf.set("max_position_embeddings",
         config.max_position_embeddings + config.encoder.position_offset);
}

ModelConfig sized(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                  std::int64_t vocab) {
  ModelConfig config = bert_block(kFamily);
  config.norm_epsilon = 1e-5;
  config.encoder.token_types = 1;
  config.padding_row = kPad;
  config = with_sizes(config, {layers, hidden, 4 * hidden, heads, heads, vocab, 514});
  set_offset(kPad, config);
  return config;
}

std::vector<WeightRule> weights() {
  constexpr WeightKind kPlain = WeightKind::kPlain;
  constexpr LabelKind kSequence = LabelKind::kSequence;
  std::vector<WeightRule> rules = bert_layers("roberta.");
  const std::vector<WeightRule> heads = {
      {"pooler.dense", {"classifier.dense"}, kPlain, {}, kSequence},
      {"pooler.dense", {"roberta.pooler.dense"}},
      {"classifier", {"classifier.out_proj"}, kPlain, {}, kSequence},
      {"classifier", {"qa_outputs"}, kPlain, {}, LabelKind::kSpans},
      {"classifier", {"classifier"}},
      {"lm_head.dense", {"lm_head.dense"}},
      {"lm_head.layer_norm", {"lm_head.layer_norm"}},
      // transformers computes with the bias of the decoder, and ties the other to it or not.
      {"output_layer.bias",
       {"lm_head.decoder.bias"},
       kPlain,
       "lm_head.bias",
       LabelKind::kNone,
       true},
      {"output_layer.bias", {"lm_head.bias"}, kPlain, "lm_head.decoder.bias"},
      {"output_layer", {"lm_head.decoder"}},
  };
  rules.insert(rules.end(), heads.begin(), heads.end());
  return rules;
}

std::vector<std::string> ignored() {
  return {"embeddings.position_ids",   "embeddings.token_type_ids", "pooler.dense.weight",
          "pooler.dense.bias",         "lm_head.dense.weight",      "lm_head.dense.bias",
          "lm_head.layer_norm.weight", "lm_head.layer_norm.bias",   "lm_head.bias",
          "lm_head.decoder.bias",      "lm_head.decoder.weight"};
}
}  // namespace

ModelFamily roberta_family() {
  return {.name = kFamily,
          .architecture = "RobertaForMaskedLM",
          .weight_prefix = "roberta.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = ignored(),
          .default_pad = kPad,
          .presets = {{"roberta-base", sized(12, 768, 12, 50265)},
                      {"roberta-large", sized(24, 1024, 16, 50265)},
                      {"xlm-roberta-base", sized(12, 768, 12, 250002)},
                      {"xlm-roberta-large", sized(24, 1024, 16, 250002)}}};
}

}  // namespace bev
