// Python's operators on values, and access to their parts.
#pragma once

#include "chat/object.h"
#include "chat/syntax.h"
#include "chat/value.h"

namespace bev::jinja {

// Error with the cause when a value is undefined.
void need_defined(const Value& value);

Value apply(Runtime& runtime, BinaryOperator op, const Value& left, const Value& right);
Value negate(const Value& value);
bool compare(Runtime& runtime, Comparison op, const Value& left, const Value& right);
bool contains(Runtime& runtime, const Value& container, const Value& item);

// object.name: methods and attributes first, then keys. Undefined when there is none.
Value attribute_of(const Value& object, std::string_view name);
// object[key]: items first, then attributes.
Value item_of(const Value& object, const Value& key);
struct SliceBounds {
  Value start, stop, step;  // None: not given
};
Value slice_of(Runtime& runtime, const Value& object, const SliceBounds& bounds);

// The items that a loop over the value sees; Error when there is no loop over it.
List items_of(Runtime& runtime, const Value& value);
std::int64_t length_of(const Value& value);

// Text made by the template; its bytes are paid for.
Value text_value(Runtime& runtime, std::string text);
Value list_value(Runtime& runtime, List items, SequenceKind kind = SequenceKind::kList);

}  // namespace bev::jinja
