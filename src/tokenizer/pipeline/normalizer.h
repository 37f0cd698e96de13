// Normalizers of tokenizer.json: applied to the text before pre-tokenization.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/formats/json_value.h"

namespace bev {

struct NormalizedText {
  NormalizedText() = default;
  explicit NormalizedText(std::string original, std::size_t first_character_bytes = 0);

  std::string text;
  // Leading bytes that stem from the first character of the original text; used by Metaspace.
  std::size_t origin_bytes = 0;
  // Limit on growth: a few steps could double a text repeatedly.
  std::size_t most_bytes = 0;

  // Throws Error(kInput) if the text would exceed most_bytes.
  void check_growth(std::size_t bytes) const;
  void become(std::string changed, std::size_t changed_origin_bytes);
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  // Valid UTF-8 in, valid UTF-8 out.
  virtual void apply(NormalizedText& text) const = 0;
};

// Creates the normalizer from its member of tokenizer.json; nullptr for null.
std::unique_ptr<Normalizer> make_normalizer(const JsonValue& json);

}  // namespace bev
