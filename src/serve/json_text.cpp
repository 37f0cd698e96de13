#include "serve/json_text.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace bev {

void JsonText::separate() {
  if (comma_) out_ += ',';
  comma_ = true;
}

JsonText& JsonText::open(char bracket) {
  separate();
  out_ += bracket;
  comma_ = false;
  return *this;
}

JsonText& JsonText::close(char bracket) {
  out_ += bracket;
  comma_ = true;
  return *this;
}

JsonText& JsonText::key(std::string_view name) {
  text(name);
  out_ += ':';
  comma_ = false;
  return *this;
}

JsonText& JsonText::text(std::string_view value) {
  separate();
  out_ += '"';
  std::size_t plain = 0;  // from here on nothing needs an escape
  for (std::size_t i = 0; i < value.size(); ++i) {
    auto c = static_cast<unsigned char>(value[i]);
    if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) continue;
    out_.append(value, plain, i - plain);
    plain = i + 1;
    switch (c) {
      case '"':
        out_ += "\\\"";
        break;
      case '\\':
        out_ += "\\\\";
        break;
      case '\n':
        out_ += "\\n";
        break;
      case '\r':
        out_ += "\\r";
        break;
      case '\t':
        out_ += "\\t";
        break;
      default:
        fmt::format_to(std::back_inserter(out_), "\\u{:04x}", c);
    }
  }
  out_.append(value, plain);
  out_ += '"';
  return *this;
}

JsonText& JsonText::number(double value) {
  if (!std::isfinite(value)) return null();
  separate();
  // The shortest text that reads back as the same number; a whole one stays a float.
  std::size_t begin = out_.size();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  if (out_.find_first_not_of("-0123456789", begin) == std::string::npos) out_ += ".0";
  return *this;
}

JsonText& JsonText::integer(std::int64_t value) {
  separate();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  return *this;
}

JsonText& JsonText::json(std::string_view value) {
  separate();
  out_ += value;
  return *this;
}

}  // namespace bev
