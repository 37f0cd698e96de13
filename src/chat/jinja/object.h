// Objects of the Jinja engine other than plain values (functions, methods, macros, loops,
// namespaces), and the resource limits of a rendering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/jinja/value.h"

namespace bev::jinja {

// State of one rendering. Every evaluation, character and list item is charged to a budget, so that
// no template runs for long or exhausts memory, and nesting is limited.
class Runtime {
 public:
  // Cost of an evaluation in characters; both take about the same time.
  static constexpr std::size_t kEvaluation = 16;

  // Throws Error if the budget is exhausted.
  void spend(std::size_t units) {
    if (units > left_) refuse();
    left_ -= units;
  }

  class Level;  // RAII: one more level of nesting

  int line = 0;  // current line of the template

  // Namespaces may contain themselves; they are cleared when the rendering ends.
  std::shared_ptr<Object> make_namespace(Dict values);
  ~Runtime();
  Runtime() = default;
  Runtime(const Runtime&) = delete;

 private:
  [[noreturn]] static void refuse();

  std::uint64_t left_ = std::uint64_t{1} << 28;
  int depth_ = 0;
  std::vector<std::shared_ptr<Object>> namespaces_;
};

class Runtime::Level {
 public:
  explicit Level(Runtime& runtime);
  ~Level() { --runtime_.depth_; }
  Level(const Level&) = delete;

 private:
  Runtime& runtime_;
};

struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Arguments in the order of a function's parameters.
class Parameters {
 public:
  // Throws Error naming the function if there are too many or unknown arguments.
  Parameters(std::string_view function, const Arguments& arguments,
             std::initializer_list<std::string_view> names);

  bool has(std::size_t at) const { return values_[at].has_value(); }
  // Throws Error if the argument is missing.
  const Value& operator[](std::size_t at) const;
  Value get(std::size_t at, Value fallback) const;
  bool flag(std::size_t at, bool fallback) const;
  std::int64_t integer(std::size_t at, std::int64_t fallback) const;
  // Text of a str argument; throws Error for other types.
  std::string text(std::size_t at, std::string_view fallback) const;
  TracedText traced(std::size_t at, std::string_view fallback) const;

 private:
  std::string function_;
  std::vector<std::string_view> names_;
  std::vector<std::optional<Value>> values_;
};

// A filter, test, method or global function. The subject is the operand of a filter or test or the
// object of a method; None for functions.
using Builtin = Value (*)(Runtime& runtime, const Value& subject, const Arguments& arguments);

class Object {
 public:
  virtual ~Object() = default;
  // Extent of the values that it owns permanently.
  virtual Extent extent() const { return {}; }
  virtual std::string_view type_name() const = 0;
  virtual std::string text() const;
  virtual std::optional<Value> attribute(std::string_view name) const;
  // Sets an attribute; false if the object has none that can be set.
  virtual bool set(std::string_view, Value) { return false; }
  virtual bool callable() const { return false; }
  virtual Value call(Runtime& runtime, const Arguments& arguments);
};

class Namespace : public Object {
 public:
  explicit Namespace(Dict values) : values_(std::move(values)) {}
  std::string_view type_name() const override { return "Namespace"; }
  std::string text() const override;
  std::optional<Value> attribute(std::string_view name) const override;
  bool set(std::string_view name, Value value) override;
  void clear() { values_.items.clear(); }

 private:
  Dict values_;
};

// A built-in function, or a bound method.
class Function : public Object {
 public:
  explicit Function(Builtin function, Value subject = {})
      : function_(function), subject_(std::move(subject)) {}
  std::string_view type_name() const override { return "builtin_function_or_method"; }
  Extent extent() const override { return subject_.extent(); }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const Arguments& arguments) override {
    return function_(runtime, subject_, arguments);
  }

 private:
  Builtin function_;
  Value subject_;
};

// nullptr if there is none of that name.
Builtin find_filter(std::string_view name);
Builtin find_test(std::string_view name);
Builtin find_function(std::string_view name);
// Methods of str, dict, list and tuple.
Builtin find_method(const Value& subject, std::string_view name);

}  // namespace bev::jinja
