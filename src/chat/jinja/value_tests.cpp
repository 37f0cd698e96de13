// Jinja tests ("is ...", and by name in select and so on).
#include <array>

#include "base/error.h"
#include "chat/jinja/builtins.h"
#include "chat/jinja/operators.h"
#include "chat/jinja/python_text.h"
#include "chat/jinja/value_text.h"

namespace bev::jinja {

namespace {

// A test without arguments.
template <bool (*holds)(const Value&)>
Value plain_test(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters("the test", arguments, {});
  return holds(subject);
}

template <Comparison op>
Value compare_test(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("the test", arguments, {"other"});
  return compare(runtime, op, subject, given[0]);
}

bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.is_bool(); }
bool is_true(const Value& value) { return value.is_bool() && value.boolean(); }
bool is_false(const Value& value) { return value.is_bool() && !value.boolean(); }
bool is_integer(const Value& value) { return value.is_int(); }
bool is_float(const Value& value) { return value.is_float(); }
bool is_number(const Value& value) { return value.is_number(); }
bool is_string(const Value& value) { return value.is_string(); }
bool is_mapping(const Value& value) { return value.is_dict(); }
bool is_callable(const Value& value) { return value.object() && value.object()->callable(); }
bool is_iterable(const Value& value) {
  return value.is_string() || value.is_dict() || value.is_sequence() || value.is_undefined();
}
// True for strings, dicts and undefined values too.
bool is_sequence(const Value& value) {
  const Sequence* sequence = value.sequence();
  return value.is_string() || value.is_dict() || value.is_undefined() ||
         (sequence && sequence->has_items());
}
bool is_lower(const Value& value) {
  Value text = python_str(value);
  return to_lower(*text.string()) == *text.string() &&
         std::ranges::any_of(to_points(*text.string()), is_cased);
}
bool is_upper(const Value& value) {
  Value text = python_str(value);
  return to_upper(*text.string()) == *text.string() &&
         std::ranges::any_of(to_points(*text.string()), is_cased);
}
bool is_filter(const Value& value) { return find_filter(python_str(value)) != nullptr; }
bool is_test(const Value& value) { return find_test(python_str(value)) != nullptr; }
bool is_escaped(const Value&) { return false; }

template <std::int64_t remainder>
Value parity_test(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters("the test", arguments, {});
  return equal(apply(runtime, BinaryOperator::kModulo, subject, 2), remainder);
}

Value divisible_test(Runtime& runtime, const Value& subject, const Arguments& arguments) {
  Parameters given("divisibleby", arguments, {"num"});
  return equal(apply(runtime, BinaryOperator::kModulo, subject, given[0]), 0);
}

Value same_test(Runtime&, const Value& subject, const Arguments& arguments) {
  Parameters given("sameas", arguments, {"other"});
  return subject.type_name() == given[0].type_name() && equal(subject, given[0]);
}

constexpr std::array kTests = {
    BuiltinEntry{"!=", compare_test<Comparison::kNotEqual>},
    BuiltinEntry{"<", compare_test<Comparison::kLess>},
    BuiltinEntry{"<=", compare_test<Comparison::kLessEqual>},
    BuiltinEntry{"==", compare_test<Comparison::kEqual>},
    BuiltinEntry{">", compare_test<Comparison::kGreater>},
    BuiltinEntry{">=", compare_test<Comparison::kGreaterEqual>},
    BuiltinEntry{"boolean", plain_test<is_boolean>},
    BuiltinEntry{"callable", plain_test<is_callable>},
    BuiltinEntry{"defined", plain_test<is_defined>},
    BuiltinEntry{"divisibleby", divisible_test},
    BuiltinEntry{"eq", compare_test<Comparison::kEqual>},
    BuiltinEntry{"equalto", compare_test<Comparison::kEqual>},
    BuiltinEntry{"escaped", plain_test<is_escaped>},
    BuiltinEntry{"even", parity_test<0>},
    BuiltinEntry{"false", plain_test<is_false>},
    BuiltinEntry{"filter", plain_test<is_filter>},
    BuiltinEntry{"float", plain_test<is_float>},
    BuiltinEntry{"ge", compare_test<Comparison::kGreaterEqual>},
    BuiltinEntry{"greaterthan", compare_test<Comparison::kGreater>},
    BuiltinEntry{"gt", compare_test<Comparison::kGreater>},
    BuiltinEntry{"in", compare_test<Comparison::kIn>},
    BuiltinEntry{"integer", plain_test<is_integer>},
    BuiltinEntry{"iterable", plain_test<is_iterable>},
    BuiltinEntry{"le", compare_test<Comparison::kLessEqual>},
    BuiltinEntry{"lessthan", compare_test<Comparison::kLess>},
    BuiltinEntry{"lower", plain_test<is_lower>},
    BuiltinEntry{"lt", compare_test<Comparison::kLess>},
    BuiltinEntry{"mapping", plain_test<is_mapping>},
    BuiltinEntry{"ne", compare_test<Comparison::kNotEqual>},
    BuiltinEntry{"none", plain_test<is_none>},
    BuiltinEntry{"number", plain_test<is_number>},
    BuiltinEntry{"odd", parity_test<1>},
    BuiltinEntry{"sameas", same_test},
    BuiltinEntry{"sequence", plain_test<is_sequence>},
    BuiltinEntry{"string", plain_test<is_string>},
    BuiltinEntry{"test", plain_test<is_test>},
    BuiltinEntry{"true", plain_test<is_true>},
    BuiltinEntry{"undefined", plain_test<is_undefined>},
    BuiltinEntry{"upper", plain_test<is_upper>},
};

}  // namespace

Builtin find_test(std::string_view name) { return find_builtin(kTests, name); }

bool apply_test(Runtime& runtime, std::string_view name, const Value& subject,
                const Arguments& arguments) {
  Builtin test = find_test(name);
  BEV_CHECK(test != nullptr, ErrorKind::kInput, "there is no test '", name, "'");
  return test(runtime, subject, arguments).truth();
}

}  // namespace bev::jinja
