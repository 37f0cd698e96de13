// Parts of config.json shared by several families: sizes, activations, sliding windows, unsupported
// features.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "models/families/hf_config.h"

namespace bev {

// Rejects features that no family supports: quantised weights, cross-attention, ...
void reject_unsupported(const HfConfig& hf);
// Rejects a key that is truthy.
void reject_set(const HfConfig& hf, std::string_view key, std::string_view why);

// Reads num_hidden_layers, hidden_size, intermediate_size, num_attention_heads, vocab_size and
// max_position_embeddings.
void read_sizes(const HfConfig& hf, std::int64_t default_positions, ModelConfig& config);
void write_sizes(const ModelConfig& config, HfConfig& hf);
std::int64_t read_layer_count(const HfConfig& hf, std::string_view key);

// For presets: the sizes of a model.
struct ModelSizes {
  std::int64_t layers, hidden, ffn, heads, kv_heads, vocab, positions;
};
ModelConfig with_sizes(ModelConfig block, const ModelSizes& sizes);

Activation read_activation(const HfConfig& hf, std::string_view key, std::string_view missing);
std::string_view activation_name(Activation kind);

// "sliding_window": 0 if null, `missing` if absent.
std::int64_t read_window(const HfConfig& hf, std::int64_t missing);

enum class LayerTypes : std::uint8_t { kUsed, kFixed };
// Sets windows of `window` tokens (including the query itself; 0: none) in the layers marked 1.
// "layer_types" overrides the marks if the family uses it; otherwise it must agree with them.
void set_windows(const HfConfig& hf, std::int64_t window, std::vector<std::int64_t> layers,
                 LayerTypes types, ModelConfig& config);
// The same for all layers; window 0: none.
void set_uniform_windows(const HfConfig& hf, std::int64_t window, ModelConfig& config);
// The inverse: writes "sliding_window", and "layer_types" if the family uses it.
void write_windows(const ModelConfig& config, LayerTypes types, HfConfig& hf);
// "no_rope_layers" (1: a layer rotates) or, without it, "no_rope_layer_interval": every N-th layer
// does not rotate.
void read_no_rope(const HfConfig& hf, ModelConfig& config);
void write_no_rope(const ModelConfig& config, HfConfig& hf);
// Marks all layers but every `period`-th.
std::vector<std::int64_t> all_but_every(std::int64_t period, std::int64_t layers);

}  // namespace bev
