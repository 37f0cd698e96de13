// Values that a chat template works with: Python's None, bool, int, float, str, list, tuple and
// dict, Jinja's undefined, and objects of the engine (macros, loops, namespaces, methods).
//
// Values are immutable, as Jinja's sandbox keeps them; only namespaces change. Text is valid UTF-8.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace bev::jinja {

class Value;
class Object;
struct Dict;
struct Sequence;

using List = std::vector<Value>;

// How much there is to walk through in a value, counted wherever it appears again. Both are bounded
// when a value is made, so that whatever walks through values needs no bounds of its own.
struct Extent {
  std::uint32_t depth = 0;
  std::uint64_t weight = 1;  // values and bytes of text
};

// What a missing name or member gives. Most uses of it fail with the cause.
struct Undefined {
  std::string cause;
};

enum class SequenceKind : std::uint8_t {
  kList,
  kTuple,
  kRange,
  kView,       // of a dict: has a length, no items by number
  kGenerator,  // gives its items once; always true, without a length
};

class Value {
 public:
  Value() = default;  // None
  Value(bool value) : content_(value) {}
  Value(std::int64_t value) : content_(value) {}
  Value(int value) : content_(std::int64_t{value}) {}
  Value(double value) : content_(value) {}
  Value(std::string text) : content_(std::make_shared<const std::string>(std::move(text))) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(Dict dict);   // Error when it is too large or nests too deep
  template <class T>  // of Object or what derives from it
  Value(std::shared_ptr<T> object) : content_(std::shared_ptr<Object>(std::move(object))) {}

  static Value list(List items) { return sequence(std::move(items), SequenceKind::kList); }
  static Value tuple(List items) { return sequence(std::move(items), SequenceKind::kTuple); }
  static Value sequence(List items, SequenceKind kind);
  static Value undefined(std::string cause);

  bool is_none() const { return std::holds_alternative<std::monostate>(content_); }
  bool is_undefined() const { return undefined_cause() != nullptr; }
  bool is_bool() const { return std::holds_alternative<bool>(content_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(content_); }  // not bool
  bool is_float() const { return std::holds_alternative<double>(content_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return string() != nullptr; }
  bool is_dict() const { return dict() != nullptr; }
  bool is_sequence() const { return sequence() != nullptr; }

  // nullptr when the value is of another type.
  const std::string* undefined_cause() const;
  const std::string* string() const;
  const Dict* dict() const;
  const Sequence* sequence() const;
  Object* object() const;

  // Of bools and ints.
  std::optional<std::int64_t> integer() const;
  // Of all numbers.
  double number() const;
  bool boolean() const { return std::get<bool>(content_); }

  // As Python's bool(). Error when that fails.
  bool truth() const;
  Extent extent() const;
  // "str", "int", "NoneType", ... for messages.
  std::string_view type_name() const;

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::shared_ptr<const Undefined>,
               std::shared_ptr<const std::string>, std::shared_ptr<const Sequence>,
               std::shared_ptr<const Dict>, std::shared_ptr<Object>>
      content_;
};

struct Sequence {
  List items;
  SequenceKind kind = SequenceKind::kList;
  Extent extent;
  mutable bool spent = false;  // of a generator

  bool has_length() const { return kind != SequenceKind::kGenerator; }
  bool has_items() const { return kind < SequenceKind::kView; }
};

// Keeps the order in which keys were first set. Messages and tools have few keys: they are searched
// one by one.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  Extent extent;

  const Value* find(const Value& key) const;
  const Value* find_name(std::string_view key) const;
  void set(Value key, Value value);
};

// As Python's == and <, which has no order for most pairs of types: Error then.
bool equal(const Value& a, const Value& b);
bool less(const Value& a, const Value& b);
// What may be a key of a dict.
bool is_hashable(const Value& value);

}  // namespace bev::jinja
