// Streaming detokenizer: text from tokens as they arrive, in whole characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace bev {

// Length of `text` without a character truncated at its end.
std::size_t whole_characters(std::string_view text);

// Replaces invalid UTF-8 by U+FFFD, one per stretch that starts a character and does not end it.
std::string replace_invalid_utf8(std::string_view text);

class TextStream {
 public:
  // The tokenizer must outlive the stream. The end of the prompt is the context of the first
  // tokens.
  TextStream(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt);

  // Text that the token adds, limited to whole characters; always valid UTF-8.
  std::string add(std::int32_t token);
  // Text that was held back.
  std::string finish();

 private:
  // Text of ids_ that was not output yet.
  std::string waiting_text();

  const Tokenizer& tokenizer_;
  // Ids from the piece before the last output on: decoding needs some context, but not all of it.
  std::vector<std::int32_t> ids_;
  std::size_t shown_ids_ = 0;  // output, of ids_
  std::string shown_;          // output, of the text of ids_
};

}  // namespace bev
