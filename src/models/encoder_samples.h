// Made-up samples of encoders, for checks of layouts and memory plans.
#pragma once

#include <span>

#include "data/batch.h"
#include "models/config.h"

namespace bev {

// Adds to samples of tokens the fields that the model's loss reads, with values that follow from
// their places, and makes their targets labels of the model. Does nothing for decoders.
void add_encoder_fields(const ModelConfig& model, std::span<TokenSample> samples);

}  // namespace bev
