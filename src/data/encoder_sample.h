// Samples of encoders: tokens with labels of their own, without padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/batch.h"

namespace bev {

// One row of a batch, perhaps padded.
struct EncoderRow {
  std::span<const std::int32_t> tokens;
  std::span<const std::int32_t> types = {};   // of the tokens; empty: no field of types
  std::span<const std::int32_t> labels = {};  // kIgnoredLabel or negative: none; empty: none at all
  std::span<const std::int32_t> mask = {};    // 0: dropped; empty: all are used
};

// The tokens that are used, with their columns as position ids. If uncounted_token is given
// (RoBERTa's padding), positions count the other tokens of the row, and it has position -1.
TokenSample encoder_sample(const EncoderRow& row, std::int64_t uncounted_token = -1);

// A value of the sample, for a head on its sequence.
void set_sample_label(TokenSample& sample, FieldId id, std::int32_t value);
void set_sample_number(TokenSample& sample, FieldId id, double value);

}  // namespace bev
