#include "models/families/hf_rope.h"

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"

namespace bev {

namespace {
constexpr std::array<std::pair<std::string_view, RopeScalingKind>, 6> kKinds = {
    {{"default", RopeScalingKind::kDefault},
     {"linear", RopeScalingKind::kLinear},
     {"dynamic", RopeScalingKind::kDynamic},
     {"llama3", RopeScalingKind::kLlama3},
     {"yarn", RopeScalingKind::kYarn},
     {"longrope", RopeScalingKind::kLongRope}}};

RopeScalingKind read_kind(const HfConfig& rope) {
  std::string_view key = rope.has("rope_type") ? "rope_type" : "type";
  std::string name = rope.text(key, "default");
  // Early Phi-3 files call longrope su or yarn.
  if (name == "su" || (name == "yarn" && rope.has("short_factor"))) name = "longrope";
  for (const auto& [known, kind] : kKinds) {
    if (name == known) return kind;
  }
  rope.reject(key, "known types are default, linear, dynamic, llama3, yarn and longrope");
}

std::string_view kind_name(RopeScalingKind kind) {
  for (const auto& [name, known] : kKinds) {
    if (known == kind) return name;
  }
  return "default";
}

void read_yarn(const HfConfig& rope, RopeScaling& scaling) {
  const RopeScaling defaults;
  auto given = [&](std::string_view key, double missing) {
    double value = rope.magnitude(key, 0);
    return value > 0 ? value : missing;
  };
  scaling.beta_fast = given("beta_fast", defaults.beta_fast);
  scaling.beta_slow = given("beta_slow", defaults.beta_slow);
  scaling.mscale = given("mscale", 0);
  scaling.mscale_all_dim = given("mscale_all_dim", 0);
  scaling.truncate = rope.boolean("truncate", true);
}

// The effective rope object; empty if there is none.
HfConfig find_rope(const HfConfig& hf) {
  for (std::string_view key : {"rope_scaling", "rope_parameters"}) {
    std::optional<HfConfig> rope = hf.object(key);
    if (!rope || rope->empty()) continue;
    for (std::string_view type : {"full_attention", "sliding_attention"}) {
      if (rope->has(type)) {
        rope->reject(type, "this family has the same rotary positions in all layers");
      }
    }
    return *rope;
  }
  return {};
}
}  // namespace

RopeScaling read_rope_scaling(const HfConfig& hf, const HfConfig& rope,
                              std::int64_t max_positions) {
  for (std::string_view key :
       {"mrope_section", "mrope_interleaved", "short_mscale", "long_mscale"}) {
    if (rope.truthy(key)) rope.reject(key, "this form of rotary positions is not supported");
  }
  RopeScaling scaling;
  scaling.kind = read_kind(rope);
  if (scaling.kind == RopeScalingKind::kDefault) return scaling;

  // The key outside the rope object wins, as in transformers.
  scaling.original_max_positions =
      hf.positive_integer("original_max_position_embeddings",
                          rope.positive_integer("original_max_position_embeddings", max_positions));
  double ratio =
      static_cast<double>(max_positions) / static_cast<double>(scaling.original_max_positions);
  scaling.attention_factor = rope.positive_number("attention_factor", 0);
  switch (scaling.kind) {
    case RopeScalingKind::kDefault:
    case RopeScalingKind::kLinear:
    case RopeScalingKind::kDynamic:
      scaling.factor = rope.positive_number("factor");
      break;
    case RopeScalingKind::kLlama3:
      scaling.factor = rope.positive_number("factor");
      scaling.low_freq_factor = rope.positive_number("low_freq_factor");
      scaling.high_freq_factor = rope.positive_number("high_freq_factor");
      break;
    case RopeScalingKind::kYarn:
      scaling.factor = rope.positive_number("factor", ratio);
      read_yarn(rope, scaling);
      break;
    case RopeScalingKind::kLongRope:
      scaling.factor = rope.positive_number("factor", ratio);
      scaling.short_factor = rope.positive_numbers("short_factor");
      scaling.long_factor = rope.positive_numbers("long_factor");
      // The factor only sets the magnitude; a factor <= 1 leaves it at 1.
      if (scaling.factor <= 1) {
        scaling.factor = 1;
        if (scaling.attention_factor == 0) scaling.attention_factor = 1;
      }
      break;
  }
  return scaling;
}

void read_rope(const HfConfig& hf, const RopeKeys& keys, ModelConfig& config) {
  HfConfig rope = find_rope(hf);
  config.position_embedding_type = PositionKind::kRope;
  config.rotary_base =
      rope.positive_number("rope_theta", hf.positive_number(keys.base, keys.default_base));
  bool inside = rope.has("partial_rotary_factor");
  config.rotary_percent = inside ? rope.positive_number("partial_rotary_factor")
                                 : hf.positive_number(keys.percent, keys.default_percent);
  if (config.rotary_percent > 1 || (!keys.partial && config.rotary_percent != 1)) {
    const HfConfig& place = inside ? rope : hf;
    place.reject(inside ? "partial_rotary_factor" : keys.percent,
                 keys.partial ? "it must be at most 1" : "this family rotates the whole head");
  }
  config.rope_scaling = read_rope_scaling(hf, rope, config.max_position_embeddings);
  const double beta = rope.magnitude("llama_4_scaling_beta", 0);
  if (beta == 0) return;
  if (!keys.scales_queries) {
    rope.reject("llama_4_scaling_beta", "queries of this family are not scaled by position");
  }
  QueryScaling& queries = config.rope_scaling.queries;
  queries.beta = beta;
  queries.period = rope.positive_integer("original_max_position_embeddings");
  queries.all_layers = true;
}

HfConfig rope_object(const RopeScaling& scaling) {
  HfConfig rope;
  rope.set("rope_type", kind_name(scaling.kind));
  if (scaling.kind == RopeScalingKind::kDefault) return rope;
  rope.set("factor", scaling.factor);
  if (scaling.original_max_positions > 0) {
    rope.set("original_max_position_embeddings", scaling.original_max_positions);
  }
  if (scaling.attention_factor > 0) rope.set("attention_factor", scaling.attention_factor);
  if (scaling.kind == RopeScalingKind::kLlama3) {
    rope.set("low_freq_factor", scaling.low_freq_factor);
    rope.set("high_freq_factor", scaling.high_freq_factor);
  }
  if (scaling.kind == RopeScalingKind::kYarn) {
    rope.set("beta_fast", scaling.beta_fast);
    rope.set("beta_slow", scaling.beta_slow);
    if (scaling.mscale > 0) rope.set("mscale", scaling.mscale);
    if (scaling.mscale_all_dim > 0) rope.set("mscale_all_dim", scaling.mscale_all_dim);
    if (!scaling.truncate) rope.set("truncate", false);
  }
  if (scaling.kind == RopeScalingKind::kLongRope) {
    rope.set("short_factor", scaling.short_factor);
    rope.set("long_factor", scaling.long_factor);
  }
  return rope;
}

void write_rope(const ModelConfig& config, const RopeKeys& keys, HfConfig& hf) {
  HfConfig rope = rope_object(config.rope_scaling);
  if (keys.scales_queries && config.rope_scaling.queries.beta != 0) {
    rope.set("llama_4_scaling_beta", config.rope_scaling.queries.beta);
    rope.set("original_max_position_embeddings", config.rope_scaling.queries.period);
  }
  if (config.rope_scaling.kind != RopeScalingKind::kDefault) hf.set("rope_scaling", rope);
  hf.set(keys.base, config.rotary_base);
  rope.set("rope_theta", config.rotary_base);
  if (keys.partial) {
    hf.set(keys.percent, config.rotary_percent);
    rope.set("partial_rotary_factor", config.rotary_percent);
  }
  hf.set("rope_parameters", rope);
}

void read_layered_rope(const HfConfig& hf, const LayeredRopeKeys& keys, ModelConfig& config) {
  HfConfig full, local;
  if (std::optional<HfConfig> both = hf.object("rope_parameters")) {
    if (both->has("rope_type") || both->has("rope_theta")) {
      hf.reject("rope_parameters", concat(config.family, " has one object for each kind of layer"));
    }
    full = both->object("full_attention").value_or(HfConfig());
    local = both->object("sliding_attention").value_or(HfConfig());
  }
  const double base = hf.positive_number(keys.base_key, keys.default_base);
  const double local_base =
      keys.local_key.empty() ? base : hf.positive_number(keys.local_key, keys.default_local_base);
  config.rotary_base = full.positive_number("rope_theta", base);
  config.rotary_base_local = local.positive_number("rope_theta", local_base);
  if (local.text("rope_type", "default") != "default") {
    local.reject("rope_type", "windowed layers are never scaled");
  }
  if (std::optional<HfConfig> scaling = hf.object("rope_scaling"); scaling && !scaling->empty()) {
    full = *scaling;
    config.rotary_base = full.positive_number("rope_theta", config.rotary_base);
  }
  for (const HfConfig& rope : {full, local, hf}) {
    if (rope.positive_number("partial_rotary_factor", 1) != 1) {
      rope.reject("partial_rotary_factor", "this family rotates the whole head");
    }
  }
  config.rope_scaling = read_rope_scaling(hf, full, config.max_position_embeddings);
}

void write_layered_rope(const ModelConfig& config, const LayeredRopeKeys& keys, HfConfig& hf) {
  double local_base = config.rotary_base_local > 0 ? config.rotary_base_local : config.rotary_base;
  HfConfig full = rope_object(config.rope_scaling), local = rope_object({}), both;
  if (config.rope_scaling.kind != RopeScalingKind::kDefault) hf.set("rope_scaling", full);
  full.set("rope_theta", config.rotary_base);
  local.set("rope_theta", local_base);
  both.set("full_attention", full);
  both.set("sliding_attention", local);
  hf.set("rope_parameters", both);
  hf.set(keys.base_key, config.rotary_base);
  if (!keys.local_key.empty()) hf.set(keys.local_key, local_base);
}

}  // namespace bev
