#include "models/families/hf_shared_keys.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"

namespace bev {

namespace {
constexpr const char* kSliding = "sliding_attention";
constexpr const char* kFull = "full_attention";

// The first name of each kind is the one we write.
constexpr std::array<std::pair<std::string_view, Activation>, 13> kActivations = {
    {{"gelu", Activation::kGelu},
     {"gelu_python", Activation::kGelu},
     {"gelu_pytorch_tanh", Activation::kGeluTanh},
     {"gelu_new", Activation::kGeluTanh},
     {"gelu_fast", Activation::kGeluTanh},
     {"gelu_accurate", Activation::kGeluTanh},
     {"gelu_python_tanh", Activation::kGeluTanh},
     {"silu", Activation::kSilu},
     {"swish", Activation::kSilu},
     {"relu", Activation::kRelu},
     {"relu2", Activation::kSquaredRelu},
     {"quick_gelu", Activation::kQuickGelu},
     {"xielu", Activation::kXielu}}};

// Marks of "layer_types": 1 for sliding_attention.
std::vector<std::int64_t> read_layer_types(const HfConfig& hf, std::int64_t layers) {
  std::vector<std::string> types = hf.texts("layer_types");
  if (static_cast<std::int64_t>(types.size()) != layers) {
    hf.reject("layer_types",
              concat("it must have ", layers, " entries, one for each layer, not ", types.size()));
  }
  std::vector<std::int64_t> marks;
  for (const std::string& type : types) {
    if (type != kSliding && type != kFull) {
      hf.reject("layer_types", concat("only ", kFull, " and ", kSliding, " are supported"));
    }
    marks.push_back(type == kSliding ? 1 : 0);
  }
  return marks;
}
}  // namespace

namespace {
// True for quantised weights that can be read and dequantised: MXFP4 experts of gpt_oss, FP8 with
// 128 x 128 blocks, and bitsandbytes' NF4.
bool is_expanded(const HfConfig& hf) {
  std::optional<HfConfig> packing = hf.object("quantization_config");
  if (!packing) return false;
  std::string method = packing->text("quant_method", "");
  if (method == "mxfp4") return hf.text("model_type", "") == "gpt_oss";
  if (method == "bitsandbytes") {
    return packing->boolean("load_in_4bit", false) &&
           packing->text("bnb_4bit_quant_type", "fp4") == "nf4";
  }
  return method == "fp8" && packing->text("fmt", "e4m3") == "e4m3" &&
         packing->counts("weight_block_size") == std::vector<std::int64_t>{128, 128};
}
}  // namespace

void reject_set(const HfConfig& hf, std::string_view key, std::string_view why) {
  if (hf.truthy(key)) hf.reject(key, why);
}

void reject_unsupported(const HfConfig& hf) {
  if (!is_expanded(hf)) {
    reject_set(hf, "quantization_config",
               "only mxfp4 of gpt_oss, fp8 (e4m3, weight_block_size [128, 128]) and bitsandbytes' "
               "4 bits of type nf4 are supported");
  }
  reject_set(hf, "compression_config", "compressed weights are not supported");
  reject_set(hf, "is_encoder_decoder", "only decoders are supported");
  reject_set(hf, "add_cross_attention", "cross-attention is not supported");
  reject_set(hf, "pruned_heads", "pruned heads are not supported");
  if (hf.text("model_type", "") != "llama4_text") {
    reject_set(hf, "attention_chunk_size", "chunked attention is not supported");
  }
  reject_set(hf, "use_bidirectional_attention", "bidirectional attention is not supported");
}

std::int64_t read_layer_count(const HfConfig& hf, std::string_view key) {
  std::int64_t layers = hf.positive_integer(key);
  if (layers > kLayerLimit) {
    hf.reject(key, concat("at most ", kLayerLimit, " layers are supported"));
  }
  return layers;
}

void read_sizes(const HfConfig& hf, std::int64_t default_positions, ModelConfig& config) {
  config.num_layers = read_layer_count(hf, "num_hidden_layers");
  config.hidden_size = hf.positive_integer("hidden_size");
  config.ffn_hidden_size = hf.positive_integer("intermediate_size");
  config.num_attention_heads = hf.positive_integer("num_attention_heads");
  if (config.num_attention_heads > kHeadLimit) {
    hf.reject("num_attention_heads", concat("at most ", kHeadLimit, " heads are supported"));
  }
  config.vocab_size = hf.positive_integer("vocab_size");
  config.max_position_embeddings =
      hf.positive_integer("max_position_embeddings", default_positions);
}

void write_sizes(const ModelConfig& config, HfConfig& hf) {
  hf.set("num_hidden_layers", config.num_layers);
  hf.set("hidden_size", config.hidden_size);
  hf.set("intermediate_size", config.ffn_hidden_size);
  hf.set("num_attention_heads", config.num_attention_heads);
  hf.set("vocab_size", config.vocab_size);
  hf.set("max_position_embeddings", config.max_position_embeddings);
}

ModelConfig with_sizes(ModelConfig block, const ModelSizes& sizes) {
  block.num_layers = sizes.layers;
  block.hidden_size = sizes.hidden;
  block.ffn_hidden_size = sizes.ffn;
  block.num_attention_heads = sizes.heads;
  block.num_query_groups = sizes.kv_heads;
  if (block.kv_channels == 0) block.kv_channels = sizes.hidden / sizes.heads;
  block.vocab_size = sizes.vocab;
  block.max_position_embeddings = sizes.positions;
  return block;
}

Activation read_activation(const HfConfig& hf, std::string_view key, std::string_view missing) {
  std::string name = hf.text(key, missing);
  for (const auto& [known, kind] : kActivations) {
    if (name == known) return kind;
  }
  std::vector<std::string> names;
  for (const auto& entry : kActivations) names.emplace_back(entry.first);
  hf.reject(key, concat("known activations are ", join(names, ", ")));
}

std::string_view activation_name(Activation kind) {
  return std::find_if(kActivations.begin(), kActivations.end(),
                      [kind](const auto& entry) { return entry.second == kind; })
      ->first;
}

std::int64_t read_window(const HfConfig& hf, std::int64_t missing) {
  return hf.positive_integer("sliding_window", hf.listed("sliding_window") ? 0 : missing);
}

void set_windows(const HfConfig& hf, std::int64_t window, std::vector<std::int64_t> layers,
                 LayerTypes types, ModelConfig& config) {
  if (hf.has("layer_types")) {
    std::vector<std::int64_t> given = read_layer_types(hf, config.num_layers);
    if (types == LayerTypes::kFixed && given != layers) {
      hf.reject("layer_types", concat(config.family, " models have no such mixture of layers"));
    }
    layers = std::move(given);
  }
  if (std::find(layers.begin(), layers.end(), 1) == layers.end()) return;
  if (window == 0) {
    hf.reject("sliding_window", "some layers attend within a window, so its size must be given");
  }
  if (window == 1) hf.reject("sliding_window", "a window must reach at least one earlier token");
  config.window_size = window - 1;
  config.window_layers = std::move(layers);
}

void set_uniform_windows(const HfConfig& hf, std::int64_t window, ModelConfig& config) {
  std::vector<std::int64_t> layers(static_cast<std::size_t>(config.num_layers), window > 0 ? 1 : 0);
  set_windows(hf, window, std::move(layers), LayerTypes::kFixed, config);
}

void write_windows(const ModelConfig& config, LayerTypes types, HfConfig& hf) {
  std::vector<std::string> names;
  bool any = false;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    any = any || config.windowed(layer);
    names.emplace_back(config.windowed(layer) ? kSliding : kFull);
  }
  if (any) {
    hf.set("sliding_window", config.window_size + 1);
  } else {
    hf.set_null("sliding_window");
  }
  if (types == LayerTypes::kUsed) hf.set("layer_types", names);
}

void read_no_rope(const HfConfig& hf, ModelConfig& config) {
  std::vector<std::int64_t> rotates = hf.counts("no_rope_layers");
  const std::int64_t interval = hf.positive_integer("no_rope_layer_interval", 4);
  if (rotates.empty()) rotates = all_but_every(interval, config.num_layers);
  if (static_cast<std::int64_t>(rotates.size()) < config.num_layers) {
    hf.reject("no_rope_layers",
              concat("it must have an entry for each of the ", config.num_layers, " layers"));
  }
  rotates.resize(static_cast<std::size_t>(config.num_layers));
  config.no_rope_layers.clear();
  for (std::int64_t one : rotates) config.no_rope_layers.push_back(one != 0 ? 0 : 1);
}

void write_no_rope(const ModelConfig& config, HfConfig& hf) {
  std::vector<std::int64_t> rotates;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    rotates.push_back(config.rotates(layer) ? 1 : 0);
  }
  hf.set("no_rope_layers", rotates);
}

std::vector<std::int64_t> all_but_every(std::int64_t period, std::int64_t layers) {
  std::vector<std::int64_t> marks;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    marks.push_back((layer + 1) % period != 0 ? 1 : 0);
  }
  return marks;
}

}  // namespace bev
