// Jinja filters of lists and dicts.
#include <array>
#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "chat/jinja/builtins.h"
#include "chat/jinja/operators.h"
#include "chat/jinja/python_text.h"
#include "chat/jinja/value_text.h"

namespace bev::jinja {

namespace {

// Strings compare case-insensitively unless a filter has case_sensitive.
Value without_case(const Value& value) {
  const std::string* text = value.string();
  return text ? Value(to_lower(*text)) : value;
}

// Resolves "a.b.0" in an item: members by name or index.
Value member_at(const Value& item, const Value& path) {
  if (path.is_none()) return item;
  if (!path.is_string()) return item_of(item, path);
  Value value = item;
  for (const std::string& part : split(*path.string(), '.')) {
    std::int64_t index = 0;
    auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    bool numbered = error == std::errc() && end == part.data() + part.size() && part[0] != '-';
    value = item_of(value, numbered ? Value(index) : Value(part));
  }
  return value;
}

// Sort key of an item: one member, or several separated by commas.
Value sort_key(const Value& item, const Value& path, bool case_sensitive) {
  auto key = [&](const Value& one) {
    Value value = member_at(item, one);
    return case_sensitive ? value : without_case(value);
  };
  if (!path.is_string()) return key(path);
  List keys;
  for (const std::string& part : split(*path.string(), ',')) keys.push_back(key(part));
  return Value::list(std::move(keys));
}

Value sorted(Runtime& runtime, List items, const List& keys, bool reverse) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  runtime.spend(items.size() * 16);
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return reverse ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
  });
  List out;
  for (std::size_t at : order) out.push_back(items[at]);
  return list_value(runtime, std::move(out));
}

Value sort_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  List items = items_of(runtime, subject), keys;
  for (const Value& item : items) {
    keys.push_back(sort_key(item, given.get(2, {}), given.flag(1, false)));
  }
  return sorted(runtime, std::move(items), keys, given.flag(0, false));
}

List pairs_of(const Value& subject) {
  BEV_CHECK(subject.is_dict(), ErrorKind::kInput, "items of a ", subject.type_name(),
            ": only a dict has pairs");
  List pairs;
  for (const auto& [key, value] : subject.dict()->items)
    pairs.push_back(Value::tuple({key, value}));
  return pairs;
}

Value dictsort_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  std::string by = given.text(1, "key");
  BEV_CHECK(by == "key" || by == "value", ErrorKind::kInput, "dictsort: by is key or value");
  need_defined(subject);
  List pairs = pairs_of(subject), keys;
  for (const Value& pair : pairs) {
    const Value& side = pair.sequence()->items[by == "key" ? 0 : 1];
    keys.push_back(given.flag(0, false) ? side : without_case(side));
  }
  return sorted(runtime, std::move(pairs), keys, given.flag(2, false));
}

Value items_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters("items", arguments, {});
  List pairs = subject.is_undefined() ? List() : pairs_of(subject);
  return list_value(runtime, std::move(pairs), SequenceKind::kGenerator);
}

Value unique_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("unique", arguments, {"case_sensitive", "attribute"});
  List out, seen;
  for (const Value& item : items_of(runtime, subject)) {
    Value key = member_at(item, given.get(1, {}));
    if (!given.flag(0, false)) key = without_case(key);
    BEV_CHECK(is_hashable(key), ErrorKind::kInput, "unique: a ", key.type_name(),
              " cannot be told apart; give an attribute");
    runtime.spend(seen.size());
    if (std::ranges::any_of(seen, [&](const Value& one) { return equal(one, key); })) continue;
    seen.push_back(key);
    out.push_back(item);
  }
  return list_value(runtime, std::move(out), SequenceKind::kGenerator);
}

template <bool largest>
Value extreme_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  List items = items_of(runtime, subject);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  std::size_t best = 0;
  auto key = [&](std::size_t at) {
    Value value = member_at(items[at], given.get(1, {}));
    return given.flag(0, false) ? value : without_case(value);
  };
  Value best_key = key(0);
  for (std::size_t i = 1; i < items.size(); ++i) {
    Value other = key(i);
    if (largest ? less(best_key, other) : less(other, best_key)) {
      best = i;
      best_key = std::move(other);
    }
  }
  return items[best];
}

Value sum_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("sum", arguments, {"attribute", "start"});
  Value total = given.get(1, 0);
  for (const Value& item : items_of(runtime, subject)) {
    total = apply(runtime, BinaryOperator::kAdd, total, member_at(item, given.get(0, {})));
  }
  return total;
}

Value join_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("join", arguments, {"d", "attribute"});
  TracedText between = traced_str(given.get(0, "")), out;
  bool first = true;
  for (const Value& item : items_of(runtime, subject)) {
    TracedText text = traced_str(member_at(item, given.get(1, {})));
    runtime.spend(text.weight() + between.weight());
    if (!first) out.append(between);
    out.append(text);
    first = false;
  }
  return out;
}

