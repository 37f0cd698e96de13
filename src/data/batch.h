// From samples to what a rank computes on.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ops/micro_batch.h"

namespace bev {

// Values of one sample for a named batch field: one per token, one in all (FieldRows::kSamples), or
// one per token of a sequence of its own (FieldRows::kOwn). All samples of a batch have the same
// fields, with values of the same type.
struct SampleField {
  FieldId id;
  FieldRows rows = FieldRows::kTokens;
  std::variant<std::vector<std::int32_t>, std::vector<float>, std::vector<double>> values;
};

// A label that is left out of the loss.
inline constexpr std::int32_t kIgnoredLabel = -100;

struct TokenSample {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;         // what each token should predict; negative: ignored
  std::vector<float> weights;                // of each target in the loss
  std::vector<std::int32_t> documents;       // lengths; tokens attend within their document only
  std::vector<std::int32_t> positions = {};  // of each token; empty: its place in the document
  std::vector<SampleField> fields = {};
};

// Position of every token.
std::vector<std::int32_t> positions_of(const TokenSample& sample);

// A window of S + 1 tokens: each predicts the next.
TokenSample window_sample(std::span<const std::int32_t> tokens);
// Hugging Face's convention: label t + 1 is the target of token t; kIgnoredLabel is ignored.
TokenSample labelled_sample(std::span<const std::int32_t> tokens,
                            std::span<const std::int32_t> labels);
// The same without the tokens whose mask is 0, whose labels are ignored. The others' positions are
// their columns.
TokenSample masked_sample(std::span<const std::int32_t> tokens,
                          std::span<const std::int32_t> labels, std::span<const std::int32_t> mask);

// A global batch as a file gives it: a sample for each row.
struct GlobalBatch {
  std::vector<TokenSample> samples;
  std::int64_t columns = 0;  // of the longest row, masked tokens included
  std::string hole;          // the place of the first token that is masked between others; "": none
};

// `first_sample`: index of the first one in the global batch. Later tokens and targets are those of
// the same document; beyond its end there is token 0 and nothing to predict.
MicroBatch make_micro_batch(Context& ctx, std::span<const TokenSample> samples,
                            std::int64_t first_sample, const FutureSpec& future = {});

// This rank's micro-batches of a global batch: blocks of size * dp samples, of which data-parallel
// rank r takes the r-th `size` (Megatron's order). The last block may be short: its samples are
// dealt out in order, so shares may be unequal or empty.
std::vector<MicroBatch> rank_micro_batches(Context& ctx, std::span<const TokenSample> global,
                                           std::int64_t micro_batch_size,
                                           const FutureSpec& future = {});

}  // namespace bev
