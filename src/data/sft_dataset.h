// Supervised fine-tuning: conversations packed into samples, with the loss on what the assistant
// says. Conversations do not see each other; padding has no loss.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "data/dataset.h"
#include "data/sft_encode.h"
#include "data/too_long.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct SftConfig {
  std::vector<std::string> files;  // JSON lines, see read_sft_row; names as of list_inputs
  std::int64_t seq_length = 0;
  std::int64_t vocab_size = 0;  // ids at or above are refused; 0: any
  std::uint64_t seed = 0;
  bool shuffle = true;  // samples, anew in every epoch
  TooLong too_long = TooLong::kCut;
};

// What became of the conversations.
struct SftReport {
  std::int64_t conversations = 0;
  std::int64_t cut = 0;           // to the length of a sample
  std::int64_t dropped_long = 0;  // longer than a sample
  std::int64_t dropped_mute = 0;  // without a token that the assistant says
  std::int64_t samples = 0;
  std::int64_t tokens = 0;   // in the samples, less padding
  std::int64_t learned = 0;  // of them with a loss
};
std::string to_text(const SftReport& report, std::int64_t seq_length);

class SftDataset : public Dataset {
 public:
  // Reads and encodes everything, on all cores. Error(kInput) naming file and line; also when
  // nothing is left to learn from.
  SftDataset(const SftConfig& config, const Tokenizer& tokenizer,
             const ChatTemplate& chat_template);

  std::int64_t seq_length() const override { return config_.seq_length; }
  std::int64_t num_samples() const override { return static_cast<std::int64_t>(bins_.size()); }
  // Goes on with the next epoch beyond the last sample.
  TokenSample sample(std::int64_t index) const override;

  const SftReport& report() const { return report_; }

 private:
  // Applies the policy for lengths and counts; false: nothing is left.
  bool keep(SftTokens& tokens);

  SftConfig config_;
  std::int32_t pad_id_ = 0;
  std::vector<SftTokens> conversations_;
  std::vector<std::vector<std::size_t>> bins_;
  SftReport report_;
};

}  // namespace bev
