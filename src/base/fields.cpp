#include "base/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace bev {

namespace {

// Folds case and '_' to '-', so that choices compare equal in either spelling.
std::string fold(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '_') c = '-';
  }
  return out;
}

const char* describe(std::int64_t) { return "an integer"; }
const char* describe(double) { return "a number"; }

// Splits "a, b", "[a, b]" or "(a, b)"; only blanks give an empty list.
std::vector<std::string> split_list(std::string_view text) {
  text = trim(text);
  bool square = text.size() >= 2 && text.front() == '[' && text.back() == ']';
  bool round = text.size() >= 2 && text.front() == '(' && text.back() == ')';
  if (square || round) text = trim(text.substr(1, text.size() - 2));
  if (text.empty()) return {};
  std::vector<std::string> items = split(text, ',');
  for (std::string& item : items) item = std::string(trim(item));
  return items;
}

template <class T>
std::string join_numbers(const std::vector<T>& values) {
  std::vector<std::string> items;
  for (T value : values) items.push_back(concat(value));
  return join(items, ",");
}

}  // namespace

std::string read_bool(std::string_view text, bool& out) {
  std::string folded = fold(trim(text));
  for (const char* word : {"true", "yes", "on", "1"}) {
    if (folded == word) return out = true, "";
  }
  for (const char* word : {"false", "no", "off", "0"}) {
    if (folded == word) return out = false, "";
  }
  return concat("'", text, "' is neither true nor false");
}

std::string Field::range_text(bool with_limit) const {
  bool low = std::isfinite(least_);
  bool high = std::isfinite(most_) && (with_limit || !hide_most_);
  std::string lower = low ? concat(open_below_ ? "> " : ">= ", least_) : "";
  std::string upper = high ? concat(open_above_ ? "< " : "<= ", most_) : "";
  return low && high ? concat(lower, " and ", upper) : lower + upper;
}

std::string Field::type_text() const {
  if (!choices_.empty()) {
    std::vector<std::string> names;
    for (const Choice& choice : choices_) names.push_back(choice.first);
    return concat(strings_ ? "list of " : "", join(names, "|"));
  }
  if (bool_) return "flag";
  if (string_) return "text";
  if (strings_) return "list of texts";
  const char* what = int_      ? "integer"
                     : double_ ? "number"
                     : ints_   ? "list of integers"
                               : "list of numbers";
  std::string range = range_text(false);
  return range.empty() ? what : concat(what, " ", range);
}

std::string Field::default_text() const {
  if (!default_words_.empty()) return default_words_;
  std::string value = text();
  return value.empty() ? "none" : value;
}

std::string Field::text() const {
  if (int_) return concat(*int_);
  if (double_) return concat(*double_);
  if (bool_) return *bool_ ? "true" : "false";
  if (string_) return *string_;
  if (ints_) return join_numbers(*ints_);
  if (doubles_) return join_numbers(*doubles_);
  if (strings_) return join(*strings_, ",");
  for (const Choice& choice : choices_) {
    if (choice.second == *choice_) return choice.first;
  }
  return concat(static_cast<int>(*choice_));
}

template <class T>
std::string Field::read_number(std::string_view value, T& out) const {
  value = trim(value);
  T number{};
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc::result_out_of_range) {
    return concat("'", value, "' is beyond what ", describe(number), " can hold");
  }
  bool whole = error == std::errc() && end == value.data() + value.size();
  if (!whole || !std::isfinite(static_cast<double>(number))) {
    return concat("'", value, "' is not ", describe(number));
  }
  auto real = static_cast<double>(number);
  if (real < least_ || real > most_ || (open_below_ && real == least_) ||
      (open_above_ && real == most_)) {
    return concat(value, " is out of range; it must be ", range_text(true));
  }
  out = number;
  return "";
}

