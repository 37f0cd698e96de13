// Parts of config.json that several families share: activations, sliding windows, and what nobody
// here can compute.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "models/hf_config.h"

namespace bev {

// Rejects what no family of ours computes: quantised weights, cross-attention, ...
void reject_unsupported(const HfConfig& hf);
// Rejects a key that is truthy.
void reject_set(const HfConfig& hf, std::string_view key, std::string_view why);

// num_hidden_layers, hidden_size, intermediate_size, num_attention_heads, vocab_size and
// max_position_embeddings.
void read_sizes(const HfConfig& hf, std::int64_t default_positions, ModelConfig& config);
void write_sizes(const ModelConfig& config, HfConfig& hf);
std::int64_t read_layer_count(const HfConfig& hf, std::string_view key);

// For presets: a block of this shape.
struct ModelSizes {
  std::int64_t layers, hidden, ffn, heads, kv_heads, vocab, positions;
};
ModelConfig with_sizes(ModelConfig block, const ModelSizes& sizes);

Activation read_activation(const HfConfig& hf, std::string_view key, std::string_view missing);
std::string_view activation_name(Activation kind);

// "sliding_window": 0 when it is null; `missing` when it is not there.
std::int64_t read_window(const HfConfig& hf, std::int64_t missing);

enum class LayerTypes : std::uint8_t { kUsed, kFixed };
// Windows of `window` tokens (the query's own included; 0: none) in the layers marked 1. Where the
// family uses it, "layer_types" overrides the marks; elsewhere it must agree with them.
void set_windows(const HfConfig& hf, std::int64_t window, std::vector<std::int64_t> layers,
                 LayerTypes types, ModelConfig& config);
// In all layers, or in none when `window` is 0.
void set_uniform_windows(const HfConfig& hf, std::int64_t window, ModelConfig& config);
// The inverse: "sliding_window", and "layer_types" where they are used.
void write_windows(const ModelConfig& config, LayerTypes types, HfConfig& hf);
// Marks of all layers but every `period`-th.
std::vector<std::int64_t> all_but_every(std::int64_t period, std::int64_t layers);

}  // namespace bev
