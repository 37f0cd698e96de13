// What a tokenizer.json does to text before it is cut into words.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/json_value.h"

namespace bev {

struct NormalizedText {
  NormalizedText() = default;
  explicit NormalizedText(std::string original, std::size_t first_character_bytes = 0);

  std::string text;
  // Bytes at its start that came from the first character of the original text; Metaspace asks.
  std::size_t origin_bytes = 0;
  // A few steps could double a text again and again.
  std::size_t most_bytes = 0;

  // Error(kInput) when the text would be longer than it may become.
  void check_growth(std::size_t bytes) const;
  void become(std::string changed, std::size_t changed_origin_bytes);
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
