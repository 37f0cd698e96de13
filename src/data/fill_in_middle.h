// Fill-in-the-middle: documents are cut in three at random places and put together so that the
// middle comes last, as Megatron does it, draw for draw.
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

#include "data/mt19937.h"
#include "tokenizer/tokenizer.h"

namespace bev {

struct FimConfig {
  double rate = 0.5;      // of documents that are cut
  double spm_rate = 0.5;  // of those that become SPM
  // A token between the fragments of a document, which are then cut one by one at their own rate.
  std::optional<std::int32_t> split_id;
  double fragment_rate = 0;
  std::string no_prefix;  // texts that begin with it are left as they are; "": none
  std::int32_t prefix_id = 0, middle_id = 0, suffix_id = 0, pad_id = 0, eod_id = 0;
};

class FillInMiddle {
 public:
  FillInMiddle(std::shared_ptr<const Tokenizer> tokenizer, const FimConfig& config);

  // Rewrites a sample in place: what grows beyond its length is cut off, what shrinks is padded.
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
