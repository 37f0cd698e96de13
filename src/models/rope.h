// Rotary frequencies under every scaling rule in use.
#pragma once

#include <cstdint>
#include <vector>

#include "models/config.h"

namespace bev {

struct RopeFrequencies {
  std::vector<double> frequencies;  // R/2 of them
  double scale = 1;                 // multiplies cos and sin
};

// For sequences of at most `length` tokens (dynamic and longrope depend on it). `local`: of
// windowed layers.
RopeFrequencies rope_frequencies(const ModelConfig& config, bool local, std::int64_t length);

// Whether the frequencies of full layers depend on the length of the sequence.
bool rope_depends_on_length(const ModelConfig& config);
// Whether a sequence that grows to `length` tokens changes its frequencies for all positions, so
// that keys kept from before are no longer right (longrope at its limit).
bool rope_switches_at(const ModelConfig& config, std::int64_t length);

// Factor of latent attention's scores under yarn: the square of its magnitude correction.
double latent_scale_factor(const RopeScaling& scaling);

// Number of dims of a head that rotate.
std::int64_t rotary_dims(const ModelConfig& config);

}  // namespace bev
