#include "models/encoder_config.h"

#include "base/fields.h"
#include "base/text.h"

namespace bev {

void EncoderConfig::fields(FieldList& list) {
  list.section("encoder");
  list.add("encoder", encoder,
           "the model is an encoder: tokens see both sides, and labels are those of the tokens "
           "themselves");
  list.add("num-token-types", token_types, "encoder: rows of the table of token types; 0: none")
      .min(0)
      .limit(1 << 20);
  list.add("position-offset", position_offset,
           "encoder: rows at the beginning of the position table that no token uses")
      .min(0)
      .limit(1 << 20);
  list.add("embedding-layernorm", embedding_norm, "encoder: norm of the embeddings");
  list.add("first-layernorm", first_norm,
           "encoder: the first layer has a norm before attention, as the others");
  list.add("language-head", language_head, "encoder: an output layer that predicts masked tokens");
  list.add("head-transform", transform,
           "encoder: dense layer, activation and norm before the output layer");
  list.add("head-transform-bias", transform_bias, "encoder: bias of that dense layer");
  list.add("head-transform-activation", transform_activation,
           {{"gelu", Activation::kGelu},
            {"gelu_tanh", Activation::kGeluTanh},
            {"silu", Activation::kSilu},
            {"relu", Activation::kRelu},
            {"tanh", Activation::kTanh}},
           "encoder: its activation");
  list.add("pooler", pooler, "encoder: tanh of a dense layer on the first token of a sequence");
  list.add("next-sentence-head", next_sentence,
           "encoder: head that tells whether the second segment of a pair follows the first");
  list.add("label-kind", labels,
           {{"none", LabelKind::kNone},
            {"sequence", LabelKind::kSequence},
            {"tokens", LabelKind::kTokens},
            {"spans", LabelKind::kSpans}},
           "encoder: what the --num-labels outputs of a head for labels are outputs for");
  list.add("label-pooling", label_pooling,
           {{"first", LabelPooling::kFirst}, {"mean", LabelPooling::kMean}},
           "encoder: labels of a sequence come from its first token, or the mean of all");
}

std::vector<std::string> EncoderConfig::problems() const {
  std::vector<std::string> out;
  if (!encoder && *this != EncoderConfig()) {
    out.push_back("--encoder: is missing, but settings of encoders are given; give it too");
  }
  if (next_sentence && !pooler) {
    out.push_back("--next-sentence-head: reads the pooler; give --pooler too");
  }
  if (labels != LabelKind::kNone && (language_head || next_sentence)) {
    out.push_back(concat("--label-kind: takes the place of the other heads; give ",
                         language_head ? "--no-language-head" : "--no-next-sentence-head"));
  }
  return out;
}

}  // namespace bev
