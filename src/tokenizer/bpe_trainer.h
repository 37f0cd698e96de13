// Finds the merges of byte-level BPE: the pair of tokens that comes most often becomes a token,
// again and again. The merges are those of Hugging Face's BpeTrainer on the same words.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/training_watcher.h"
#include "tokenizer/word_table.h"

namespace bev {

struct BpeTrainerOptions {
  std::int64_t vocab_size = 32000;
  std::int64_t min_frequency = 1;  // of a pair that is merged
  std::vector<std::string> special_tokens;
};

struct TrainedBpe {
  std::vector<std::string> tokens;  // by id: special tokens, bytes (as stand-ins), merged tokens
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  // in their order
};

// Pairs of equal counts are taken by their ids, the smallest first. Fewer tokens than wanted come
// out when the words have no more pairs. The words are used up.
TrainedBpe train_bpe(std::vector<WordTable> words, const BpeTrainerOptions& options,
                     TrainingWatcher& watcher);

}  // namespace bev
