// Multithreaded word counting in bounded memory. Counts, and the words dropped when memory is
// short, do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/models/word_table.h"
#include "tokenizer/training/training_watcher.h"

namespace bev {

struct WordCounterOptions {
  std::string pre_tokenizer;  // member of tokenizer.json
  int workers = 1;
  std::size_t max_bytes = std::size_t{1} << 32;  // limit for the words and for merging them later
  std::size_t round_bytes = std::size_t{16} << 20;  // text counted per round
};

class WordCounter {
 public:
  // Throws Error(kInput) if the pre-tokenizer is invalid. The watcher must outlive the counter.
  WordCounter(const WordCounterOptions& options, TrainingWatcher& watcher);
  ~WordCounter();
  WordCounter(const WordCounter&) = delete;
  WordCounter& operator=(const WordCounter&) = delete;

  // Adds the next text of a document. No word crosses document boundaries. A long document is split
  // into pieces, before a line that begins with a letter if possible, independent of how it was
  // divided into texts.
  void add_text(std::string_view text, bool ends_document = true);

  // Returns the words of all texts, in disjoint parts, and clears the counter.
  std::vector<WordTable> finish();

 private:
  struct State;

  void add_piece(std::string_view piece);
  void count_round();
  void drop_rare_words();

  std::unique_ptr<State> state_;
};

}  // namespace bev