Value first_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters("first", arguments, {});
  List items = items_of(runtime, subject);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters("last", arguments, {});
  const Sequence* sequence = subject.sequence();
  BEV_CHECK(!sequence || sequence->has_length(), ErrorKind::kInput,
            "last: a generator has no last item; make it a list first");
  List items = items_of(runtime, subject);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value list_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters("list", arguments, {});
  return list_value(runtime, items_of(runtime, subject));
}

Value reverse_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters("reverse", arguments, {});
  if (const TracedText* text = subject.traced()) {
    Points points = to_points(text->text());
    std::ranges::reverse(points);
    return text_value(runtime, text->changed(from_points(points)));
  }
  List items = items_of(runtime, subject);
  std::ranges::reverse(items);
  return list_value(runtime, std::move(items), SequenceKind::kGenerator);
}

Value map_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  List out;
  if (!subject.truth()) return list_value(runtime, {}, SequenceKind::kGenerator);
  if (arguments.positional.empty()) {
    Parameters given("map", arguments, {"attribute", "default"});
    for (const Value& item : items_of(runtime, subject)) {
      Value value = member_at(item, given[0]);
      bool missing = value.is_undefined() && given.has(1);
      out.push_back(missing ? given[1] : std::move(value));
    }
    return list_value(runtime, std::move(out), SequenceKind::kGenerator);
  }
  Builtin filter = find_filter(python_str(arguments.positional[0]));
  BEV_CHECK(filter != nullptr, ErrorKind::kInput, "map: there is no filter '",
            python_str(arguments.positional[0]), "'");
  Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  Runtime::Level level(runtime);
  for (const Value& item : items_of(runtime, subject)) out.push_back(filter(runtime, item, rest));
  return list_value(runtime, std::move(out), SequenceKind::kGenerator);
}

// select, reject, selectattr and rejectattr.
template <bool by_attribute, bool wanted>
Value select_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  std::size_t test_at = by_attribute ? 1 : 0;
  const List& given = arguments.positional;
  List out;
  if (!subject.truth()) return list_value(runtime, {}, SequenceKind::kGenerator);
  BEV_CHECK(given.size() >= test_at, ErrorKind::kInput, "the name of the attribute is missing");
  bool has_test = given.size() > test_at;
  Arguments rest;
  if (has_test) {
    auto after = given.begin() + static_cast<std::ptrdiff_t>(test_at) + 1;
    rest = {{after, given.end()}, arguments.named};
  }
  for (const Value& item : items_of(runtime, subject)) {
    Value value = by_attribute ? member_at(item, given[0]) : item;
    bool holds =
        has_test ? apply_test(runtime, python_str(given[test_at]), value, rest) : value.truth();
    if (holds == wanted) out.push_back(item);
  }
  return list_value(runtime, std::move(out), SequenceKind::kGenerator);
}

Value batch_filter(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("batch", arguments, {"linecount", "fill_with"});
  std::int64_t size = (given[0], given.integer(0, 0));
  BEV_CHECK(size > 0, ErrorKind::kInput, "batch: the size is ", size);
  List out, line;
  auto finish = [&] { out.push_back(list_value(runtime, std::exchange(line, {}))); };
  for (const Value& item : items_of(runtime, subject)) {
    if (static_cast<std::int64_t>(line.size()) == size) finish();
    line.push_back(item);
  }
  if (line.empty()) return list_value(runtime, std::move(out), SequenceKind::kGenerator);
  Value fill = given.get(1, {});
  while (!fill.is_none() && static_cast<std::int64_t>(line.size()) < size) {
    runtime.spend(1);
    line.push_back(fill);
  }
  finish();
  return list_value(runtime, std::move(out), SequenceKind::kGenerator);
}

constexpr std::array kFilters = {
    BuiltinEntry{"batch", batch_filter},
    BuiltinEntry{"dictsort", dictsort_filter},
    BuiltinEntry{"first", first_filter},
    BuiltinEntry{"items", items_filter},
    BuiltinEntry{"join", join_filter},
    BuiltinEntry{"last", last_filter},
    BuiltinEntry{"list", list_filter},
    BuiltinEntry{"map", map_filter},
    BuiltinEntry{"max", extreme_filter<true>},
    BuiltinEntry{"min", extreme_filter<false>},
    BuiltinEntry{"reject", select_filter<false, false>},
    BuiltinEntry{"rejectattr", select_filter<true, false>},
    BuiltinEntry{"reverse", reverse_filter},
    BuiltinEntry{"select", select_filter<false, true>},
    BuiltinEntry{"selectattr", select_filter<true, true>},
    BuiltinEntry{"sort", sort_filter},
    BuiltinEntry{"sum", sum_filter},
    BuiltinEntry{"unique", unique_filter},
};

}  // namespace

std::span<const BuiltinEntry> list_filters() { return kFilters; }

Builtin find_filter(std::string_view name) {
  Builtin found = find_builtin(value_filters(), name);
  return found ? found : find_builtin(list_filters(), name);
}

}  // namespace bev::jinja
