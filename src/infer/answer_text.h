// The text of a sequence as its tokens come: in whole characters, up to a stop text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "infer/text_stream.h"

namespace bev {

class AnswerText {
 public:
  // The tokenizer must outlive it.
  AnswerText(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
             std::vector<std::string> stop);

  // The text that the token settles: what may still become a stop text is held back. may_stop:
  // false before the least number of tokens, where stop texts are ordinary text.
  std::string add(std::int32_t token, bool may_stop = true);
  // The rest, at the end of the sequence: all that was held back, or what precedes `stop_text`, the
  // one that ended it.
  std::string finish(const std::string& stop_text);

 private:
  TextStream stream_;
  std::vector<std::string> stop_;
  std::string held_;
};

}  // namespace bev
