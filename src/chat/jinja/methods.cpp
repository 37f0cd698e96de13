// Methods of str, dict, list and tuple that Jinja's sandbox permits.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json_check.h"
#include "chat/jinja/builtins.h"
#include "chat/jinja/operators.h"
#include "chat/jinja/python_text.h"
#include "chat/jinja/text_format.h"
#include "chat/jinja/value_text.h"
#include "tokenizer/text/unicode.h"

namespace bev::jinja {

namespace {

const std::string& text_of(const Value& subject) { return *subject.string(); }
const TracedText& traced_of(const Value& subject) { return *subject.traced(); }

template <std::string (*function)(std::string_view)>
Value case_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters("a change of case", arguments, {});
  return text_value(runtime, traced_of(subject).changed(function(text_of(subject))));
}

template <Side side>
Value strip_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("strip", arguments, {"chars"});
  const TracedText& text = traced_of(subject);
  if (!given.has(0) || given[0].is_none()) {
    return text_value(runtime, text.part(strip(text.text(), side)));
  }
  return text_value(runtime, text.part(strip(text.text(), side, given.text(0, ""))));
}

// `parts` are parts of the subject.
Value list_of(Runtime& runtime, const Value& subject, const std::vector<std::string_view>& parts) {
  List items;
  for (std::string_view part : parts) items.push_back(traced_of(subject).part(part));
  return list_value(runtime, std::move(items));
}

template <Side from>
Value split_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("split", arguments, {"sep", "maxsplit"});
  std::int64_t most = given.integer(1, -1);
  runtime.spend(text_of(subject).size());
  if (!given.has(0) || given[0].is_none()) {
    return list_of(runtime, subject, split_words(text_of(subject), most, from));
  }
  std::string separator = given.text(0, "");
  BEV_CHECK(!separator.empty(), ErrorKind::kInput, "split(): the separator is empty");
  return list_of(runtime, subject, split_at(text_of(subject), separator, most, from));
}

Value split_lines_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("splitlines", arguments, {"keepends"});
  return list_of(runtime, subject, split_lines(text_of(subject), given.flag(0, false)));
}

Value replace_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("replace", arguments, {"old", "new", "count"});
  std::string from = given[0].is_none() ? "" : given.text(0, "");
  const TracedText& text = traced_of(subject);
  std::size_t places = from.empty() ? text.size() + 1 : text.size() / from.size();
  TracedText to = (given[1], given.traced(1, ""));
  runtime.spend(text.weight() + (to.weight() > from.size() ? places * to.weight() : 0));
  TracedText out;
  std::size_t done = 0;  // bytes
  for (std::size_t at : places_of(text.text(), from, given.integer(2, -1))) {
    out.append(text.substr(done, at - done)).append(to);
    done = at + from.size();
  }
  return out.append(text.substr(done));
}

// startswith and endswith, with a text or a tuple of texts.
template <bool start>
Value ends_method(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters given(start ? "startswith" : "endswith", arguments, {"text", "start", "end"});
  BEV_CHECK(!given.has(1), ErrorKind::kInput, "startswith() and endswith() with positions are not ",
            "supported; use a slice");
  auto fits = [&](const Value& part) {
    BEV_CHECK(part.is_string(), ErrorKind::kInput, "startswith() and endswith() need a str or a ",
              "tuple of them, not a ", part.type_name());
    return start ? text_of(subject).starts_with(*part.string())
                 : text_of(subject).ends_with(*part.string());
  };
  need_defined(given[0]);
  const Sequence* several = given[0].sequence();
  if (several && several->kind == SequenceKind::kTuple) {
    return std::ranges::any_of(several->items, fits);
  }
  return fits(given[0]);
}

// Position of a text between two bounds, in code points; -1: not found.
template <bool last>
std::int64_t find_in(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("find", arguments, {"sub", "start", "end"});
  Points text = to_points(text_of(subject)), wanted = to_points((given[0], given.text(0, "")));
  runtime.spend(text.size());
  auto size = static_cast<std::int64_t>(text.size());
  auto place = [&](std::size_t at, std::int64_t fallback) {
    std::int64_t value = given.has(at) && !given[at].is_none() ? given.integer(at, 0) : fallback;
    return std::max<std::int64_t>(value < 0 ? value + size : value, 0);
  };
  std::int64_t begin = place(1, 0), end = std::min(place(2, size), size);
  if (begin > end) return -1;
  auto first = static_cast<std::size_t>(begin);
  Points part = text.substr(first, static_cast<std::size_t>(end) - first);
  std::size_t found = last ? part.rfind(wanted) : part.find(wanted);
  return found == Points::npos ? -1 : begin + static_cast<std::int64_t>(found);
}

template <bool last>
Value position_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  return find_in<last>(runtime, subject, arguments);
}

template <bool last>
Value index_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  std::int64_t found = find_in<last>(runtime, subject, arguments);
  BEV_CHECK(found >= 0, ErrorKind::kInput, "index(): the text is not found");
  return found;
}

