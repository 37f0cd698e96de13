#include "data/encoder_sample.h"

#include "data/batch_file.h"

namespace bev {

namespace {

// Position id of every column.
std::vector<std::int32_t> column_positions(std::span<const std::int32_t> tokens,
                                           std::int64_t uncounted_token) {
  std::vector<std::int32_t> positions;
  std::int32_t next = 0;
  for (std::int32_t token : tokens) {
    const bool counts = uncounted_token < 0 || token != uncounted_token;
    positions.push_back(counts ? next++ : -1);
  }
  return positions;
}

bool are_default(const std::vector<std::int32_t>& positions) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] != static_cast<std::int32_t>(i)) return false;
  }
  return true;
}

}  // namespace

TokenSample encoder_sample(const EncoderRow& row, std::int64_t uncounted_token) {
  const std::vector<std::int32_t> positions = column_positions(row.tokens, uncounted_token);
  TokenSample sample;
  std::vector<std::int32_t> types;
  for (std::size_t t = 0; t < row.tokens.size(); ++t) {
    if (!row.mask.empty() && row.mask[t] == 0) continue;
    const std::int32_t label = row.labels.empty() ? -1 : row.labels[t];
    sample.tokens.push_back(row.tokens[t]);
    sample.targets.push_back(label < 0 ? -1 : label);
    sample.weights.push_back(label < 0 ? 0.0f : 1.0f);
    sample.positions.push_back(positions[t]);
    sample.columns.push_back(static_cast<std::int32_t>(t));
    if (!row.types.empty()) types.push_back(row.types[t]);
  }
  sample.documents = {static_cast<std::int32_t>(sample.tokens.size())};
  if (are_default(sample.positions)) sample.positions.clear();
  if (!row.types.empty()) {
    sample.fields.push_back({kTokenTypeIds, FieldRows::kTokens, std::move(types)});
  }
  return sample;
}

void set_sample_label(TokenSample& sample, FieldId id, std::int32_t value) {
  sample.fields.push_back({id, FieldRows::kSamples, std::vector<std::int32_t>{value}});
}

void set_sample_number(TokenSample& sample, FieldId id, double value) {
  sample.fields.push_back({id, FieldRows::kSamples, std::vector<float>{static_cast<float>(value)}});
}

}  // namespace bev
