// BPE trainer: repeatedly merges the most frequent pair of tokens. The merges equal those of
// Hugging Face's BpeTrainer on the same words.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/models/word_table.h"
#include "tokenizer/training/training_watcher.h"

namespace bev {

struct BpeTrainerOptions {
  std::int64_t vocab_size = 32000;
  std::int64_t min_frequency = 1;  // minimum count of a merged pair
  std::vector<std::string> special_tokens;
};

struct TrainedBpe {
  std::vector<std::string> tokens;  // by id: special, bytes (byte-to-unicode), merged tokens
  std::vector<std::pair<std::int32_t, std::int32_t>> merges;  // in merge order
};

// Pairs with equal counts are merged in order of their ids. Returns fewer tokens than requested if
// the words have no more pairs. Consumes the words.
TrainedBpe train_bpe(std::vector<WordTable> words, const BpeTrainerOptions& options,
                     TrainingWatcher& watcher);

}  // namespace bev
