// Text from tokens as they come, in whole characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace bev {

// Bytes of `text` up to a character that its end cuts.
std::size_t whole_characters(std::string_view text);

// Bytes that are not UTF-8 become U+FFFD, one for each stretch that starts a character and does not
// end it.
std::string replace_invalid_utf8(std::string_view text);

class TextStream {
 public:
  // The tokenizer must outlive it. The end of the prompt tells the tokenizer what goes before.
  TextStream(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt);

  // What the token adds, as far as its characters are whole; always valid UTF-8.
  std::string add(std::int32_t token);
  // What was held back.
  std::string finish();

 private:
  // The text of ids_ that was not shown.
  std::string waiting_text();

  const Tokenizer& tokenizer_;
  // Ids from the one before the last shown on: decoding needs what goes before, not all of it.
  std::vector<std::int32_t> ids_;
  std::size_t shown_ids_ = 0;  // of ids_
  std::string shown_;          // of the text of ids_
};

}  // namespace bev