Value count_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("count", arguments, {"value"});
  std::int64_t count = 0;
  if (const std::string* text = subject.string()) {
    std::string wanted = (given[0], given.text(0, ""));
    runtime.spend(text->size());
    if (wanted.empty()) return length_of(subject) + 1;
    for (auto at = text->find(wanted); at != text->npos;
         at = text->find(wanted, at + wanted.size())) {
      ++count;
    }
    return count;
  }
  return std::ranges::count_if(subject.sequence()->items,
                               [&](const Value& item) { return equal(item, given[0]); });
}

Value join_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("join", arguments, {"items"});
  TracedText out;
  bool first = true;
  for (const Value& item : items_of(runtime, given[0])) {
    BEV_CHECK(item.is_string(), ErrorKind::kInput, "join(): an item is a ", item.type_name(),
              ", not a str");
    runtime.spend(item.traced()->weight() + traced_of(subject).weight());
    if (!first) out.append(traced_of(subject));
    out.append(*item.traced());
    first = false;
  }
  return out;
}

Value format_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  return text_value(runtime, brace_format(traced_of(subject), arguments));
}

template <bool last>
Value partition_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("partition", arguments, {"sep"});
  TracedText separator = (given[0], given.traced(0, ""));
  BEV_CHECK(!separator.empty(), ErrorKind::kInput, "partition(): the separator is empty");
  const TracedText& text = traced_of(subject);
  std::size_t found =
      last ? text.text().rfind(separator.text()) : text.text().find(separator.text());
  if (found == std::string::npos) {
    return list_value(runtime, last ? List{"", "", text} : List{text, "", ""},
                      SequenceKind::kTuple);
  }
  return list_value(runtime,
                    {text.substr(0, found), separator, text.substr(found + separator.size())},
                    SequenceKind::kTuple);
}

template <bool prefix>
Value remove_end_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given(prefix ? "removeprefix" : "removesuffix", arguments, {"text"});
  std::string_view text = text_of(subject);
  std::string end = (given[0], given.text(0, ""));
  if (prefix && text.starts_with(end)) text.remove_prefix(end.size());
  if (!prefix && text.ends_with(end)) text.remove_suffix(end.size());
  return text_value(runtime, traced_of(subject).part(text));
}

enum class Align : std::uint8_t { kLeft, kRight, kCenter, kZeros };

template <Align align>
Value pad_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("a padding method", arguments, {"width", "fillchar"});
  std::int64_t missing = (given[0], given.integer(0, 0)) - length_of(subject);
  const TracedText& text = traced_of(subject);
  if (missing <= 0) return subject;
  std::string fill = align == Align::kZeros ? "0" : given.text(1, " ");
  BEV_CHECK(count_points(fill) == 1, ErrorKind::kInput, "padding needs one character, not ",
            quote(fill));
  runtime.spend(static_cast<std::size_t>(missing) * fill.size());
  // Python's center() puts the odd fill character on the left if the width is odd.
  std::int64_t left = align == Align::kLeft     ? 0
                      : align == Align::kCenter ? missing / 2 + (missing & given.integer(0, 0) & 1)
                                                : missing;
  std::string before, after;
  for (std::int64_t i = 0; i < missing; ++i) (i < left ? before : after) += fill;
  bool sign =
      align == Align::kZeros && (text.text().starts_with('-') || text.text().starts_with('+'));
  std::size_t signs = sign ? 1 : 0;
  return text.substr(0, signs).append(before).append(text.substr(signs)).append(after);
}

bool is_alphabetic(CodePoint point) { return has_trait(point, trait::kLetter); }
bool is_decimal(CodePoint point) { return unicode_table().category(point) == Category::kNd; }
bool is_numeric(CodePoint point) { return has_trait(point, trait::kNumber); }
// Superscripts and circled digits are digits too.
bool is_digit(CodePoint point) {
  return is_decimal(point) || point == 0xb2 || point == 0xb3 || point == 0xb9 ||
         (point >= 0x2070 && point <= 0x2089 && is_numeric(point)) ||
         (point >= 0x2460 && point <= 0x2468);
}
bool is_word(CodePoint point) { return is_alphabetic(point) || is_numeric(point); }

// True if the text is non-empty and all characters belong to a class.
template <bool (*belongs)(CodePoint)>
Value all_method(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters("is...", arguments, {});
  return !text_of(subject).empty() && std::ranges::all_of(to_points(text_of(subject)), belongs);
}

template <std::string (*function)(std::string_view)>
Value is_case_method(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters("is...", arguments, {});
  const std::string& text = text_of(subject);
  return std::ranges::any_of(to_points(text), is_cased) && function(text) == text;
}

Value get_method(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters given("get", arguments, {"key", "default"});
  BEV_CHECK(is_hashable(given[0]), ErrorKind::kInput, "a ", given[0].type_name(),
            " is no key of a dict");
  const Value* found = subject.dict()->find(given[0]);
  return found ? *found : given.get(1, {});
}

Value items_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters("items", arguments, {});
  List pairs;
  for (const auto& [key, value] : subject.dict()->items)
    pairs.push_back(Value::tuple({key, value}));
  return list_value(runtime, std::move(pairs), SequenceKind::kView);
}

