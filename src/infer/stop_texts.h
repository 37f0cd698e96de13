// Finds stop texts in the text of a sequence as its tokens come.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "infer/text_stream.h"

namespace bev {

class StopTexts {
 public:
  // The tokenizer must outlive it. No text is empty.
  StopTexts(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
            std::vector<std::string> texts);

  // The stop text that this token completes; the first in the text, the longest among these.
  // may_stop: false where stop texts are ordinary text.
  std::optional<std::string> add(std::int32_t token, bool may_stop);

 private:
  TextStream stream_;
  std::vector<std::string> texts_;
  std::string end_;  // of the text so far: what may begin a stop text
};

// Position in `text` from which the earliest of the stop texts begins; npos if there is none.
std::size_t find_stop_text(const std::string& text, std::span<const std::string> texts);
// Length of the part of `text` that no longer can become part of a stop text.
std::size_t settled_length(const std::string& text, std::span<const std::string> texts);

}  // namespace bev
