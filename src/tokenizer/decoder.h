// How a tokenizer.json makes text of tokens.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_value.h"

namespace bev {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Changes, joins or drops the tokens' texts. What is then joined is the text.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

// From the member of tokenizer.json; nullptr for null. When ByteLevel is the last step, its bytes
// are left as they are: a character may be cut.
std::unique_ptr<Decoder> make_decoder(const JsonValue& json);

// ByteLevel by itself.
std::unique_ptr<Decoder> make_byte_level_decoder();

// English spacing: " ." becomes "." and the like.
std::string clean_up_spaces(std::string text);

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace bev
