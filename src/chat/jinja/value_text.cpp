#include "chat/jinja/value_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_check.h"
#include "chat/jinja/object.h"
#include "tokenizer/text/unicode.h"

namespace bev::jinja {

namespace {

void append_hex(std::string& out, CodePoint point, int digits) {
  constexpr char kDigits[] = "0123456789abcdef";
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    out.push_back(kDigits[point >> shift & 15]);
  }
}

// Python's str.isprintable for one character.
bool is_printable(CodePoint point) {
  if (point == ' ') return true;
  switch (unicode_table().category(point)) {
    case Category::kCc:
    case Category::kCf:
    case Category::kCs:
    case Category::kCo:
    case Category::kCn:
    case Category::kZl:
    case Category::kZp:
    case Category::kZs:
      return false;
    default:
      return true;
  }
}

void append_repr_point(std::string& out, CodePoint point, char quote_mark) {
  if (point == '\n') {
    out += "\\n";
  } else if (point == '\r') {
    out += "\\r";
  } else if (point == '\t') {
    out += "\\t";
  } else if (point == '\\' || point == static_cast<CodePoint>(quote_mark)) {
    out.push_back('\\');
    out.push_back(static_cast<char>(point));
  } else if (is_printable(point)) {
    append_point(out, point);
  } else if (point < 0x100) {
    append_hex(out += "\\x", point, 2);
  } else if (point < 0x10000) {
    append_hex(out += "\\u", point, 4);
  } else {
    append_hex(out += "\\U", point, 8);
  }
}

TracedText repr_of_text(const TracedText& traced) {
  const std::string& text = traced.text();
  bool double_quotes = text.find('\'') != text.npos && text.find('"') == text.npos;
  std::string_view mark = double_quotes ? "\"" : "'";
  TracedText out(mark);
  for (std::size_t at = 0; at < text.size();) {
    auto [point, bytes] = decode_point(text, at);
    std::string piece;
    append_repr_point(piece, point, mark[0]);
    out.append(piece, traced.origin_at(at));
    at += bytes;
  }
  return out.append(mark);
}

void append_json_point(std::string& out, CodePoint point, bool ensure_ascii) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  std::size_t found =
      point < 0x80 ? kEscaped.find(static_cast<char>(point)) : std::string_view::npos;
  if (found != kEscaped.npos) {
    out.push_back('\\');
    out.push_back(kLetters[found]);
  } else if (point < 0x20 || (ensure_ascii && point > 0x7e && point < 0x10000)) {
    append_hex(out += "\\u", point, 4);
  } else if (ensure_ascii && point >= 0x10000) {
    append_hex(out += "\\u", 0xd800 + ((point - 0x10000) >> 10), 4);
    append_hex(out += "\\u", 0xdc00 + ((point - 0x10000) & 0x3ff), 4);
  } else {
    append_point(out, point);
  }
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  TracedText text;

  void write(const Value& value) {
    if (const TracedText* content = value.traced()) {
      write_text(*content);
    } else if (const Dict* dict = value.dict()) {
      write_dict(*dict);
    } else if (const Sequence* items = value.sequence(); items != nullptr && items->has_items()) {
      write_block("[", "]", items->items, [&](const Value& item) { write(item); });
    } else {
      text.append(scalar(value));
    }
  }

 private:
  static std::string scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (value.is_bool()) return value.boolean() ? "true" : "false";
    if (value.is_int()) return python_str(value);
    BEV_CHECK(value.is_float(), ErrorKind::kInput, "tojson: a value of type ", value.type_name(),
              " cannot be JSON",
              value.is_undefined() ? concat(": ", *value.undefined_cause()) : "");
    double number = value.number();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return python_float(number);
  }

  void write_text(const TracedText& content) {
    text.append("\"");
    for (std::size_t at = 0; at < content.size();) {
      auto [point, bytes] = decode_point(content.text(), at);
      std::string piece;
      append_json_point(piece, point, style_.ensure_ascii);
      text.append(piece, content.origin_at(at));
      at += bytes;
    }
    text.append("\"");
  }

  void write_dict(const Dict& dict) {
    auto items = dict.items;
    if (style_.sort_keys) {
      std::ranges::stable_sort(items, less, [](const auto& item) { return item.first; });
    }
    write_block("{", "}", items, [&](const auto& item) {
      const TracedText* key = item.first.traced();
      write_text(key != nullptr ? *key : TracedText(scalar(item.first)));
      text.append(style_.key_separator);
      write(item.second);
    });
  }

  void new_line() {
    text.append("\n");
    for (int i = 0; i < level_; ++i) text.append(*style_.indent);
  }

  template <class Items, class Write>
  void write_block(std::string_view open, std::string_view close, const Items& items,
                   Write write_item) {
    text.append(open);
    ++level_;
    bool first = true;
    for (const auto& item : items) {
      if (!first) text.append(style_.item_separator);
      first = false;
      if (style_.indent) new_line();
      write_item(item);
    }
    --level_;
    if (style_.indent && !first) new_line();
    text.append(close);
  }

  const JsonStyle& style_;
  int level_ = 0;
};

