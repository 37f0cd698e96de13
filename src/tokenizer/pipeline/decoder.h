// Decoders of tokenizer.json: tokens to text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/formats/json_value.h"

namespace bev {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Changes, merges or drops token texts; their concatenation is the decoded text.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

// Creates the decoder from its member of tokenizer.json; nullptr for null. If ByteLevel is the last
// step, its bytes are returned unchanged and may end inside a character.
std::unique_ptr<Decoder> make_decoder(const JsonValue& json);

// The ByteLevel decoder alone.
std::unique_ptr<Decoder> make_byte_level_decoder();

// Hugging Face's clean_up_tokenization: " ." becomes "." and so on.
std::string clean_up_spaces(std::string text);

std::string replace_all(std::string_view text, std::string_view from, std::string_view to);

}  // namespace bev
