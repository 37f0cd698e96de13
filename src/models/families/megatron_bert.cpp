// Megatron's BERT: norms before attention and MLP and one at the end, none of the embeddings.
#include "models/families/bert_like.h"
#include "models/families/family_list.h"
#include "models/families/hf_shared_keys.h"

namespace bev {

namespace {
constexpr const char *kFamily = "megatron-bert", *kClasses = "MegatronBert";

void make_pre_norm(ModelConfig& config) {
  config.norm_placement = NormPlacement::kPre;
  config.encoder.embedding_norm = false;
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = read_bert(hf, kFamily, kClasses);
  make_pre_norm(config);
  return config;
}

ModelConfig sized(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  ModelConfig config = bert_block(kFamily);
  make_pre_norm(config);
  return with_sizes(config, {layers, hidden, 4 * hidden, heads, heads, 29056, 512});
}

std::vector<WeightRule> weights() {
  const std::string ours = "decoder.layers.{}.", theirs = "bert.encoder.layer.{}.";
  std::vector<WeightRule> rules = bert_layers("bert.");
  std::erase_if(rules, [](const WeightRule& rule) {
    return rule.name == "embedding.layernorm" || rule.name.ends_with("post_attention_layernorm") ||
           rule.name.ends_with("post_mlp_layernorm");
  });
  rules.push_back({ours + "input_layernorm", {theirs + "attention.ln"}});
  rules.push_back({ours + "pre_mlp_layernorm", {theirs + "ln"}});
  rules.push_back({"decoder.final_layernorm", {"bert.encoder.ln"}});
  for (WeightRule& rule : bert_heads("bert.")) rules.push_back(std::move(rule));
  return rules;
}
}  // namespace

ModelFamily megatron_bert_family() {
  return {
      .name = kFamily,
      .architecture = "MegatronBertForMaskedLM",
      .weight_prefix = "bert.",
      .read = read,
      .write = [](const ModelConfig& config, HfConfig& hf) { write_bert(config, kClasses, hf); },
      .weights = weights(),
      .ignored = bert_ignored(),
      .default_pad = 0,
      .presets = {{"megatron-bert-110m", sized(12, 768, 12)},
                  {"megatron-bert-345m", sized(24, 1024, 16)}}};
}

}  // namespace bev