TracedText repr_of_sequence(const Sequence& sequence) {
  TracedText items;
  for (const Value& item : sequence.items) {
    if (!items.empty()) items.append(", ");
    items.append(traced_repr(item));
  }
  TracedText out;
  switch (sequence.kind) {
    case SequenceKind::kList:
      return out.append("[").append(items).append("]");
    case SequenceKind::kTuple:
      return out.append("(").append(items).append(sequence.items.size() == 1 ? ",)" : ")");
    default:
      out.append(concat("<", Value::sequence({}, sequence.kind).type_name(), " ["));
      return out.append(items).append("]>");
  }
}

TracedText repr_of_dict(const Dict& dict) {
  TracedText out("{");
  for (const auto& [key, value] : dict.items) {
    if (out.size() > 1) out.append(", ");
    out.append(traced_repr(key)).append(": ").append(traced_repr(value));
  }
  return out.append("}");
}

Value from_json(const nlohmann::ordered_json& json, const std::string& source) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number()) {
    BEV_CHECK(!json.is_number_unsigned() || json.get<std::uint64_t>() <= INT64_MAX,
              ErrorKind::kInput, source, ": the number ", json.get<std::uint64_t>(),
              " has more than 64 bits");
    return json.get<std::int64_t>();
  }
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    List items;
    for (const auto& item : json) items.push_back(from_json(item, source));
    return Value::list(std::move(items));
  }
  Dict dict;
  for (const auto& [key, item] : json.items()) {
    dict.items.emplace_back(key, from_json(item, source));
  }
  return dict;
}

}  // namespace

// Shortest round-trip digits, with an exponent where Python uses one.
std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  double size = std::abs(value);
  bool exponent = size != 0 && (size < 1e-4 || size >= 1e16);
  auto format = exponent ? std::chars_format::scientific : std::chars_format::fixed;
  auto end = std::to_chars(buffer, buffer + sizeof buffer, value, format).ptr;
  std::string text(buffer, end);
  if (!exponent && text.find('.') == text.npos) text += ".0";
  return text;
}

TracedText traced_repr(const Value& value) {
  if (const TracedText* text = value.traced()) return repr_of_text(*text);
  if (value.is_undefined()) return "Undefined";
  // Objects may contain themselves: nested ones are only named.
  if (Object* object = value.object()) return concat("<", object->type_name(), ">");
  return traced_str(value);
}

TracedText traced_str(const Value& value) {
  if (const TracedText* text = value.traced()) return *text;
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (value.is_bool()) return value.boolean() ? "True" : "False";
  if (value.is_int()) return concat(*value.integer());
  if (value.is_float()) return python_float(value.number());
  if (const Dict* dict = value.dict()) return repr_of_dict(*dict);
  if (const Sequence* sequence = value.sequence()) return repr_of_sequence(*sequence);
  return value.object()->text();
}

std::string python_str(const Value& value) { return traced_str(value).text(); }
std::string python_repr(const Value& value) { return traced_repr(value).text(); }
std::string python_repr(const Dict& dict) { return repr_of_dict(dict).text(); }

TracedText json_text(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value);
  return std::move(writer.text);
}

Value parse_json(std::string_view text, const std::string& source) {
  constexpr int kMaxDepth = 100;
  check_json(text, source, kMaxDepth);
  return from_json(nlohmann::ordered_json::parse(text), source);
}

}  // namespace bev::jinja
