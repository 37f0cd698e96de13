// Values of the Jinja engine: Python's None, bool, int, float, str, list, tuple and dict, Jinja's
// undefined, and objects of the engine (macros, loops, namespaces, methods).
//
// Undefined is the value of a missing name or member; most uses of it fail with its cause.
//
// Values are immutable, as in Jinja's sandbox; only namespaces change. Text is valid UTF-8.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/jinja/traced_text.h"

namespace bev::jinja {

class Value;
class Object;
struct Dict;
struct Sequence;

using List = std::vector<Value>;

// Size of a value when traversed, counting shared parts every time. Weight and depth are limited
// when a value is created, so that traversals need no limits of their own.
struct Extent {
  std::uint32_t depth = 0;
  std::uint64_t weight = 1;  // number of values plus bytes of text
};

enum class SequenceKind : std::uint8_t {
  kList,
  kTuple,
  kRange,
  kView,       // of a dict: has a length but no indexing
  kGenerator,  // single pass; always true, without a length
};

class Value {
 public:
  Value() = default;  // None
  Value(bool value) : kind_(Kind::kBool), scalar_{.truth = value} {}
  Value(std::int64_t value) : kind_(Kind::kInt), scalar_{.whole = value} {}
  Value(int value) : Value(std::int64_t{value}) {}
  Value(double value) : kind_(Kind::kFloat), scalar_{.real = value} {}
  Value(TracedText text)
      : kind_(Kind::kString), shared_(std::make_shared<const TracedText>(std::move(text))) {}
  Value(std::string text) : Value(TracedText(std::move(text))) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(Dict dict);   // throws Error if it is too large or nested too deeply
  template <class T>  // Object or a derived class
  Value(std::shared_ptr<T> object)
      : kind_(Kind::kObject), shared_(std::shared_ptr<Object>(std::move(object))) {}

  static Value list(List items) { return sequence(std::move(items), SequenceKind::kList); }
  static Value tuple(List items) { return sequence(std::move(items), SequenceKind::kTuple); }
  static Value sequence(List items, SequenceKind kind);
  static Value undefined(std::string cause);

  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_int() const { return kind_ == Kind::kInt; }  // not bool
  bool is_float() const { return kind_ == Kind::kFloat; }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_dict() const { return kind_ == Kind::kDict; }
  bool is_sequence() const { return kind_ == Kind::kSequence; }

  // nullptr if the value has another type.
  const std::string* undefined_cause() const { return content<std::string>(Kind::kUndefined); }
  const std::string* string() const { return traced() ? &traced()->text() : nullptr; }
  const TracedText* traced() const { return content<TracedText>(Kind::kString); }
  const Dict* dict() const { return content<Dict>(Kind::kDict); }
  const Sequence* sequence() const { return content<Sequence>(Kind::kSequence); }
  Object* object() const { return const_cast<Object*>(content<Object>(Kind::kObject)); }

  // For bools and ints.
  std::optional<std::int64_t> integer() const;
  // For all numbers.
  double number() const;
  bool boolean() const { return scalar_.truth; }

  // Python's bool().
  bool truth() const;
  Extent extent() const;
  // Type name for messages: "str", "int", "NoneType", ...
  std::string_view type_name() const;

 private:
  enum class Kind : std::uint8_t {
    kNone,
    kUndefined,
    kBool,
    kInt,
    kFloat,
    kString,
    kSequence,
    kDict,
    kObject,
  };

  template <class T>
  const T* content(Kind kind) const {
    return kind_ == kind ? static_cast<const T*>(shared_.get()) : nullptr;
  }

  Kind kind_ = Kind::kNone;
  union {
    bool truth;
    std::int64_t whole = 0;
    double real;
  } scalar_;
  std::shared_ptr<const void> shared_;  // str, list, dict or object
};

struct Sequence {
  List items;
  SequenceKind kind = SequenceKind::kList;
  Extent extent;
  mutable bool spent = false;  // exhausted generator

  bool has_length() const { return kind != SequenceKind::kGenerator; }
  bool has_items() const { return kind < SequenceKind::kView; }
};

// Keeps insertion order. Lookup is linear, because messages and tools have few keys.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  Extent extent;

  const Value* find(const Value& key) const;
  const Value* find_name(std::string_view key) const;
  void set(Value key, Value value);
};

// Python's == and <; throws Error for pairs of types that have no order.
bool equal(const Value& a, const Value& b);
bool less(const Value& a, const Value& b);
// True if the value can be a dict key.
bool is_hashable(const Value& value);

}  // namespace bev::jinja
