// Parts that BERT, its variant of Megatron, RoBERTa and ModernBERT share: the heads that
// "architectures" names, and the keys of BERT's config.json.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/families/family.h"
#include "models/families/hf_config.h"

namespace bev {

// Heads by the end of a class name: "ForMaskedLM", "ForPreTraining", "ForSequenceClassification",
// "ForTokenClassification", "ForQuestionAnswering", "Model", with BERT's transform and pooler.
// Without "architectures": a masked language model. Rejects others.
void read_encoder_heads(const HfConfig& hf, std::string_view classes, ModelConfig& config);
// The inverse; `classes` is the beginning of the class names.
void write_encoder_heads(const ModelConfig& config, std::string_view classes, HfConfig& hf);

// A post-norm encoder with learned positions and biases, and all heads of masked language models.
ModelConfig bert_block(std::string_view family);
// The keys of a config.json of BERT.
ModelConfig read_bert(const HfConfig& hf, std::string_view family, std::string_view classes);
void write_bert(const ModelConfig& config, std::string_view classes, HfConfig& hf);

// Weights of the embeddings and layers in BERT's names, below `prefix` ("bert.").
std::vector<WeightRule> bert_layers(const std::string& prefix);
// Weights of pooler, head for labels, transform, output layer and next-sentence head.
std::vector<WeightRule> bert_heads(const std::string& prefix);
// Names of heads that a file may have and a model does not need, and of buffers.
std::vector<std::string> bert_ignored();

}  // namespace bev
