// Supervised fine-tuning (SFT) dataset: conversations packed into samples (sequence packing), with
// the loss on the assistant's tokens only. Packed conversations do not attend to each other;
// padding has no loss.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "data/dataset.h"
#include "data/preprocess/too_long.h"
#include "data/sft/sft_encode.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct SftConfig {
  std::vector<std::string> files;  // rows as in read_sft_row; names as in list_inputs
  std::int64_t seq_length = 0;
  std::int64_t vocab_size = 0;  // larger or equal ids are refused; 0: any
  std::uint64_t seed = 0;
  bool shuffle = true;  // reshuffle the samples in every epoch
  TooLong too_long = TooLong::kCut;
};

// Statistics of the conversations.
struct SftReport {
  std::int64_t conversations = 0;
  std::int64_t empty = 0;         // without a message or token
  std::int64_t cut = 0;           // truncated to the sample length
  std::int64_t dropped_long = 0;  // longer than a sample
  std::int64_t dropped_mute = 0;  // without an assistant token
  std::int64_t samples = 0;
  std::int64_t tokens = 0;   // in the samples, without padding
  std::int64_t learned = 0;  // tokens with a loss
};
std::string to_text(const SftReport& report, std::int64_t seq_length);

// A conversation, and where it is.
struct SftConversation {
  std::string source;  // "chats.jsonl, line 3"
  SftTokens tokens;    // none if it has no message
};
// At most `count` conversations from number `first` on. Throws Error(kInput) naming file and line.
std::vector<SftConversation> read_conversations(const std::vector<std::string>& names,
                                                std::int64_t first, std::int64_t count,
                                                const ChatTemplate& chat_template,
                                                const Tokenizer& tokenizer);

class SftDataset : public Dataset {
 public:
  // Reads and encodes everything, on all cores. Throws Error(kInput) naming file and line, or if
  // nothing is left to train on.
  SftDataset(const SftConfig& config, const Tokenizer& tokenizer,
             const ChatTemplate& chat_template);

  std::int64_t seq_length() const override { return config_.seq_length; }
  std::int64_t num_samples() const override { return static_cast<std::int64_t>(bins_.size()); }
  // Indices beyond the last sample continue with the next epoch.
  TokenSample sample(std::int64_t index) const override;

  const SftReport& report() const { return report_; }

 private:
  // Applies the length policy and counts; false: drop the conversation.
  bool keep(SftTokens& tokens);

  SftConfig config_;
  std::int32_t pad_id_ = 0;
  std::vector<SftTokens> conversations_;
  std::vector<std::vector<std::size_t>> bins_;
  SftReport report_;
};

}  // namespace bev
