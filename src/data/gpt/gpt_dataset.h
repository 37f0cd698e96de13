// Megatron's GPT dataset: pieces of documents concatenated to a fixed length (sequence packing).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/gpt/fill_in_middle.h"
#include "data/gpt/gpt_index.h"
#include "data/random/mt19937.h"
#include "data/token_sequences.h"

namespace bev {

struct GptSampleConfig {
  std::int64_t seq_length = 0;
  bool extra_token = true;            // read S + 1 tokens; otherwise the last token has no target
  bool reset_position_ids = false;    // positions restart after an end-of-document token
  bool reset_attention_mask = false;  // tokens attend within their document
  bool eod_mask_loss = false;         // no loss on the target after an end-of-document token
  std::int32_t eod_id = -1;           // end-of-document token; < 0: none
  std::int32_t pad_id = -1;           // a target that is excluded from the loss
  std::int64_t vocab_size = 0;        // larger or equal ids are refused; 0: any
  std::shared_ptr<const FillInMiddle> fim = nullptr;  // null: no fill-in-the-middle
  std::uint64_t fim_seed = 0;
};

class GptDataset : public Dataset {
 public:
  GptDataset(std::shared_ptr<const TokenSequences> sequences, GptIndex index,
             const GptSampleConfig& config);

  std::int64_t seq_length() const override { return config_.seq_length; }
  std::int64_t num_samples() const override { return index_.num_samples(); }
  // Fill-in-the-middle draws from the sample's own stream, RandomState(fim_seed + index), so a
  // sample does not depend on the reading order.
  TokenSample sample(std::int64_t index) const override;
  // Megatron's behaviour: one stream, in reading order.
  TokenSample sample(std::int64_t index, RandomState& fim_stream) const;

  const GptIndex& index() const { return index_; }
  const std::string& name() const { return sequences_->name(); }

 private:
  TokenSample make_sample(std::int64_t index, RandomState* fim_stream) const;
  void cut_documents(TokenSample& sample) const;
  void mask_padding(TokenSample& sample) const;
  std::size_t read_text(std::int64_t index, std::span<std::int32_t> text) const;
  void read_piece(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> piece) const;

  std::shared_ptr<const TokenSequences> sequences_;
  GptIndex index_;
  GptSampleConfig config_;
};

}  // namespace bev
