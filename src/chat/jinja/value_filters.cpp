// Jinja filters of one value.
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/markup.h"
#include "chat/jinja/builtins.h"
#include "chat/jinja/operators.h"
#include "chat/jinja/python_text.h"
#include "chat/jinja/text_format.h"
#include "chat/jinja/value_text.h"
#include "tokenizer/text/unicode.h"

namespace bev::jinja {

namespace {

template <std::string (*function)(std::string_view)>
Value text_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters("the filter", arguments, {});
  TracedText text = traced_str(subject);
  return text_value(runtime, text.changed(function(text.text())));
}

Value same_text(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters("the filter", arguments, {});
  return text_value(runtime, traced_str(subject));
}

// Words end only at spaces, hyphens and opening brackets.
std::string title_words(std::string_view text) {
  std::string out;
  Points points = to_points(text);
  auto ends_word = [](char32_t point) {
    return is_space(point) || Points(U"-({[<").find(point) != Points::npos;
  };
  for (std::size_t begin = 0; begin < points.size();) {
    std::size_t end = begin + 1;
    while (end < points.size() && ends_word(points[end]) == ends_word(points[begin])) ++end;
    out += to_upper(from_points(points.substr(begin, 1)));
    out += to_lower(from_points(points.substr(begin + 1, end - begin - 1)));
    begin = end;
  }
  return out;
}

Value default_filter(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters given("default", arguments, {"default_value", "boolean"});
  bool missing = subject.is_undefined() || (given.flag(1, false) && !subject.truth());
  return missing ? given.get(0, "") : subject;
}

Value trim_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("trim", arguments, {"chars"});
  TracedText text = traced_str(subject);
  if (!given.has(0) || given[0].is_none()) {
    return text_value(runtime, text.part(strip(text.text(), Side::kBoth)));
  }
  return text_value(runtime, text.part(strip(text.text(), Side::kBoth, given.text(0, ""))));
}

Value replace_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("replace", arguments, {"old", "new", "count"});
  Arguments texts{{traced_str(given[0]), traced_str(given[1])}, {}};
  if (given.has(2) && !given[2].is_none()) texts.positional.push_back(given[2]);
  Value text = traced_str(subject);
  return find_method(text, "replace")(runtime, text, texts);
}

Value center_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("center", arguments, {"width"});
  Value text = traced_str(subject);
  return find_method(text, "center")(runtime, text, {{given.integer(0, 80)}, {}});
}

Value format_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  if (arguments.named.empty()) {
    return text_value(runtime,
                      percent_format(traced_str(subject), Value::tuple(arguments.positional)));
  }
  Dict named;
  for (const auto& [name, value] : arguments.named) named.set(name, value);
  return text_value(runtime, percent_format(traced_str(subject), named));
}

// Text operand of a filter without arguments.
const TracedText& need_text(const Value& subject) {
  need_defined(subject);
  BEV_CHECK(subject.is_string(), ErrorKind::kInput, "the filter needs a str, not a ",
            subject.type_name());
  return *subject.traced();
}

// Indentation of one level: a number of spaces, or the text itself.
std::string indent_text(const Value& width) {
  constexpr std::int64_t kMost = 1024;
  if (const std::string* text = width.string()) return *text;
  BEV_CHECK(width.integer().has_value(), ErrorKind::kInput, "an indent is an int or a str, not a ",
            width.type_name());
  return std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(*width.integer(), 0, kMost)),
                     ' ');
}

Value indent_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("indent", arguments, {"width", "first", "blank"});
  std::string indent = indent_text(given.get(0, 4));
  TracedText text = TracedText(need_text(subject)).append("\n");
  TracedText out;
  if (given.flag(1, false)) out.append(indent);
  bool first = true;
  for (std::string_view line : split_lines(text.text(), false)) {
    bool indented = !first && (given.flag(2, false) || !line.empty());
    runtime.spend(line.size() + indent.size());
    out.append(concat(first ? "" : "\n", indented ? indent : "")).append(text.part(line));
    first = false;
  }
  return out;
}

Value truncate_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const TracedText& subject_text = need_text(subject);
  Points text = to_points(subject_text.text()), end = to_points(given.text(2, "..."));
  auto size = static_cast<std::int64_t>(text.size());
  std::int64_t most = given.integer(0, 255);
  auto end_size = static_cast<std::int64_t>(end.size());
  BEV_CHECK(most >= end_size, ErrorKind::kInput, "truncate: the length ", most,
            " is below that of the end");
  if (size <= most + given.integer(3, 5)) return text_value(runtime, subject_text);
  text.resize(static_cast<std::size_t>(most - end_size));
  std::size_t space = text.rfind(U' ');
  if (!given.flag(1, false) && space != Points::npos) text.resize(space);
  TracedText kept = subject_text.substr(0, from_points(text).size());
  return text_value(runtime, kept.append(from_points(end)));
}

Value word_count_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters("wordcount", arguments, {});
  std::string text = python_str(subject);
  runtime.spend(text.size());
  std::int64_t words = 0;
  bool in_word = false;
  for (char32_t point : to_points(text)) {
    bool letter = point == '_' || has_trait(point, trait::kLetter | trait::kNumber);
    words += letter && !in_word ? 1 : 0;
    in_word = letter;
  }
  return words;
}

Value length_filter(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters("length", arguments, {});
  return length_of(subject);
}

// Parses the whole text as a number, ignoring surrounding white space.
template <class T, class... Options>
std::optional<T> read_number(std::string_view text, Options... options) {
  text = strip(text, Side::kBoth);
  if (text.starts_with('+')) text.remove_prefix(1);
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    bool between = text[i] == '_' && i > 0 && i + 1 < text.size() && text[i - 1] != '_';
    if (!between) plain.push_back(text[i]);
  }
  T value{};
  auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value, options...);
  if (error != std::errc() || end != plain.data() + plain.size()) return std::nullopt;
  return value;
}

