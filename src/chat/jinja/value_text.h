// Python's text forms of values: str(), repr() and json.dumps().
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat/jinja/value.h"

namespace bev::jinja {

std::string python_str(const Value& value);
std::string python_repr(const Value& value);
std::string python_repr(const Dict& dict);
// The same, with the origins of the texts inside.
TracedText traced_str(const Value& value);
TracedText traced_repr(const Value& value);
std::string python_float(double value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // one level; nullopt: everything on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// Throws Error for values that JSON cannot represent.
TracedText json_text(const Value& value, const JsonStyle& style);

// Parses untrusted JSON; objects keep their order. Throws Error(kInput) naming `source`.
Value parse_json(std::string_view text, const std::string& source);

}  // namespace bev::jinja
