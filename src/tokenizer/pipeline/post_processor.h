// Post-processors of tokenizer.json: special tokens around a text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tokenizer/formats/json_value.h"

namespace bev {

class PostProcessor {
 public:
  PostProcessor() = default;
  explicit PostProcessor(const JsonValue& json);
  PostProcessor(std::vector<std::int32_t> before, std::vector<std::int32_t> after);

  void add_special_tokens(std::vector<std::int32_t>& ids) const;

 private:
  // One item of a template: special token ids, or the position of the encoded text ($A).
  struct Part {
    bool text = false;
    std::vector<std::int32_t> ids;
  };
  using Template = std::vector<Part>;

  void add_template(const JsonValue& json);
  void add_pair(const JsonValue& json);

  std::vector<Template> templates_;  // applied in sequence
};

}  // namespace bev
