#include "chat/jinja/value.h"

#include <algorithm>

#include "base/error.h"
#include "chat/jinja/object.h"

namespace bev::jinja {

namespace {

class Measuring {
 public:
  void add(const Value& value) {
    Extent part = value.extent();
    extent_.depth = std::max(extent_.depth, part.depth + 1);
    extent_.weight += part.weight;
  }
  Extent checked() const {
    constexpr std::uint32_t kMostDepth = 200;
    constexpr std::uint64_t kMostWeight = std::uint64_t{1} << 26;
    BEV_CHECK(extent_.depth <= kMostDepth, ErrorKind::kInput, "a value nests deeper than ",
              kMostDepth, " levels");
    BEV_CHECK(extent_.weight <= kMostWeight, ErrorKind::kInput, "a list or dict is too large");
    return extent_;
  }

 private:
  Extent extent_;
};

bool equal_dicts(const Dict& a, const Dict& b) {
  return a.items.size() == b.items.size() && std::ranges::all_of(a.items, [&](const auto& item) {
           const Value* other = b.find(item.first);
           return other != nullptr && equal(item.second, *other);
         });
}

bool equal_sequences(const Sequence& a, const Sequence& b) {
  return a.kind == b.kind && std::ranges::equal(a.items, b.items, equal);
}

bool less_sequences(const List& a, const List& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!equal(a[i], b[i])) return less(a[i], b[i]);
  }
  return a.size() < b.size();
}

}  // namespace

Value::Value(Dict dict) : kind_(Kind::kDict) {
  Measuring measuring;
  for (const auto& [key, value] : dict.items) {
    measuring.add(key);
    measuring.add(value);
  }
  dict.extent = measuring.checked();
  shared_ = std::make_shared<const Dict>(std::move(dict));
}

Value Value::sequence(List items, SequenceKind kind) {
  Measuring measuring;
  for (const Value& item : items) measuring.add(item);
  Value value;
  value.kind_ = Kind::kSequence;
  value.shared_ =
      std::make_shared<const Sequence>(Sequence{std::move(items), kind, measuring.checked()});
  return value;
}

Value Value::undefined(std::string cause) {
  Value value;
  value.kind_ = Kind::kUndefined;
  value.shared_ = std::make_shared<const std::string>(std::move(cause));
  return value;
}

std::optional<std::int64_t> Value::integer() const {
  if (is_bool()) return scalar_.truth ? 1 : 0;
  if (is_int()) return scalar_.whole;
  return std::nullopt;
}

double Value::number() const {
  if (is_float()) return scalar_.real;
  return static_cast<double>(integer().value_or(0));
}

bool Value::truth() const {
  if (is_none() || is_undefined()) return false;
  if (is_number()) return number() != 0;
  if (const std::string* text = string()) return !text->empty();
  if (const Dict* pairs = dict()) return !pairs->items.empty();
  if (const Sequence* items = sequence()) return !items->has_length() || !items->items.empty();
  return true;
}

Extent Value::extent() const {
  if (const std::string* text = string()) return {0, text->size() + 1};
  if (const Dict* pairs = dict()) return pairs->extent;
  if (const Sequence* items = sequence()) return items->extent;
  if (Object* of_engine = object()) return of_engine->extent();
  return {};
}

std::string_view Value::type_name() const {
  if (is_none()) return "NoneType";
  if (is_undefined()) return "Undefined";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_dict()) return "dict";
  if (Object* of_engine = object()) return of_engine->type_name();
  constexpr std::string_view kNames[] = {"list", "tuple", "range", "dict_view", "generator"};
  return kNames[static_cast<std::size_t>(sequence()->kind)];
}

const Value* Dict::find(const Value& key) const {
  auto found =
      std::ranges::find_if(items, [&](const auto& item) { return equal(item.first, key); });
  return found == items.end() ? nullptr : &found->second;
}

const Value* Dict::find_name(std::string_view key) const {
  auto found = std::ranges::find_if(items, [&](const auto& item) {
    const std::string* text = item.first.string();
    return text != nullptr && *text == key;
  });
  return found == items.end() ? nullptr : &found->second;
}

void Dict::set(Value key, Value value) {
  for (auto& item : items) {
    if (equal(item.first, key)) {
      item.second = std::move(value);
      return;
    }
  }
  items.emplace_back(std::move(key), std::move(value));
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.integer() && b.integer()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.string() && b.string()) return *a.string() == *b.string();
  if (a.dict() && b.dict()) return equal_dicts(*a.dict(), *b.dict());
  if (a.sequence() && b.sequence()) return equal_sequences(*a.sequence(), *b.sequence());
  return a.object() != nullptr && a.object() == b.object();
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.integer() && b.integer()) return *a.integer() < *b.integer();
    return a.number() < b.number();
  }
  if (a.string() && b.string()) return *a.string() < *b.string();
  const Sequence *left = a.sequence(), *right = b.sequence();
  if (left && right && left->kind == right->kind && left->kind <= SequenceKind::kTuple) {
    return less_sequences(left->items, right->items);
  }
  for (const Value* side : {&a, &b}) {
    BEV_CHECK(!side->is_undefined(), ErrorKind::kInput, *side->undefined_cause());
  }
  BEV_FAIL(ErrorKind::kInput, "'", a.type_name(), "' and '", b.type_name(), "' have no order");
}

bool is_hashable(const Value& value) {
  if (value.is_dict()) return false;
  const Sequence* items = value.sequence();
  if (items == nullptr) return true;
  return items->kind != SequenceKind::kList && std::ranges::all_of(items->items, is_hashable);
}

}  // namespace bev::jinja
