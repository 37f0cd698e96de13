// How a tokenizer.json cuts normalized text into words.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_value.h"
#include "tokenizer/piece_cuts.h"
#include "tokenizer/splitters.h"

namespace bev {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Cuts every piece further, and may change its text.
  virtual void apply(Pieces& pieces) const = 0;
};

// From the member of tokenizer.json; nullptr for null. Without `map_bytes` the last ByteLevel
// leaves bytes as they are instead of writing their stand-ins.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonValue& json, bool map_bytes);

// Whether the words are stand-ins of bytes: the last step is ByteLevel.
bool ends_in_byte_level(const JsonValue& json);

// The one splitter that does all the work, if it is that simple.
std::optional<Splitter> only_splitter(const JsonValue& json);

}  // namespace bev
