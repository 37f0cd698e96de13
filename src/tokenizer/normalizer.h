// What a tokenizer.json does to text before it is cut into words.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/json_value.h"

namespace bev {

struct NormalizedText {
  std::string text;
  // Bytes at its start that came from the first character of the original text; Metaspace asks.
  std::size_t origin_bytes = 0;
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Changes valid text into valid text.
  virtual void apply(NormalizedText& text) const = 0;
};

// From the member of tokenizer.json; nullptr for null.
std::unique_ptr<Normalizer> make_normalizer(const JsonValue& json);

}  // namespace bev
