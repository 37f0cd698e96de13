// Progress callbacks of tokenizer training.
#pragma once

#include <cstdint>

namespace bev {

class TrainingWatcher {
 public:
  virtual ~TrainingWatcher() = default;
  // Word counting: bytes of text so far.
  virtual void counted(std::int64_t bytes) = 0;
  // The word table was full: `words` words with at most `most` occurrences were dropped.
  virtual void dropped(std::int64_t words, std::int64_t most) = 0;
  // Merging: tokens so far, of those wanted.
  virtual void merged(std::int64_t tokens, std::int64_t wanted) = 0;
};

}  // namespace bev
