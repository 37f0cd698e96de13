// config.json <-> ModelConfig: the part that all families share.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/fields.h"
#include "base/problems.h"
#include "models/families/family.h"
#include "models/families/hf_shared_keys.h"

namespace bev {

namespace {
const char* torch_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return "float64";
    case Dtype::kF32:
      return "float32";
    case Dtype::kBf16:
      return "bfloat16";
    case Dtype::kF16:
      return "float16";
    default:
      BEV_FAIL(ErrorKind::kConfig, "export: weights cannot be stored as ", name_of(dtype));
  }
}

RopeScaling canonical_scaling(const ModelConfig& config) {
  const RopeScaling& from = config.rope_scaling;
  RopeScaling to;
  to.kind = from.kind;
  if (from.queries.beta != 0) to.queries = from.queries;
  if (from.kind == RopeScalingKind::kDefault) return to;
  to.factor = from.factor;
  if (from.kind == RopeScalingKind::kLinear || from.kind == RopeScalingKind::kDynamic) return to;
  to.original_max_positions = from.original_max_positions > 0 ? from.original_max_positions
                                                              : config.max_position_embeddings;
  if (from.kind == RopeScalingKind::kLlama3) {
    to.low_freq_factor = from.low_freq_factor;
    to.high_freq_factor = from.high_freq_factor;
    return to;
  }
  to.attention_factor = from.attention_factor;
  if (from.kind == RopeScalingKind::kYarn) {
    to.beta_fast = from.beta_fast;
    to.beta_slow = from.beta_slow;
    to.truncate = from.truncate;
    if (from.attention_factor == 0 && from.mscale != 0 && from.mscale_all_dim != 0) {
      to.mscale = from.mscale;
      to.mscale_all_dim = from.mscale_all_dim;
    }
    // With MLA, mscale_all_dim also scales the attention scores.
    if (config.multi_latent_attention) to.mscale_all_dim = from.mscale_all_dim;
    return to;
  }
  to.short_factor = from.short_factor;
  to.long_factor = from.long_factor;
  // Only the magnitude depends on the factor; its default is the ratio of new to original length.
  double ratio = static_cast<double>(config.max_position_embeddings) /
                 static_cast<double>(std::max<std::int64_t>(to.original_max_positions, 1));
  if (to.factor <= 1) to.factor = std::max(ratio, 1.0);
  if (to.attention_factor == 1 && to.factor <= 1) to.attention_factor = 0;
  if (to.attention_factor > 0) to.factor = 1;
  return to;
}

void resolve_positions(ModelConfig& config) {
  const ModelConfig defaults;
  if (config.position_embedding_type == PositionKind::kRope) {
    config.rope_scaling = canonical_scaling(config);
    bool scaled = config.rope_scaling.kind != RopeScalingKind::kDefault;
    if (config.window_size == 0 || (!scaled && config.rotary_base_local == config.rotary_base)) {
      config.rotary_base_local = 0;
    }
    return;
  }
  config.rotary_base = defaults.rotary_base;
  config.rotary_base_local = defaults.rotary_base_local;
  config.rotary_percent = defaults.rotary_percent;
  config.rotary_interleaved = defaults.rotary_interleaved;
  config.rope_scaling = defaults.rope_scaling;
}

void resolve_windows(ModelConfig& config) {
  std::vector<std::int64_t> layers;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    layers.push_back(config.chunked(layer) ? 2 : config.windowed(layer) ? 1 : 0);
  }
  auto full = std::count(layers.begin(), layers.end(), 0);
  auto sliding = std::count(layers.begin(), layers.end(), 1);
  if (full == config.num_layers) config.window_size = 0;
  if (full == config.num_layers || sliding == config.num_layers) layers.clear();
  config.window_layers = layers;
}

// Layers without RoPE as one mark for each.
void resolve_rotation(ModelConfig& config) {
  std::vector<std::int64_t> layers;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    layers.push_back(config.rotates(layer) ? 0 : 1);
  }
  bool some = config.position_embedding_type == PositionKind::kRope &&
              std::ranges::find(layers, 1) != layers.end();
  config.no_rope_layers = some ? layers : std::vector<std::int64_t>();
  QueryScaling& queries = config.rope_scaling.queries;
  if (queries.beta == 0 || (!some && !queries.all_layers)) queries = {};
}

