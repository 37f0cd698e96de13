// Collation: samples to the micro-batches of a rank.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ops/micro_batch.h"

namespace bev {

// Values of one sample for a named batch field: one per token, one per sample
// (FieldRows::kSamples), or one per token of a separate sequence (FieldRows::kOwn). All samples of
// a batch have the same fields with the same value types.
struct SampleField {
  FieldId id;
  FieldRows rows = FieldRows::kTokens;
  std::variant<std::vector<std::int32_t>, std::vector<float>, std::vector<double>> values;
};

// Label that is excluded from the loss.
inline constexpr std::int32_t kIgnoredLabel = -100;

struct TokenSample {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;         // target of each token; negative: ignored
  std::vector<float> weights;                // loss weight of each target
  std::vector<std::int32_t> documents;       // lengths; attention is limited to a document
  std::vector<std::int32_t> positions = {};  // position ids; empty: index within the document
  std::vector<SampleField> fields = {};
  std::vector<std::int32_t> columns = {};  // in a padded row; empty: the position ids
};

// Position id of every token.
std::vector<std::int32_t> positions_of(const TokenSample& sample);
// Column of every token in the row of a batch that it came from.
std::vector<std::int32_t> columns_of(const TokenSample& sample);

// Sample from a window of S + 1 tokens: each token predicts the next.
TokenSample window_sample(std::span<const std::int32_t> tokens);
// Hugging Face's convention: label t + 1 is the target of token t; kIgnoredLabel is ignored.
TokenSample labelled_sample(std::span<const std::int32_t> tokens,
                            std::span<const std::int32_t> labels);
// The same, dropping tokens whose attention mask is 0 and ignoring their labels. The remaining
// tokens keep their columns as position ids.
TokenSample masked_sample(std::span<const std::int32_t> tokens,
                          std::span<const std::int32_t> labels, std::span<const std::int32_t> mask);

// A global batch read from a file: one sample per row.
struct GlobalBatch {
  std::vector<TokenSample> samples;
  std::int64_t columns = 0;  // length of the longest row, including masked tokens
  std::string hole;          // location of the first token masked between unmasked ones; "": none
};

// `first_sample` is the index of the first sample in the global batch. `future`: tokens and targets
// shifted for multi-token prediction (MTP) stay within the document; beyond its end there is token
// 0 and no target.
MicroBatch make_micro_batch(Context& ctx, std::span<const TokenSample> samples,
                            std::int64_t first_sample, const MtpSpec& mtp = {});

// This rank's micro-batches of a global batch: the batch is cut into blocks of size * dp samples,
// and data-parallel rank r takes the r-th `size` of each block (Megatron's order). If the last
// block is short, its samples are distributed in order, so shares may be unequal or empty.
std::vector<MicroBatch> rank_micro_batches(Context& ctx, std::span<const TokenSample> global,
                                           std::int64_t micro_batch_size, const MtpSpec& mtp = {});

}  // namespace bev
