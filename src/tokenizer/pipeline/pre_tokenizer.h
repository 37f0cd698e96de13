// Pre-tokenizers of tokenizer.json: split normalized text into words.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/formats/json_value.h"
#include "tokenizer/pipeline/piece_cuts.h"
#include "tokenizer/pipeline/splitters.h"

namespace bev {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Splits every piece further, and may change its text.
  virtual void apply(Pieces& pieces) const = 0;
};

// Creates the pre-tokenizer from its member of tokenizer.json; nullptr for null. Without
// `map_bytes`, a final ByteLevel step keeps raw bytes instead of mapping them to characters.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonValue& json, bool map_bytes);

// Words are the matches of a regular expression, and the text between them.
std::unique_ptr<PreTokenizer> make_regex_pre_tokenizer(const std::string& pattern,
                                                       RegexDialect dialect);

// True if the last step is ByteLevel, so that words consist of byte-to-unicode characters.
bool ends_in_byte_level(const JsonValue& json);

// The single hand-written splitter that is equivalent to the pre-tokenizer, if there is one.
std::optional<Splitter> only_splitter(const JsonValue& json);

}  // namespace bev