template <class T>
std::string Field::read_numbers(std::span<const std::string> items, std::vector<T>& out) const {
  std::vector<T> numbers(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (std::string problem = read_number(items[i], numbers[i]); !problem.empty()) {
      return items.size() == 1 ? problem : concat("item ", i + 1, ": ", problem);
    }
  }
  out = std::move(numbers);
  return "";
}

std::string Field::read_choice(std::string_view value, Choice& out) const {
  std::vector<std::string> names;
  for (const Choice& choice : choices_) {
    if (fold(choice.first) == fold(trim(value))) return out = choice, "";
    names.push_back(choice.first);
  }
  return concat("'", value, "' is not one of ", join(names, ", "));
}

std::string Field::set_text(std::string_view value) {
  if (is_list()) return set_items(std::vector<std::string>{std::string(value)});
  std::string plain;
  if (reader_) {
    std::string problem;
    plain = reader_(value, problem);
    if (!problem.empty()) return problem;
    value = plain;
  }
  if (int_) return read_number(value, *int_);
  if (double_) return read_number(value, *double_);
  if (bool_) return read_bool(value, *bool_);
  if (choices_.empty()) return *string_ = std::string(value), "";
  Choice choice;
  if (std::string problem = read_choice(value, choice); !problem.empty()) return problem;
  if (string_) *string_ = choice.first;
  if (choice_) *choice_ = static_cast<std::uint8_t>(choice.second);
  return "";
}

std::string Field::set_items(std::span<const std::string> items) {
  if (!is_list()) {
    return items.size() == 1
               ? set_text(items[0])
               : concat("takes one value, not ", items.size(), " (", join(items, " "), ")");
  }
  std::vector<std::string> texts(items.begin(), items.end());
  if (texts.size() == 1 && reader_) {
    std::string problem;
    texts[0] = reader_(texts[0], problem);
    if (!problem.empty()) return problem;
  }
  if (texts.size() == 1) texts = split_list(texts[0]);
  if (ints_) return read_numbers(texts, *ints_);
  if (doubles_) return read_numbers(texts, *doubles_);
  for (std::string& text : texts) {
    if (text.empty()) return "has an empty item";
    if (choices_.empty()) continue;
    Choice choice;
    if (std::string problem = read_choice(text, choice); !problem.empty()) return problem;
    text = choice.first;
  }
  *strings_ = std::move(texts);
  return "";
}

Field& Field::alias(std::string name) { return aliases_.push_back(std::move(name)), *this; }
Field& Field::negated_by(std::string name) { return negation_ = std::move(name), *this; }
Field& Field::min(double least) { return least_ = least, *this; }
Field& Field::max(double most) { return most_ = most, *this; }
Field& Field::limit(double most) { return hide_most_ = true, max(most); }
Field& Field::above(double bound) { return open_below_ = true, min(bound); }
Field& Field::below(double bound) { return open_above_ = true, max(bound); }
Field& Field::defaults_to(std::string words) { return default_words_ = std::move(words), *this; }
Field& Field::reads(Reader reader) { return reader_ = reader, *this; }
Field& Field::one_of(std::vector<std::string> choices) {
  for (std::string& choice : choices) {
    choices_.emplace_back(std::move(choice), static_cast<int>(choices_.size()));
  }
  return *this;
}

Field& FieldList::push(std::string name, std::string help) {
  BEV_CHECK(!find(name) && !find_shorthand(name), ErrorKind::kInternal, "fields: --", name,
            " is listed twice");
  entries_.push_back(std::make_unique<Entry>(Entry{section_, Field()}));
  Field& field = entries_.back()->field;
  field.name_ = std::move(name);
  field.help_ = std::move(help);
  return field;
}

