// Fill-in-the-middle (FIM): documents are split in three at random positions and reordered so that
// the middle comes last, draw for draw as in Megatron.
//
//   PSM: <prefix> prefix <suffix> suffix <middle> middle
//   SPM: <prefix> <suffix> suffix <middle> prefix middle
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/random/mt19937.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct FimConfig {
  double rate = 0.5;      // fraction of documents that are permuted
  double spm_rate = 0.5;  // fraction of those that use SPM
  // Separator of fragments within a document; fragments are then permuted separately with
  // fragment_rate.
  std::optional<std::int32_t> split_id;
  double fragment_rate = 0;
  std::string no_prefix;  // texts with this prefix are not permuted; "": none
  std::int32_t prefix_id = 0, middle_id = 0, suffix_id = 0, pad_id = 0, eod_id = 0;
};

class FillInMiddle {
 public:
  FillInMiddle(std::shared_ptr<const Tokenizer> tokenizer, const FimConfig& config);

  // Rewrites a sample in place: truncated if it grew, padded if it shrank.
  void apply(std::span<std::int32_t> tokens, RandomState& random) const;

 private:
  using Tokens = std::vector<std::int32_t>;
  void add_document(std::span<const std::int32_t> document, RandomState& random, Tokens& out) const;
  void add_permuted(std::span<const std::int32_t> part, double rate, RandomState& random,
                    Tokens& out) const;
  std::string text_of(std::span<const std::int32_t> tokens) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  FimConfig config_;
};

}  // namespace bev