void resolve_latent(ModelConfig& config) {
  const ModelConfig defaults;
  if (config.multi_latent_attention) {
    if (config.latent_norm_epsilon == config.norm_epsilon) config.latent_norm_epsilon = 0;
    if (!config.qk_layernorm) config.latent_norm_epsilon = 0;
    config.rotary_percent = defaults.rotary_percent;
    return;
  }
  config.q_lora_rank = defaults.q_lora_rank;
  config.kv_lora_rank = defaults.kv_lora_rank;
  config.qk_head_dim = defaults.qk_head_dim;
  config.qk_pos_emb_head_dim = defaults.qk_pos_emb_head_dim;
  config.v_head_dim = defaults.v_head_dim;
  config.latent_norm_epsilon = defaults.latent_norm_epsilon;
  config.indexer = defaults.indexer;
}

void resolve_biases(ModelConfig& config) {
  bool qkv = config.has_qkv_bias(), proj = config.has_proj_bias(), mlp = config.has_mlp_bias();
  config.add_bias_linear = qkv && proj && mlp;
  config.add_qkv_bias = qkv && !config.add_bias_linear;
  config.add_proj_bias = proj && !config.add_bias_linear;
  config.add_mlp_bias = mlp && !config.add_bias_linear;
}

void resolve_experts(ModelConfig& config) {
  MoeConfig& moe = config.moe;
  std::vector<std::int64_t> layers;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    layers.push_back(moe.in_layer(layer) ? 1 : 0);
  }
  auto count = std::count(layers.begin(), layers.end(), 1);
  if (count == 0) {
    moe = {};
    return;
  }
  moe.layer_freq = count == config.num_layers ? std::vector<std::int64_t>{1} : layers;
  moe.ffn_hidden_size = config.expert_ffn_size();
  RoutingRule rule = moe.routing();
  bool grouped = rule.groups > 1;
  moe.num_groups = grouped ? rule.groups : 0;
  moe.group_topk = grouped ? rule.group_topk : 0;
  moe.group_score_experts = grouped ? rule.group_experts : 0;
  bool softmax = rule.score == RouterScore::kSoftmax;
  if (!softmax) moe.pre_softmax = false;
  moe.norm_topk_prob = softmax || rule.normalize;
  moe.norm_single_prob = !softmax && rule.normalize && rule.topk == 1;
}

// Values outside the ranges of the flags.
std::vector<std::string> range_problems(ModelConfig config) {
  std::vector<std::string> problems;
  FieldList list;
  config.fields(list);
  for (const auto& entry : list.entries()) {
    std::string text = entry->field.text();
    if (text.empty()) continue;
    std::string problem = entry->field.set_text(text);
    if (!problem.empty()) problems.push_back(concat("--", entry->field.name(), ": ", problem));
  }
  return problems;
}

// True if transformers gives the row of pad_token_id in the embedding no gradient.
bool pads_embedding(std::string_view family) { return family != "gpt2" && family != "gpt_neox"; }

void resolve_labels(ModelConfig& config) {
  if (!config.encoder.encoder) config.encoder = {};
  if (config.num_labels == 0 || config.encoder.encoder) {
    config.pad_token = -1;
  } else if (pads_embedding(config.family)) {
    if (config.pad_token < 0) config.pad_token = config.padding_row;
    config.padding_row = config.pad_token;
  }
}
}  // namespace

ModelConfig canonical(const ModelConfig& config) {
  ModelConfig result = config;
  resolve_labels(result);
  if (config.num_attention_heads < 1 || config.hidden_size < 1) return result;
  result.ffn_hidden_size = config.ffn_size();
  result.num_query_groups = config.kv_heads();
  result.kv_channels = config.head_size();
  resolve_latent(result);
  ModelConfig unscaled = result;
  unscaled.softmax_scale = 0;
  if (result.softmax_scale == unscaled.attention_scale()) result.softmax_scale = 0;
  if (!result.qk_layernorm) result.qk_norm_kind = QkNorm::kHead;
  resolve_windows(result);
  resolve_rotation(result);
  resolve_positions(result);
  resolve_biases(result);
  resolve_experts(result);
  return result;
}

std::vector<std::string> differing_fields(const ModelConfig& a, const ModelConfig& b) {
  ModelConfig left = a, right = b;
  // The width of a dense MLP has no effect if all layers have experts.
  if (!a.has_dense_layers() && !b.has_dense_layers()) right.ffn_hidden_size = left.ffn_hidden_size;
  FieldList left_list, right_list;
  left.fields(left_list);
  right.fields(right_list);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < left_list.entries().size(); ++i) {
    const Field& field = left_list.entries()[i]->field;
    if (field.name() == "hidden-dropout" || field.name() == "attention-dropout") continue;
    // MTP modules are not part of the model proper; the weights show if they exist.
    if (field.name().starts_with("mtp-")) continue;
    if (left_list.entries()[i]->section == MoeTraining::kSection) continue;
    if (field.text() != right_list.entries()[i]->field.text()) names.push_back(field.name());
  }
  return names;
}

