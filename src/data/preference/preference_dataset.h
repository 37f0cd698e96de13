// Datasets of preferences: pairs of answers, or labelled answers (KTO), one row a sample of its own
// length.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/preference/preference_rows.h"

namespace bev {

struct PreferenceDataConfig {
  std::vector<std::string> files;  // rows as in read_preference_row; names as in list_inputs
  PreferenceKind kind = PreferenceKind::kPair;
  bool scores_prompt = false;              // see pair_sample
  std::int64_t max_length = 0;             // of prompt and answer; longer answers are cut
  std::int64_t max_prompt_length = 0;      // longer prompts lose their beginning; 0: no limit
  std::int64_t max_completion_length = 0;  // longer answers lose their end; 0: no limit
  std::int64_t vocab_size = 0;             // larger or equal ids are refused
  std::uint64_t seed = 0;
  bool shuffle = true;  // reshuffle the rows in every epoch
};

struct PreferenceReport {
  std::int64_t rows = 0, tokens = 0;
  std::int64_t cut = 0;      // lost tokens
  std::int64_t dropped = 0;  // whose prompt leaves no room for an answer
  std::int64_t alike = 0;    // chosen and rejected are equal
  std::int64_t diverging = 0;
  std::string first_alike;  // where
};
std::string to_text(const PreferenceReport& report, const PreferenceDataConfig& config);

class PreferenceDataset : public Dataset {
 public:
  // Reads and encodes everything, on all cores. `chat_template` may be null. Throws Error(kInput)
  // naming file and line, or if nothing is left to train on.
  PreferenceDataset(const PreferenceDataConfig& config, const Tokenizer& tokenizer,
                    const ChatTemplate* chat_template);

  // Samples have their own lengths.
  std::int64_t seq_length() const override { return 0; }
  std::int64_t num_samples() const override { return std::ssize(rows_); }
  // Indices beyond the last sample continue with the next epoch.
  TokenSample sample(std::int64_t index) const override;
  // KTO's mismatched completion is that of the row before.
  bool joins() const override { return config_.kind == PreferenceKind::kLabelled; }
  void join(TokenSample& sample, const TokenSample& before) const override;

  const PreferenceReport& report() const { return report_; }
  // Whether all rows have log-probabilities of a reference.
  bool has_reference() const { return rows_.front().ref_chosen_logps.has_value(); }

 private:
  // Applies the limits and counts; false: drop the row.
  bool keep(PreferenceTokens& row, const std::string& place);

  PreferenceDataConfig config_;
  std::vector<PreferenceTokens> rows_;
  PreferenceReport report_;
};

}  // namespace bev