// Parses an integer of base 2 to 36, with Python's prefix for that base.
std::optional<std::int64_t> read_whole(std::string_view text, std::int64_t base) {
  BEV_CHECK(base >= 2 && base <= 36, ErrorKind::kInput, "int: there are no numbers of base ", base);
  text = strip(text, Side::kBoth);
  constexpr std::pair<std::int64_t, std::string_view> kPrefixes[] = {
      {16, "0x"}, {16, "0X"}, {8, "0o"}, {8, "0O"}, {2, "0b"}, {2, "0B"}};
  for (auto [of_base, prefix] : kPrefixes) {
    if (base == of_base && text.starts_with(prefix)) text.remove_prefix(prefix.size());
  }
  return read_number<std::int64_t>(text, static_cast<int>(base));
}

std::optional<std::int64_t> whole_part(double value) {
  if (!(std::abs(value) < 0x1p63)) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

Value int_filter(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters given("int", arguments, {"default", "base"});
  need_defined(subject);
  Value fallback = given.get(0, 0);
  if (subject.integer()) return *subject.integer();
  std::optional<std::int64_t> whole;
  if (subject.is_float()) whole = whole_part(subject.number());
  if (const std::string* text = subject.string()) {
    whole = read_whole(*text, given.integer(1, 10));
    std::optional<double> real = read_number<double>(*text);
    if (!whole && real) whole = whole_part(*real);
  }
  return whole ? Value(*whole) : fallback;
}

Value float_filter(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters given("float", arguments, {"default"});
  need_defined(subject);
  if (subject.is_number()) return subject.number();
  std::optional<double> real;
  if (const std::string* text = subject.string()) real = read_number<double>(*text);
  return real ? Value(*real) : given.get(0, 0.0);
}

Value round_filter(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters given("round", arguments, {"precision", "method"});
  std::int64_t precision = given.integer(0, 0);
  std::string method = given.text(1, "common");
  need_defined(subject);
  BEV_CHECK(subject.is_number() && std::abs(precision) <= 300, ErrorKind::kInput, "round: a ",
            subject.type_name(), " to ", precision, " places is not possible");
  double factor = std::pow(10.0, static_cast<double>(precision)), value = subject.number();
  if (method == "ceil") return std::ceil(value * factor) / factor;
  if (method == "floor") return std::floor(value * factor) / factor;
  BEV_CHECK(method == "common", ErrorKind::kInput, "round: the method is common, ceil or floor");
  if (subject.integer() && precision >= 0) return *subject.integer();
  if (precision < 0) {
    double rounded = std::nearbyint(value * factor) / factor;
    return subject.integer() ? Value(static_cast<std::int64_t>(rounded)) : Value(rounded);
  }
  std::string digits = fmt::format("{:.{}f}", value, precision);
  return read_number<double>(digits).value_or(value);
}

Value abs_filter(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters("abs", arguments, {});
  need_defined(subject);
  BEV_CHECK(subject.is_number(), ErrorKind::kInput, "abs: a ", subject.type_name(),
            " has no absolute value");
  bool negative = subject.number() < 0;
  return negative ? negate(subject) : subject.is_bool() ? Value(*subject.integer()) : subject;
}

Value json_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = given.flag(0, false);
  style.sort_keys = given.flag(3, false);
  if (given.has(1) && !given[1].is_none()) {
    style.indent = indent_text(given[1]);
    style.item_separator.pop_back();  // without the trailing space
  }
  if (given.has(2) && !given[2].is_none()) {
    List parts = items_of(runtime, given[2]);
    BEV_CHECK(parts.size() == 2 && parts[0].is_string() && parts[1].is_string(), ErrorKind::kInput,
              "tojson: separators are two strings, as in (',', ':')");
    style.item_separator = *parts[0].string();
    style.key_separator = *parts[1].string();
  }
  return text_value(runtime, json_text(subject, style));
}

constexpr std::array kFilters = {
    BuiltinEntry{"abs", abs_filter},
    BuiltinEntry{"capitalize", text_filter<capitalize>},
    BuiltinEntry{"center", center_filter},
    BuiltinEntry{"count", length_filter},
    BuiltinEntry{"d", default_filter},
    BuiltinEntry{"default", default_filter},
    BuiltinEntry{"e", text_filter<escape_markup>},
    BuiltinEntry{"escape", text_filter<escape_markup>},
    BuiltinEntry{"float", float_filter},
    BuiltinEntry{"forceescape", text_filter<escape_markup>},
    BuiltinEntry{"format", format_filter},
    BuiltinEntry{"indent", indent_filter},
    BuiltinEntry{"int", int_filter},
    BuiltinEntry{"length", length_filter},
    BuiltinEntry{"lower", text_filter<to_lower>},
    BuiltinEntry{"replace", replace_filter},
    BuiltinEntry{"round", round_filter},
    BuiltinEntry{"safe", same_text},
    BuiltinEntry{"string", same_text},
    BuiltinEntry{"title", text_filter<title_words>},
    BuiltinEntry{"tojson", json_filter},
    BuiltinEntry{"trim", trim_filter},
    BuiltinEntry{"truncate", truncate_filter},
    BuiltinEntry{"upper", text_filter<to_upper>},
    BuiltinEntry{"wordcount", word_count_filter},
};

}  // namespace

std::span<const BuiltinEntry> value_filters() { return kFilters; }

}  // namespace bev::jinja
