// Megatron's GPT samples of one dataset: pieces of documents joined to a fixed length.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/gpt_index.h"
#include "data/token_sequences.h"

namespace bev {

struct GptSampleConfig {
  std::int64_t seq_length = 0;
  bool extra_token = true;            // else the last token has no target
  bool reset_position_ids = false;    // positions start again after an end of document
  bool reset_attention_mask = false;  // tokens attend within their document
  bool eod_mask_loss = false;         // what follows an end of document is no target
  std::int32_t eod_id = -1;           // < 0: there is none
  std::int32_t pad_id = -1;           // a target that is left out of the loss
  std::int64_t vocab_size = 0;        // tokens at or above are refused; 0: any
};

class GptDataset : public Dataset {
 public:
  GptDataset(std::shared_ptr<const TokenSequences> sequences, GptIndex index,
             const GptSampleConfig& config);

  std::int64_t seq_length() const override { return config_.seq_length; }
  std::int64_t num_samples() const override { return index_.num_samples(); }
  TokenSample sample(std::int64_t index) const override;
  // Also the position of each token: 0, 1, 2, ..., from 0 again after every end of document when
  // the configuration asks for it.
  TokenSample sample(std::int64_t index, std::vector<std::int32_t>& positions) const;

  const GptIndex& index() const { return index_; }
  const std::string& name() const { return sequences_->name(); }

 private:
  TokenSample read_sample(std::int64_t index, std::vector<std::int32_t>* positions) const;
  std::vector<std::int32_t> positions_of(std::span<const std::int32_t> tokens) const;
  void mask_padding(TokenSample& sample) const;
  bool read_text(std::int64_t index, std::span<std::int32_t> text) const;
  void read_piece(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> piece) const;

  std::shared_ptr<const TokenSequences> sequences_;
  GptIndex index_;
  GptSampleConfig config_;
};

}  // namespace bev
