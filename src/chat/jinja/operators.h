// Python's operators on values, and member access.
#pragma once

#include "chat/jinja/object.h"
#include "chat/jinja/syntax.h"
#include "chat/jinja/value.h"

namespace bev::jinja {

// Throws Error with the cause if the value is undefined.
void need_defined(const Value& value);

Value apply(Runtime& runtime, BinaryOperator op, const Value& left, const Value& right);
Value negate(const Value& value);
bool compare(Runtime& runtime, Comparison op, const Value& left, const Value& right);
bool contains(Runtime& runtime, const Value& container, const Value& item);

// object.name: methods and attributes first, then keys; undefined if there is none.
Value attribute_of(const Value& object, std::string_view name);
// object[key]: items first, then attributes.
Value item_of(const Value& object, const Value& key);
struct SliceBounds {
  Value start, stop, step;  // None: not given
};
Value slice_of(Runtime& runtime, const Value& object, const SliceBounds& bounds);

// Items that a loop over the value visits; throws Error if it is not iterable.
List items_of(Runtime& runtime, const Value& value);
std::int64_t length_of(const Value& value);

// Text created by the template; charges its bytes to the budget.
Value text_value(Runtime& runtime, TracedText text);
Value list_value(Runtime& runtime, List items, SequenceKind kind = SequenceKind::kList);

}  // namespace bev::jinja
