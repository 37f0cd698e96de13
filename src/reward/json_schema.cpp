#include "reward/json_schema.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_check.h"
#include "tokenizer/text/regex.h"

namespace bev {

namespace {

using Json = nlohmann::json;

constexpr int kMostDepth = 64;

constexpr std::array<std::string_view, 19> kKeywords = {"type",
                                                        "enum",
                                                        "const",
                                                        "properties",
                                                        "required",
                                                        "additionalProperties",
                                                        "items",
                                                        "minItems",
                                                        "maxItems",
                                                        "minimum",
                                                        "maximum",
                                                        "exclusiveMinimum",
                                                        "exclusiveMaximum",
                                                        "minLength",
                                                        "maxLength",
                                                        "pattern",
                                                        "anyOf",
                                                        "allOf",
                                                        "oneOf"};
// These say nothing about values.
constexpr std::array<std::string_view, 6> kRemarks = {"$schema",     "$id",     "title",
                                                      "description", "default", "examples"};

bool known(const std::string& name) {
  return name == "not" || std::ranges::find(kKeywords, name) != kKeywords.end() ||
         std::ranges::find(kRemarks, name) != kRemarks.end();
}

void check_schema(const Json& schema, const std::string& where) {
  if (schema.is_boolean()) return;
  BEV_CHECK(schema.is_object(), ErrorKind::kInput, where, ": a schema is an object, true or false");
  for (const auto& [name, value] : schema.items()) {
    BEV_CHECK(known(name), ErrorKind::kInput, where, ": the keyword ", quote(name),
              " is not supported; leave it out");
    const std::string inner = concat(where, ": ", name);
    if (name == "properties") {
      for (const auto& [member, part] : value.items()) check_schema(part, inner + " " + member);
    } else if (name == "items" || name == "additionalProperties" || name == "not") {
      check_schema(value, inner);
    } else if (name == "anyOf" || name == "allOf" || name == "oneOf") {
      for (const Json& part : value) check_schema(part, inner);
    } else if (name == "pattern") {
      Regex(value.get<std::string>(), RegexDialect::kFancy);
    }
  }
}

bool has_type(const Json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  if (type != "integer") return false;
  return value.is_number_integer() ||
         (value.is_number() && value.get<double>() == std::floor(value.get<double>()));
}

bool accepted(const Json& schema, const Json& value);

bool type_accepted(const Json& schema, const Json& value) {
  auto type = schema.find("type");
  if (type == schema.end()) return true;
  if (type->is_string()) return has_type(value, type->get<std::string>());
  return std::ranges::any_of(
      *type, [&](const Json& one) { return has_type(value, one.get<std::string>()); });
}

bool number_accepted(const Json& schema, double value) {
  auto bound = [&](const char* name, auto holds) {
    auto found = schema.find(name);
    return found == schema.end() || holds(value, found->get<double>());
  };
  return bound("minimum", std::greater_equal<>()) && bound("maximum", std::less_equal<>()) &&
         bound("exclusiveMinimum", std::greater<>()) && bound("exclusiveMaximum", std::less<>());
}

bool size_accepted(const Json& schema, const char* least, const char* most, std::size_t size) {
  auto at_least = schema.find(least), at_most = schema.find(most);
  auto count = static_cast<double>(size);
  return (at_least == schema.end() || count >= at_least->get<double>()) &&
         (at_most == schema.end() || count <= at_most->get<double>());
}

bool text_accepted(const Json& schema, const std::string& value) {
  auto points = static_cast<std::size_t>(
      std::ranges::count_if(value, [](char c) { return (c & 0xc0) != 0x80; }));
  if (!size_accepted(schema, "minLength", "maxLength", points)) return false;
  auto pattern = schema.find("pattern");
  if (pattern == schema.end()) return true;
  const Regex regex(pattern->get<std::string>(), RegexDialect::kFancy);
  return Regex::Matches(regex, value).next().has_value();
}

bool object_accepted(const Json& schema, const Json& value) {
  if (auto required = schema.find("required"); required != schema.end()) {
    for (const Json& name : *required) {
      if (!value.contains(name.get<std::string>())) return false;
    }
  }
  auto properties = schema.find("properties"), others = schema.find("additionalProperties");
  for (const auto& [name, member] : value.items()) {
    bool named = properties != schema.end() && properties->contains(name);
    if (named && !accepted((*properties)[name], member)) return false;
    if (!named && others != schema.end() && !accepted(*others, member)) return false;
  }
  return true;
}

bool list_accepted(const Json& schema, const Json& value) {
  if (!size_accepted(schema, "minItems", "maxItems", value.size())) return false;
  auto items = schema.find("items");
  return items == schema.end() ||
         std::ranges::all_of(value, [&](const Json& one) { return accepted(*items, one); });
}

bool combination_accepted(const Json& schema, const Json& value) {
  auto count = [&](const Json& parts) {
    return std::ranges::count_if(parts, [&](const Json& part) { return accepted(part, value); });
  };
  if (auto any = schema.find("anyOf"); any != schema.end() && count(*any) == 0) return false;
  if (auto one = schema.find("oneOf"); one != schema.end() && count(*one) != 1) return false;
  auto all = schema.find("allOf");
  if (all != schema.end() && count(*all) != static_cast<std::ptrdiff_t>(all->size())) return false;
  auto none = schema.find("not");
  return none == schema.end() || !accepted(*none, value);
}

bool accepted(const Json& schema, const Json& value) {
  if (schema.is_boolean()) return schema.get<bool>();
  if (!type_accepted(schema, value)) return false;
  if (auto one = schema.find("const"); one != schema.end() && *one != value) return false;
  auto choices = schema.find("enum");
  if (choices != schema.end() && std::ranges::find(*choices, value) == choices->end()) return false;
  if (value.is_number() && !number_accepted(schema, value.get<double>())) return false;
  if (value.is_string() && !text_accepted(schema, value.get<std::string>())) return false;
  if (value.is_object() && !object_accepted(schema, value)) return false;
  if (value.is_array() && !list_accepted(schema, value)) return false;
  return combination_accepted(schema, value);
}

// The text within a fence of Markdown, or all of it.
std::string_view without_fence(std::string_view text) {
  text = trim(text);
  if (!text.starts_with("```") || !text.ends_with("```") || text.size() < 6) return text;
  std::size_t line = text.find('\n');
  if (line == text.npos) return text;
  return trim(text.substr(line, text.size() - 3 - line));
}

}  // namespace

struct JsonSchema::Content {
  Json schema;
};

JsonSchema::JsonSchema(const std::string& path) {
  Json schema = Json::parse(read_json_object(path, kMostDepth));
  try {
    check_schema(schema, path);
  } catch (const Json::exception&) {
    BEV_FAIL(ErrorKind::kInput, path, ": a keyword has a value of the wrong type");
  }
  content_ = std::make_unique<const Content>(Content{std::move(schema)});
}

JsonSchema::~JsonSchema() = default;

bool JsonSchema::accepts(std::string_view text) const {
  text = without_fence(text);
  try {
    check_json(text, "completion", kMostDepth);
  } catch (const Error&) {
    return false;
  }
  return accepted(content_->schema, Json::parse(text));
}

}  // namespace bev