Field& FieldList::add(std::string name, std::int64_t& member, std::string help) {
  Field& field = push(std::move(name), std::move(help));
  return field.int_ = &member, field;
}
Field& FieldList::add(std::string name, double& member, std::string help) {
  Field& field = push(std::move(name), std::move(help));
  return field.double_ = &member, field;
}
Field& FieldList::add(std::string name, bool& member, std::string help) {
  Field& field = push(std::move(name), std::move(help));
  return field.bool_ = &member, field;
}
Field& FieldList::add(std::string name, std::string& member, std::string help) {
  Field& field = push(std::move(name), std::move(help));
  return field.string_ = &member, field;
}
Field& FieldList::add(std::string name, std::vector<std::int64_t>& member, std::string help) {
  Field& field = push(std::move(name), std::move(help));
  return field.ints_ = &member, field;
}
Field& FieldList::add(std::string name, std::vector<double>& member, std::string help) {
  Field& field = push(std::move(name), std::move(help));
  return field.doubles_ = &member, field;
}
Field& FieldList::add(std::string name, std::vector<std::string>& member, std::string help) {
  Field& field = push(std::move(name), std::move(help));
  return field.strings_ = &member, field;
}
Field& FieldList::add_choice(std::string name, std::uint8_t& member,
                             std::vector<Field::Choice> choices, std::string help) {
  Field& field = push(std::move(name), std::move(help));
  field.choices_ = std::move(choices);
  return field.choice_ = &member, field;
}

void FieldList::shorthand(std::string name,
                          std::vector<std::pair<std::string, std::string>> settings,
                          std::string help) {
  BEV_CHECK(!find(name) && !find_shorthand(name), ErrorKind::kInternal, "fields: --", name,
            " is listed twice");
  shorthands_.push_back({section_, std::move(name), std::move(help), std::move(settings)});
}

void FieldList::foreign(ForeignFlag flag) {
  bool known = find(flag.name) || find_negated(flag.name) || find_shorthand(flag.name);
  BEV_CHECK(!known && !find_foreign(flag.name), ErrorKind::kInternal, "fields: --", flag.name,
            " is listed twice");
  foreign_.push_back(std::move(flag));
}

FieldList::Entry* FieldList::find_entry(std::string_view name) const {
  for (const auto& entry : entries_) {
    const Field& field = entry->field;
    if (field.name() == name || std::ranges::find(field.aliases(), name) != field.aliases().end()) {
      return entry.get();
    }
  }
  return nullptr;
}

Field* FieldList::find(std::string_view name) const {
  Entry* entry = find_entry(name);
  return entry ? &entry->field : nullptr;
}

FieldList::Entry* FieldList::find_negated(std::string_view name) const {
  for (const auto& entry : entries_) {
    if (entry->field.is_flag() && !name.empty() && entry->field.negation() == name)
      return entry.get();
  }
  for (std::string_view prefix : {"no-", "disable-"}) {
    if (!name.starts_with(prefix)) continue;
    Entry* entry = find_entry(name.substr(prefix.size()));
    return entry && entry->field.is_flag() ? entry : nullptr;
  }
  return nullptr;
}

const Shorthand* FieldList::find_shorthand(std::string_view name) const {
  auto found = std::ranges::find(shorthands_, name, &Shorthand::name);
  return found == shorthands_.end() ? nullptr : &*found;
}

const ForeignFlag* FieldList::find_foreign(std::string_view name) const {
  auto found = std::ranges::find(foreign_, name, &ForeignFlag::name);
  return found == foreign_.end() ? nullptr : &*found;
}

std::vector<std::string> FieldList::sections() const {
  std::vector<std::string> out;
  for (const auto& entry : entries_) {
    if (std::ranges::find(out, entry->section) == out.end()) out.push_back(entry->section);
  }
  return out;
}

std::vector<std::string> FieldList::spellings() const {
  std::vector<std::string> out;
  for (const auto& entry : entries_) {
    const Field& field = entry->field;
    out.push_back(field.name());
    out.insert(out.end(), field.aliases().begin(), field.aliases().end());
    if (!field.negation().empty()) out.push_back(field.negation());
    if (field.is_flag()) out.push_back("no-" + field.name());
  }
  for (const Shorthand& shorthand : shorthands_) out.push_back(shorthand.name);
  return out;
}

}  // namespace bev
