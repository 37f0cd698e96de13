// RoPE settings of config.json, in the layout of transformers 4 (rope_theta and rope_scaling) and 5
// (one object, rope_parameters). As in transformers 5, rope_scaling wins if both are present.
#pragma once

#include <cstdint>
#include <string_view>

#include "models/config.h"
#include "models/families/hf_config.h"

namespace bev {

// Keys of a family outside the rope object, and their defaults.
struct RopeKeys {
  std::string_view base = "rope_theta";
  double default_base = 10000.0;
  std::string_view percent = "partial_rotary_factor";
  double default_percent = 1.0;
  bool partial = false;         // true if only a part of the head may rotate
  bool scales_queries = false;  // the rope object may have llama_4_scaling_beta
};

// Sets position kind, base, percent and scaling. Requires that shape and max_position_embeddings
// are set.
void read_rope(const HfConfig& hf, const RopeKeys& keys, ModelConfig& config);
// Writes both layouts, so that transformers 4 and 5 can load it.
void write_rope(const ModelConfig& config, const RopeKeys& keys, HfConfig& hf);

// Families whose windowed layers have a base of their own, never scaled. transformers 5:
// rope_parameters with one object for each kind of layer. transformers 4: `base_key` and
// rope_scaling for full layers, `local_key` for windowed ones.
struct LayeredRopeKeys {
  double default_base = 10000.0;
  std::string_view base_key = "rope_theta";
  std::string_view local_key = "";  // "": windowed layers have rope_theta too
  double default_local_base = 10000.0;
};
void read_layered_rope(const HfConfig& hf, const LayeredRopeKeys& keys, ModelConfig& config);
void write_layered_rope(const ModelConfig& config, const LayeredRopeKeys& keys, HfConfig& hf);

// Reads only the scaling, from one rope object `rope` of `hf`.
RopeScaling read_rope_scaling(const HfConfig& hf, const HfConfig& rope, std::int64_t max_positions);
// Returns a rope object with type and scaling.
HfConfig rope_object(const RopeScaling& scaling);

}  // namespace bev
