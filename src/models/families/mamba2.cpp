// Mamba-2: layers of a Mamba-2 mixer alone, with a gated norm of each group.
#include "models/families/family_list.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"
#include "models/families/mamba_like.h"

namespace bev {

namespace {
constexpr MambaKeys kKeys = {.heads = "num_heads",
                             .head_dim = "head_dim",
                             .groups = "n_groups",
                             .state = "state_size",
                             .conv = "conv_kernel",
                             .expand = "expand",
                             .conv_bias = "use_conv_bias",
                             .in_bias = "use_bias",
                             .out_bias = "use_bias",
                             .chunk = "chunk_size"};
constexpr MambaDefaults kDefaults = {.head_dim = 64, .groups = 8, .state = 128};
// There are no positions, so that any length will do.
constexpr std::int64_t kPositions = 1 << 20;

ModelConfig block(std::int64_t layers) {
  ModelConfig config = llama_block("mamba2");
  config.num_layers = layers;
  config.hybrid_layer_pattern = std::string(static_cast<std::size_t>(layers), 'M');
  config.num_attention_heads = 1;
  config.max_position_embeddings = kPositions;
  config.position_embedding_type = PositionKind::kNone;
  config.init_method_std = 0.1;
  return config;
}

ModelConfig read(const HfConfig& hf) {
  ModelConfig config = block(read_layer_count(hf, "num_hidden_layers"));
  config.hidden_size = hf.positive_integer("hidden_size");
  config.vocab_size = hf.positive_integer("vocab_size");
  config.norm_epsilon = hf.positive_number("layer_norm_epsilon", 1e-5);
  config.untie_embeddings_and_output_weights = !hf.boolean("tie_word_embeddings", false);
  config.init_method_std = hf.magnitude("initializer_range", 0.1);
  if (hf.text("hidden_act", "silu") != "silu") {
    hf.reject("hidden_act", "only silu is supported");
  }
  read_mamba(hf, kKeys, kDefaults, config.hidden_size * hf.positive_integer(kKeys.expand, 2),
             config);
  read_step_limits(hf, config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  const std::int64_t width = config.mamba.heads(config.hidden_size) * config.mamba.head_dim;
  hf.set("num_hidden_layers", config.num_layers);
  hf.set("hidden_size", config.hidden_size);
  hf.set("vocab_size", config.vocab_size);
  hf.set("layer_norm_epsilon", config.norm_epsilon);
  hf.set("tie_word_embeddings", !config.untie_embeddings_and_output_weights);
  hf.set("initializer_range", config.init_method_std);
  hf.set("hidden_act", "silu");
  hf.set("residual_in_fp32", true);
  hf.set(kKeys.expand, width / config.hidden_size);
  write_mamba(config, kKeys, kDefaults, hf);
  write_step_limits(config, hf);
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = {
      {"embedding.word_embeddings",
       {"backbone.embeddings"},
       WeightKind::kPlain,
       "backbone.embedding"},
      {"decoder.layers.{}.input_layernorm", {"backbone.layers.{}.norm"}},
      {"decoder.final_layernorm", {"backbone.norm_f"}},
      {"output_layer", {"lm_head"}},
  };
  add_mamba_weights(rules, "decoder.layers.{}.mixer", "backbone.layers.{}.mixer");
  return rules;
}

ModelConfig sized(std::int64_t layers, std::int64_t hidden, std::int64_t groups, std::int64_t vocab,
                  bool tied) {
  ModelConfig config = block(layers);
  config.hidden_size = hidden;
  config.vocab_size = vocab;
  config.mamba.num_heads = 2 * hidden / 64;
  config.mamba.num_groups = groups;
  config.untie_embeddings_and_output_weights = !tied;
  return config;
}
}  // namespace

ModelFamily mamba2_family() {
  constexpr std::int64_t kVocab = 50288;
  return {.name = "mamba2",
          .architecture = "Mamba2ForCausalLM",
          .weight_prefix = "backbone.",
          .read = read,
          .write = write,
          .weights = weights(),
          .presets = {{"mamba2-130m", sized(24, 768, 1, kVocab, true)},
                      {"mamba2-370m", sized(48, 1024, 1, kVocab, true)},
                      {"mamba2-780m", sized(48, 1536, 1, kVocab, true)},
                      {"mamba2-1.3b", sized(48, 2048, 1, kVocab, true)},
                      {"mamba2-2.7b", sized(64, 2560, 1, kVocab, true)},
                      {"mamba-codestral-7b", sized(64, 4096, 8, 32768, false)}}};
}

}  // namespace bev