namespace {
constexpr std::string_view kClassifies = "ForSequenceClassification";

bool classifies(const HfConfig& hf) {
  return hf.has("architectures") &&
         std::ranges::any_of(hf.texts("architectures"),
                             [](const std::string& name) { return name.ends_with(kClassifies); });
}

// The number of names in id2label; transformers writes none for its default of 2.
std::int64_t label_count(const HfConfig& hf) {
  std::optional<HfConfig> names = hf.object("id2label");
  std::int64_t count = 0;
  while (names && names->has(concat(count))) ++count;
  return names ? count : hf.positive_integer("num_labels", 2);
}

void write_labels(const ModelConfig& config, std::string_view architecture, HfConfig& hf) {
  for (std::string_view end : {"ForCausalLM", "LMHeadModel"}) {
    if (architecture.ends_with(end)) architecture.remove_suffix(end.size());
  }
  hf.set("architectures", std::vector<std::string>{concat(architecture, kClassifies)});
  if (config.pad_token >= 0) hf.set("pad_token_id", config.pad_token);
  HfConfig names, numbers;
  for (std::int64_t label = 0; label < config.num_labels; ++label) {
    names.set(concat(label), concat("LABEL_", label));
    numbers.set(concat("LABEL_", label), label);
  }
  hf.set("id2label", names);
  hf.set("label2id", numbers);
}

// Token pad_token_id; -1: none.
std::int64_t pad_token(const HfConfig& hf, std::int64_t vocabulary) {
  std::int64_t token = hf.has("pad_token_id") ? hf.integer("pad_token_id", -1) : -1;
  if (token < 0) token += vocabulary;  // as in Python
  return hf.has("pad_token_id") && token >= 0 && token < vocabulary ? token : -1;
}

// padding_idx of the embedding in transformers: its row gets no gradient from lookups.
std::int64_t padding_row(const HfConfig& hf, const ModelFamily& family, std::int64_t vocabulary) {
  if (!pads_embedding(family.name)) return -1;
  if (!hf.has("pad_token_id")) {
    return hf.listed("pad_token_id") || family.default_pad >= vocabulary ? -1 : family.default_pad;
  }
  return pad_token(hf, vocabulary);
}
}  // namespace

ModelConfig from_hf(const HfConfig& hf) {
  const ModelFamily& family = find_family(hf.text("model_type"), hf.source());
  reject_unsupported(hf);
  ModelConfig config = family.read(hf);
  config.padding_row = padding_row(hf, family, config.vocab_size);
  if (classifies(hf) && !config.encoder.encoder) {
    config.num_labels = label_count(hf);
    config.pad_token = pad_token(hf, config.vocab_size);
  }
  std::vector<std::string> problems = range_problems(config);
  if (problems.empty()) problems = config.problems();
  BEV_CHECK(problems.empty(), ErrorKind::kInput, hf.source(), ": describes no valid model:\n  ",
            join(problems, "\n  "));
  return canonical(config);
}

namespace {
// Reads an exported config.json back.
ModelConfig read_back(const HfConfig& hf, const ModelFamily& family) {
  try {
    return from_hf(hf);
  } catch (const Error& error) {
    BEV_FAIL(ErrorKind::kConfig, "export: a config.json of ", family.name,
             " cannot express this model: ", error.what());
  }
}
}  // namespace

HfConfig to_hf(const ModelConfig& given, Dtype dtype) {
  throw_problems(given.problems());
  BEV_CHECK(given.max_position_embeddings > 0, ErrorKind::kConfig,
            "--max-position-embeddings: is not set, but config.json needs it");
  ModelConfig config = canonical(given);
  const ModelFamily& family = find_family(config.family);
  HfConfig hf;
  hf.set("architectures", std::vector<std::string>{family.architecture});
  hf.set("model_type", family.name);
  hf.set("dtype", torch_name(dtype));
  hf.set("torch_dtype", torch_name(dtype));
  hf.set("use_cache", true);
  for (const char* token : {"bos_token_id", "eos_token_id", "pad_token_id"}) hf.set_null(token);
  if (config.padding_row >= 0) hf.set("pad_token_id", config.padding_row);
  family.write(config, hf);
  if (config.num_labels > 0 && !config.encoder.encoder)
    write_labels(config, family.architecture, hf);

  std::vector<std::string> lost = differing_fields(config, read_back(hf, family));
  for (std::string& name : lost) name = "--" + name;
  BEV_CHECK(lost.empty(), ErrorKind::kConfig, "export: a config.json of ", family.name,
            " cannot express ", join(lost, ", "), " of this model");
  return hf;
}

}  // namespace bev
