// RoPE frequencies under all supported scaling rules.
#pragma once

#include <cstdint>
#include <vector>

#include "models/config.h"

namespace bev {

struct RopeFrequencies {
  std::vector<double> frequencies;  // R/2 of them
  double scale = 1;                 // multiplies cos and sin
};

// Frequencies for sequences of at most `length` tokens (dynamic and longrope depend on it).
// `local`: for windowed layers.
RopeFrequencies rope_frequencies(const ModelConfig& config, bool local, std::int64_t length);

// True if the frequencies of full layers depend on the sequence length.
bool rope_depends_on_length(const ModelConfig& config);
// True if a sequence that grows to `length` tokens changes its frequencies for all positions, which
// invalidates cached keys (longrope at its limit).
bool rope_switches_at(const ModelConfig& config, std::int64_t length);

// Factor of the attention scores of MLA under yarn: the square of its magnitude correction.
double latent_scale_factor(const RopeScaling& scaling);

// Number of rotated dims of a head.
std::int64_t rotary_dims(const ModelConfig& config);

}  // namespace bev
