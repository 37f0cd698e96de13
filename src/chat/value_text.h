// How Python writes values: str(), repr() and json.dumps().
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/value.h"

namespace bev::jinja {

std::string python_str(const Value& value);
std::string python_repr(const Value& value);
std::string python_repr(const Dict& dict);
std::string python_float(double value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // of one level; absent: all in one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// Error for what JSON cannot have.
std::string json_text(const Value& value, const JsonStyle& style);

// JSON from outside: objects keep their order. Error(kInput) naming `source`.
Value parse_json(std::string_view text, const std::string& source);

}  // namespace bev::jinja
