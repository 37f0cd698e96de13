// What a tokenizer.json does to text before it is cut into words.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/json_value.h"

namespace bev {

struct NormalizedText {
  std::string text;
  // Whether the first character came from the first of the original, which Metaspace asks.
  bool keeps_start = true;
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
