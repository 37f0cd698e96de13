// JSON Schema, the part of it that says what a value looks like: type, enum, const, properties,
// required, additionalProperties, items, minItems, maxItems, minimum, maximum, exclusiveMinimum,
// exclusiveMaximum, minLength, maxLength, pattern, anyOf, allOf, oneOf, not.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace bev {

class JsonSchema {
 public:
  // Throws Error(kInput) naming the file and the first keyword that is not one of these.
  explicit JsonSchema(const std::string& path);
  ~JsonSchema();

  // Whether the text is one JSON value of the schema; a fence of Markdown around it is allowed.
  bool accepts(std::string_view text) const;

 private:
  struct Content;
  std::unique_ptr<const Content> content_;
};

}  // namespace bev
