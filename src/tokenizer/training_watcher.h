// Who wants to hear how far the training of a tokenizer is.
#pragma once

#include <cstdint>

namespace bev {

class TrainingWatcher {
 public:
  virtual ~TrainingWatcher() = default;
  // Words are counted: so many bytes of text so far.
  virtual void counted(std::int64_t bytes) = 0;
  // The table of words was full: those that came at most `most` times were dropped.
  virtual void dropped(std::int64_t words, std::int64_t most) = 0;
  // Pairs are merged: so many tokens of those wanted.
  virtual void merged(std::int64_t tokens, std::int64_t wanted) = 0;
};

}  // namespace bev
