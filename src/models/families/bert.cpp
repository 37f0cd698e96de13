// BERT: norms after the residual sums, token types, learned positions, pooler.
#include "models/families/bert_like.h"
#include "models/families/family_list.h"
#include "models/families/hf_shared_keys.h"

namespace bev {

namespace {
constexpr const char* kClasses = "Bert";

ModelConfig sized(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                  std::int64_t vocab) {
  return with_sizes(bert_block("bert"), {layers, hidden, 4 * hidden, heads, heads, vocab, 512});
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = bert_layers("bert.");
  for (WeightRule& rule : bert_heads("bert.")) rules.push_back(std::move(rule));
  return rules;
}
}  // namespace

ModelFamily bert_family() {
  return {
      .name = "bert",
      .architecture = "BertForMaskedLM",
      .weight_prefix = "bert.",
      .read = [](const HfConfig& hf) { return read_bert(hf, "bert", kClasses); },
      .write = [](const ModelConfig& config, HfConfig& hf) { write_bert(config, kClasses, hf); },
      .weights = weights(),
      .ignored = bert_ignored(),
      .default_pad = 0,
      .presets = {{"bert-tiny", sized(2, 128, 2, 30522)},
                  {"bert-base-uncased", sized(12, 768, 12, 30522)},
                  {"bert-base-cased", sized(12, 768, 12, 28996)},
                  {"bert-large-uncased", sized(24, 1024, 16, 30522)},
                  {"bert-large-cased", sized(24, 1024, 16, 28996)}}};
}

}  // namespace bev
