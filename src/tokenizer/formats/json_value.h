// Type-checked access to untrusted JSON: every error is an Error(kInput) that names the file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bev {

// View of a value in a JsonDocument, which must outlive it.
class JsonValue {
 public:
  bool is_null() const;
  bool is_string() const;
  bool is_array() const;
  bool is_object() const;

  // Member of an object; null if there is none or this is not an object.
  JsonValue operator[](std::string_view key) const;
  // Optional members: nullopt if absent or null; throw if of another type.
  std::optional<std::string> text(std::string_view key) const;
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::int64_t> integer(std::string_view key) const;
  // Required members.
  std::string need_text(std::string_view key) const;
  bool need_flag(std::string_view key) const;
  std::vector<JsonValue> need_array(std::string_view key) const;

  // This value, converted.
  std::string as_text() const;
  std::int64_t as_integer() const;
  double as_number() const;
  std::vector<JsonValue> items() const;
  std::vector<std::pair<std::string, JsonValue>> members() const;

  const std::string& source() const { return *source_; }

 private:
  friend class JsonDocument;
  JsonValue(const void* value, const std::string* source) : value_(value), source_(source) {}

  const void* value_;
  const std::string* source_;
};

class JsonDocument {
 public:
  // `source` is the name in messages.
  JsonDocument(std::string_view text, std::string source);
  ~JsonDocument();
  JsonDocument(JsonDocument&&) noexcept;

  JsonValue root() const;

 private:
  struct Content;
  std::unique_ptr<Content> content_;
};

// Pattern of Split and Replace: {"String": ..} or {"Regex": ..}.
struct PatternText {
  std::string text;
  bool regex = false;
};
PatternText read_pattern(const JsonValue& object);

}  // namespace bev
