// Phi-3 and Phi-4: Llama with fused qkv and gate_up weights, in our row order.
#include "models/families/family_list.h"
#include "models/families/hf_rope.h"
#include "models/families/hf_shared_keys.h"
#include "models/families/llama_like.h"

namespace bev {

namespace {
constexpr std::int64_t kPositions = 4096;
constexpr RopeKeys kRope = {.partial = true};

ModelConfig read(const HfConfig& hf) {
  ModelConfig config =
      read_llama_like(hf, "phi3", {.max_positions = kPositions, .norm_epsilon = 1e-5});
  HfConfig complete = hf;
  // The config class has a default for it, so the rope object never sets it.
  complete.set("original_max_position_embeddings",
               hf.positive_integer("original_max_position_embeddings", kPositions));
  read_rope(complete, kRope, config);
  RopeScalingKind kind = config.rope_scaling.kind;
  if (kind != RopeScalingKind::kDefault && kind != RopeScalingKind::kLongRope) {
    hf.reject(hf.has("rope_scaling") ? "rope_scaling" : "rope_parameters",
              "phi3 has no scaling but longrope");
  }
  set_uniform_windows(hf, read_window(hf, 0), config);
  return config;
}

void write(const ModelConfig& config, HfConfig& hf) {
  write_llama_like(config, {}, hf);
  write_rope(config, kRope, hf);
  write_windows(config, LayerTypes::kFixed, hf);
  const RopeScaling& scaling = config.rope_scaling;
  bool scaled = scaling.kind != RopeScalingKind::kDefault;
  hf.set("original_max_position_embeddings",
         scaled ? scaling.original_max_positions : config.max_position_embeddings);
  hf.set("embd_pdrop", config.hidden_dropout);
  hf.set("resid_pdrop", config.hidden_dropout);
  if (!scaled) return;
  // transformers 4 accepts exactly these three keys, so they must express everything.
  double ratio = static_cast<double>(config.max_position_embeddings) /
                 static_cast<double>(scaling.original_max_positions);
  if (scaling.attention_factor == 0 && scaling.factor == ratio) {
    HfConfig rope;
    rope.set("type", "longrope");
    rope.set("short_factor", scaling.short_factor);
    rope.set("long_factor", scaling.long_factor);
    hf.set("rope_scaling", rope);
  } else {
    hf.set_null("rope_scaling");
  }
}

std::vector<WeightRule> weights() {
  std::vector<WeightRule> rules = llama_weights();
  for (WeightRule& rule : rules) {
    if (rule.kind == WeightKind::kQkvRows) {
      rule = {rule.name, {"model.layers.{}.self_attn.qkv_proj"}};
    } else if (rule.kind == WeightKind::kGateUpRows) {
      rule = {rule.name, {"model.layers.{}.mlp.gate_up_proj"}};
    }
  }
  return rules;
}

std::vector<Preset> presets() {
  ModelConfig mini = with_sizes(llama_block("phi3"), {32, 3072, 8192, 32, 32, 32064, kPositions});
  mini.window_size = 2046;
  ModelConfig phi4 = with_sizes(llama_block("phi3"), {40, 5120, 17920, 40, 10, 100352, 16384});
  phi4.rotary_base = 250000.0;
  return {{"phi3-mini", mini}, {"phi-4", phi4}};
}
}  // namespace

ModelFamily phi3_family() {
  return {.name = "phi3",
          .architecture = "Phi3ForCausalLM",
          .weight_prefix = "model.",
          .read = read,
          .write = write,
          .weights = weights(),
          .ignored = llama_ignored(),
          .presets = presets()};
}

}  // namespace bev