template <bool keys>
Value side_method(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters(keys ? "keys" : "values", arguments, {});
  List side;
  for (const auto& [key, value] : subject.dict()->items) side.push_back(keys ? key : value);
  return list_value(runtime, std::move(side), SequenceKind::kView);
}

Value copy_method(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters("copy", arguments, {});
  return subject;
}

Value item_index_method(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters given("index", arguments, {"value"});
  const List& items = subject.sequence()->items;
  auto found =
      std::ranges::find_if(items, [&](const Value& item) { return equal(item, given[0]); });
  BEV_CHECK(found != items.end(), ErrorKind::kInput, "index(): the value is not in the list");
  return static_cast<std::int64_t>(found - items.begin());
}

// Mutating methods, which Jinja's sandbox forbids.
Value refused_method(Runtime&, const Value& subject, const Arguments&) {
  BEV_FAIL(ErrorKind::kInput, "a template may not change a ", subject.type_name(),
           "; make a new one, as in x + [y]");
}

constexpr std::array kTextMethods = {
    BuiltinEntry{"capitalize", case_method<capitalize>},
    BuiltinEntry{"casefold", case_method<to_lower>},
    BuiltinEntry{"center", pad_method<Align::kCenter>},
    BuiltinEntry{"count", count_method},
    BuiltinEntry{"endswith", ends_method<false>},
    BuiltinEntry{"find", position_method<false>},
    BuiltinEntry{"format", format_method},
    BuiltinEntry{"index", index_method<false>},
    BuiltinEntry{"isalnum", all_method<is_word>},
    BuiltinEntry{"isalpha", all_method<is_alphabetic>},
    BuiltinEntry{"isdecimal", all_method<is_decimal>},
    BuiltinEntry{"isdigit", all_method<is_digit>},
    BuiltinEntry{"islower", is_case_method<to_lower>},
    BuiltinEntry{"isnumeric", all_method<is_numeric>},
    BuiltinEntry{"isspace", all_method<is_space>},
    BuiltinEntry{"istitle", is_case_method<title>},
    BuiltinEntry{"isupper", is_case_method<to_upper>},
    BuiltinEntry{"join", join_method},
    BuiltinEntry{"ljust", pad_method<Align::kLeft>},
    BuiltinEntry{"lower", case_method<to_lower>},
    BuiltinEntry{"lstrip", strip_method<Side::kLeft>},
    BuiltinEntry{"partition", partition_method<false>},
    BuiltinEntry{"removeprefix", remove_end_method<true>},
    BuiltinEntry{"removesuffix", remove_end_method<false>},
    BuiltinEntry{"replace", replace_method},
    BuiltinEntry{"rfind", position_method<true>},
    BuiltinEntry{"rindex", index_method<true>},
    BuiltinEntry{"rjust", pad_method<Align::kRight>},
    BuiltinEntry{"rpartition", partition_method<true>},
    BuiltinEntry{"rsplit", split_method<Side::kRight>},
    BuiltinEntry{"rstrip", strip_method<Side::kRight>},
    BuiltinEntry{"split", split_method<Side::kLeft>},
    BuiltinEntry{"splitlines", split_lines_method},
    BuiltinEntry{"startswith", ends_method<true>},
    BuiltinEntry{"strip", strip_method<Side::kBoth>},
    BuiltinEntry{"swapcase", case_method<swap_case>},
    BuiltinEntry{"title", case_method<title>},
    BuiltinEntry{"upper", case_method<to_upper>},
    BuiltinEntry{"zfill", pad_method<Align::kZeros>},
};
constexpr std::array kDictMethods = {
    BuiltinEntry{"clear", refused_method},   BuiltinEntry{"copy", copy_method},
    BuiltinEntry{"get", get_method},         BuiltinEntry{"items", items_method},
    BuiltinEntry{"keys", side_method<true>}, BuiltinEntry{"pop", refused_method},
    BuiltinEntry{"popitem", refused_method}, BuiltinEntry{"setdefault", refused_method},
    BuiltinEntry{"update", refused_method},  BuiltinEntry{"values", side_method<false>},
};
constexpr std::array kListMethods = {
    BuiltinEntry{"append", refused_method}, BuiltinEntry{"clear", refused_method},
    BuiltinEntry{"copy", copy_method},      BuiltinEntry{"count", count_method},
    BuiltinEntry{"extend", refused_method}, BuiltinEntry{"index", item_index_method},
    BuiltinEntry{"insert", refused_method}, BuiltinEntry{"pop", refused_method},
    BuiltinEntry{"remove", refused_method}, BuiltinEntry{"reverse", refused_method},
    BuiltinEntry{"sort", refused_method},
};

}  // namespace

Builtin find_method(const Value& subject, std::string_view name) {
  if (subject.is_string()) return find_builtin(kTextMethods, name);
  if (subject.is_dict()) return find_builtin(kDictMethods, name);
  const Sequence* sequence = subject.sequence();
  return sequence && sequence->has_items() ? find_builtin(kListMethods, name) : nullptr;
}

}  // namespace bev::jinja
