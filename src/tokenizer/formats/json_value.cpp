#include "tokenizer/formats/json_value.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_check.h"

namespace bev {

using Json = nlohmann::json;

struct JsonDocument::Content {
  Json json;
  std::string source;
};

JsonDocument::JsonDocument(std::string_view text, std::string source)
    : content_(std::make_unique<Content>()) {
  constexpr int kMaxDepth = 64;
  content_->source = std::move(source);
  check_json(text, content_->source, kMaxDepth);
  content_->json = Json::parse(text);
}

JsonDocument::~JsonDocument() = default;
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;

JsonValue JsonDocument::root() const { return {&content_->json, &content_->source}; }

namespace {

const Json& json_of(const void* value) { return *static_cast<const Json*>(value); }

template <class T>
T need(std::optional<T> value, std::string_view key, const std::string& source) {
  BEV_CHECK(value.has_value(), ErrorKind::kInput, source, ": \"", key, "\" is missing");
  return *std::move(value);
}

void check_type(bool good, std::string_view key, std::string_view type, const std::string& source) {
  BEV_CHECK(good, ErrorKind::kInput, source, ": ", quote(key), " is not ", type);
}

}  // namespace

bool JsonValue::is_null() const { return json_of(value_).is_null(); }
bool JsonValue::is_string() const { return json_of(value_).is_string(); }
bool JsonValue::is_array() const { return json_of(value_).is_array(); }
bool JsonValue::is_object() const { return json_of(value_).is_object(); }

JsonValue JsonValue::operator[](std::string_view key) const {
  static const Json null;
  const Json& json = json_of(value_);
  if (!json.is_object()) return {&null, source_};
  auto found = json.find(key);
  return {found == json.end() ? &null : &*found, source_};
}

std::optional<std::string> JsonValue::text(std::string_view key) const {
  JsonValue value = (*this)[key];
  if (value.is_null()) return std::nullopt;
  check_type(value.is_string(), key, "a string", *source_);
  return value.as_text();
}

std::optional<bool> JsonValue::flag(std::string_view key) const {
  JsonValue value = (*this)[key];
  if (value.is_null()) return std::nullopt;
  check_type(json_of(value.value_).is_boolean(), key, "true or false", *source_);
  return json_of(value.value_).get<bool>();
}

std::optional<std::int64_t> JsonValue::integer(std::string_view key) const {
  JsonValue value = (*this)[key];
  if (value.is_null()) return std::nullopt;
  check_type(json_of(value.value_).is_number_integer(), key, "a whole number", *source_);
  return value.as_integer();
}

std::string JsonValue::need_text(std::string_view key) const {
  return need(text(key), key, *source_);
}

bool JsonValue::need_flag(std::string_view key) const { return need(flag(key), key, *source_); }

std::vector<JsonValue> JsonValue::need_array(std::string_view key) const {
  JsonValue value = (*this)[key];
  check_type(value.is_array(), key, "an array", *source_);
  return value.items();
}

std::string JsonValue::as_text() const {
  const Json& json = json_of(value_);
  BEV_CHECK(json.is_string(), ErrorKind::kInput, *source_, ": a string is missing");
  return json.get<std::string>();
}

std::int64_t JsonValue::as_integer() const {
  const Json& json = json_of(value_);
  BEV_CHECK(json.is_number_integer(), ErrorKind::kInput, *source_, ": a whole number is missing");
  return json.get<std::int64_t>();
}

double JsonValue::as_number() const {
  const Json& json = json_of(value_);
  BEV_CHECK(json.is_number(), ErrorKind::kInput, *source_, ": a number is missing");
  return json.get<double>();
}

std::vector<JsonValue> JsonValue::items() const {
  const Json& json = json_of(value_);
  BEV_CHECK(json.is_array(), ErrorKind::kInput, *source_, ": an array is missing");
  std::vector<JsonValue> out;
  for (const Json& item : json) out.push_back({&item, source_});
  return out;
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::members() const {
  const Json& json = json_of(value_);
  BEV_CHECK(json.is_object(), ErrorKind::kInput, *source_, ": an object is missing");
  std::vector<std::pair<std::string, JsonValue>> out;
  for (const auto& [key, value] : json.items()) out.push_back({key, {&value, source_}});
  return out;
}

PatternText read_pattern(const JsonValue& object) {
  JsonValue pattern = object["pattern"];
  if (pattern.is_string()) return {pattern.as_text(), false};
  if (std::optional<std::string> text = pattern.text("Regex")) return {*text, true};
  return {pattern.need_text("String"), false};
}

}  // namespace bev
