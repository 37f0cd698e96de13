#include "models/encoder_samples.h"

#include <algorithm>

#include "data/batch_file.h"
#include "data/encoder_sample.h"

namespace bev {

namespace {

// The second half of a sample is of the other types.
std::vector<std::int32_t> types_of(const TokenSample& sample, std::int64_t types) {
  std::vector<std::int32_t> out(sample.tokens.size());
  for (std::size_t t = out.size() / 2; t < out.size(); ++t) {
    out[t] = static_cast<std::int32_t>(static_cast<std::int64_t>(t) % types);
  }
  return out;
}

// Labels of tokens instead of ids.
void fold_targets(std::int64_t labels, TokenSample& sample) {
  for (std::int32_t& target : sample.targets) {
    if (target >= 0) target = static_cast<std::int32_t>(target % labels);
  }
}

void add_sequence_label(std::size_t row, std::int64_t labels, TokenSample& sample) {
  std::ranges::fill(sample.targets, -1);
  std::ranges::fill(sample.weights, 0.0f);
  sample.weights.front() = 1;
  if (labels == 1) return set_sample_number(sample, kClassLabels, 0.25 * static_cast<double>(row));
  set_sample_label(sample, kClassLabels,
                   static_cast<std::int32_t>(static_cast<std::int64_t>(row) % labels));
}

}  // namespace

void add_encoder_fields(const ModelConfig& model, std::span<TokenSample> samples) {
  const EncoderConfig& encoder = model.encoder;
  if (!encoder.encoder) return;
  for (std::size_t row = 0; row < samples.size(); ++row) {
    TokenSample& sample = samples[row];
    auto length = static_cast<std::int32_t>(sample.tokens.size());
    if (encoder.token_types > 0) {
      sample.fields.push_back(
          {kTokenTypeIds, FieldRows::kTokens, types_of(sample, encoder.token_types)});
    }
    if (encoder.next_sentence) {
      set_sample_label(sample, kNextSentenceLabel, static_cast<std::int32_t>(row % 2));
    }
    if (encoder.labels == LabelKind::kTokens) fold_targets(model.num_labels, sample);
    if (encoder.labels == LabelKind::kSequence) add_sequence_label(row, model.num_labels, sample);
    if (encoder.labels != LabelKind::kSpans) continue;
    set_sample_label(sample, kStartPositions, static_cast<std::int32_t>(row) % length);
    set_sample_label(sample, kEndPositions, length - 1);
  }
}

}  // namespace bev
