// Counts the words of texts on several threads, in bounded memory. What is counted, and what is
// dropped when memory is short, does not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/training_watcher.h"
#include "tokenizer/word_table.h"

namespace bev {

struct WordCounterOptions {
  std::string pre_tokenizer;  // the member of tokenizer.json that cuts text into words
  int workers = 1;
  std::size_t max_bytes = std::size_t{1} << 32;     // of the words, and of merging them later
  std::size_t round_bytes = std::size_t{16} << 20;  // of text that is counted at a time
};

class WordCounter {
 public:
  // Error(kInput) when the pre-tokenizer is not understood. The watcher must outlive the counter.
  WordCounter(const WordCounterOptions& options, TrainingWatcher& watcher);
  ~WordCounter();
  WordCounter(const WordCounter&) = delete;
  WordCounter& operator=(const WordCounter&) = delete;

  // The next text of a document; no word goes beyond the ends of one. A long document is cut in
  // pieces, where a line begins with a letter if it can be; where its texts end does not matter.
  void add_text(std::string_view text, bool ends_document = true);

  // The words of all texts, in parts that share none; nothing is left here.
  std::vector<WordTable> finish();

 private:
  struct State;

  void add_piece(std::string_view piece);
  void count_round();
  void drop_rare_words();

  std::unique_ptr<State> state_;
};

}  // namespace bev
