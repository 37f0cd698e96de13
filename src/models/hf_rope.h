// Rotary settings of config.json, in the layout of transformers 4 (rope_theta and rope_scaling) and
// of 5 (one object, rope_parameters). As in transformers 5, rope_scaling wins when both are there.
#pragma once

#include <cstdint>
#include <string_view>

#include "models/config.h"
#include "models/hf_config.h"

namespace bev {

// What a family calls its settings outside of the rope object, and what it takes for missing ones.
struct RopeKeys {
  std::string_view base = "rope_theta";
  double default_base = 10000.0;
  std::string_view percent = "partial_rotary_factor";
  double default_percent = 1.0;
  bool partial = false;  // whether only a part of the head may rotate
};

// Sets position kind, base, percent and scaling. The shape and max_position_embeddings must be
// there.
void read_rope(const HfConfig& hf, const RopeKeys& keys, ModelConfig& config);
// Writes both layouts, so that transformers 4 and 5 load it.
void write_rope(const ModelConfig& config, const RopeKeys& keys, HfConfig& hf);

// Only the scaling, from one rope object `rope` of `hf`.
RopeScaling read_rope_scaling(const HfConfig& hf, const HfConfig& rope, std::int64_t max_positions);
// A rope object with its type and scaling.
HfConfig rope_object(const RopeScaling& scaling);

}  // namespace bev
