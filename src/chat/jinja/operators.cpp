#include "chat/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "chat/jinja/python_text.h"
#include "chat/jinja/text_format.h"
#include "chat/jinja/value_text.h"

namespace bev::jinja {

namespace {

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void refuse(BinaryOperator op, const Value& left, const Value& right) {
  need_defined(left);
  need_defined(right);
  BEV_FAIL(ErrorKind::kInput, "'", left.type_name(), "' ", kSymbols[static_cast<std::size_t>(op)],
           " '", right.type_name(), "' is not possible");
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

// nullopt if the result exceeds 64 bits.
std::optional<std::int64_t> integer_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1 && __builtin_mul_overflow(result, base, &result)) return std::nullopt;
    exponent /= 2;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return std::nullopt;
  }
  return result;
}

std::optional<std::int64_t> whole_result(BinaryOperator op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  switch (op) {
    case BinaryOperator::kAdd:
      return __builtin_add_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case BinaryOperator::kSubtract:
      return __builtin_sub_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case BinaryOperator::kMultiply:
      return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
    case BinaryOperator::kPower:
      return integer_power(a, b);
    default:
      if (a == INT64_MIN && b == -1) return std::nullopt;
      return op == BinaryOperator::kModulo ? a - b * floor_divide(a, b) : floor_divide(a, b);
  }
}

double real_result(BinaryOperator op, double a, double b) {
  switch (op) {
    case BinaryOperator::kAdd:
      return a + b;
    case BinaryOperator::kSubtract:
      return a - b;
    case BinaryOperator::kMultiply:
      return a * b;
    case BinaryOperator::kDivide:
      return a / b;
    case BinaryOperator::kPower:
      return std::pow(a, b);
    default: {
      double remainder = std::fmod(a, b);
      if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
      if (op == BinaryOperator::kModulo) return remainder == 0 ? std::copysign(0.0, b) : remainder;
      double quotient = (a - remainder) / b, whole = std::floor(quotient);
      return quotient - whole > 0.5 ? whole + 1 : whole;
    }
  }
}

Value arithmetic(BinaryOperator op, const Value& left, const Value& right) {
  bool divides = op == BinaryOperator::kDivide || op == BinaryOperator::kFloorDivide ||
                 op == BinaryOperator::kModulo;
  BEV_CHECK(!divides || right.number() != 0, ErrorKind::kInput, "division by zero");
  std::optional<std::int64_t> a = left.integer(), b = right.integer();
  bool whole = a && b && op != BinaryOperator::kDivide && !(op == BinaryOperator::kPower && *b < 0);
  if (!whole) {
    BEV_CHECK(op != BinaryOperator::kPower || left.number() != 0 || right.number() >= 0,
              ErrorKind::kInput, "0 cannot be raised to a negative power");
    return real_result(op, left.number(), right.number());
  }
  std::optional<std::int64_t> result = whole_result(op, *a, *b);
  BEV_CHECK(result.has_value(), ErrorKind::kInput, "a number has more than 64 bits");
  return *result;
}

Value add(Runtime& runtime, const Value& left, const Value& right) {
  if (left.string() && right.string()) {
    return text_value(runtime, TracedText(*left.traced()).append(*right.traced()));
  }
  const Sequence *a = left.sequence(), *b = right.sequence();
  if (!a || !b || a->kind != b->kind || a->kind > SequenceKind::kTuple) {
    refuse(BinaryOperator::kAdd, left, right);
  }
  List items = a->items;
  items.insert(items.end(), b->items.begin(), b->items.end());
  return list_value(runtime, std::move(items), a->kind);
}

Value repeat(Runtime& runtime, const Value& what, const Value& count) {
  auto times = static_cast<std::size_t>(std::max<std::int64_t>(*count.integer(), 0));
  const Sequence* sequence = what.sequence();
  std::size_t size = sequence ? sequence->items.size() : what.traced()->weight();
  constexpr std::size_t kMost = std::size_t{1} << 26;
  BEV_CHECK(size == 0 || times <= kMost / size, ErrorKind::kInput,
            "a text or list is repeated too often");
  runtime.spend(times * size);
  if (size == 0) times = 0;
  if (!sequence) {
    TracedText text;
    for (std::size_t i = 0; i < times; ++i) text.append(*what.traced());
    return text;
  }
  List items;
  for (std::size_t i = 0; i < times; ++i) {
    items.insert(items.end(), sequence->items.begin(), sequence->items.end());
  }
  return Value::sequence(std::move(items), sequence->kind);
}

bool can_repeat(const Value& what, const Value& count) {
  const Sequence* sequence = what.sequence();
  return count.integer() &&
         (what.is_string() || (sequence && sequence->kind <= SequenceKind::kTuple));
}

std::string described(const Value& object) {
  return object.is_none() ? "None" : concat(object.type_name(), " object");
}

Value no_element(const Value& object, const Value& key) {
  if (const std::string* name = key.string()) {
    return Value::undefined(concat("'", described(object), "' has no attribute '", *name, "'"));
  }
  return Value::undefined(concat(described(object), " has no element ", python_repr(key)));
}

// Resolves a negative index from the end; nullopt if out of range.
std::optional<std::size_t> position(std::int64_t index, std::size_t size) {
  auto count = static_cast<std::int64_t>(size);
  if (index < 0) index += count;
  if (index < 0 || index >= count) return std::nullopt;
  return static_cast<std::size_t>(index);
}

// Characters of a text by their positions.
TracedText picked(const TracedText& text, const std::vector<std::size_t>& positions) {
  std::vector<std::size_t> starts;  // byte offset of each character, and the end
  for (std::size_t at = 0; at < text.size(); at += point_bytes(text.text()[at])) {
    starts.push_back(at);
  }
  starts.push_back(text.size());
  TracedText out;
  for (std::size_t at : positions) {
    std::string_view point(text.text().data() + starts[at], starts[at + 1] - starts[at]);
    out.append(point, text.origin_at(starts[at]));
  }
  return out;
}

std::optional<Value> plain_item(const Value& object, const Value& key) {
  if (const Dict* dict = object.dict()) {
    const Value* found = is_hashable(key) ? dict->find(key) : nullptr;
    return found ? std::optional(*found) : std::nullopt;
  }
  if (!key.integer()) return std::nullopt;
  const Sequence* sequence = object.sequence();
  if (sequence && sequence->has_items()) {
    auto at = position(*key.integer(), sequence->items.size());
    return at ? std::optional(sequence->items[*at]) : std::nullopt;
  }
  if (const TracedText* text = object.traced()) {
    auto at = position(*key.integer(), count_points(text->text()));
    return at ? std::optional<Value>(picked(*text, {*at})) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<Value> plain_attribute(const Value& object, std::string_view name) {
  if (Object* of_engine = object.object()) return of_engine->attribute(name);
  if (Builtin method = find_method(object, name)) {
    return Value(std::make_shared<Function>(method, object));
  }
  return std::nullopt;
}

std::int64_t slice_bound(const Value& bound, std::int64_t fallback) {
  if (bound.is_none()) return fallback;
  BEV_CHECK(bound.integer().has_value(), ErrorKind::kInput, "a slice from or to a ",
            bound.type_name(), "; its bounds are ints");
  return *bound.integer();
}

// Positions that Python's slice selects, in its order.
std::vector<std::size_t> slice_positions(std::size_t size, const SliceBounds& bounds) {
  auto count = static_cast<std::int64_t>(size);
  std::int64_t step = slice_bound(bounds.step, 1);
  BEV_CHECK(step != 0, ErrorKind::kInput, "the step of a slice is 0");
  std::int64_t lowest = step < 0 ? -1 : 0, highest = step < 0 ? count - 1 : count;
  auto place = [&](const Value& bound, std::int64_t fallback) {
    if (bound.is_none()) return fallback;
    std::int64_t at = slice_bound(bound, 0);
    if (at < 0) at += count;
    return std::clamp(at, lowest, std::max(lowest, highest));
  };
  std::int64_t start = place(bounds.start, step < 0 ? highest : lowest);
  std::int64_t stop = place(bounds.stop, step < 0 ? lowest : highest);
  std::vector<std::size_t> out;
  while (step > 0 ? start < stop : start > stop) {
    out.push_back(static_cast<std::size_t>(start));
    if (step > count || step < -count) break;
    start += step;
  }
  return out;
}

}  // namespace

void need_defined(const Value& value) {
  BEV_CHECK(!value.is_undefined(), ErrorKind::kInput, *value.undefined_cause());
}

Value text_value(Runtime& runtime, TracedText text) {
  runtime.spend(text.weight());
  return text;
}

Value list_value(Runtime& runtime, List items, SequenceKind kind) {
  runtime.spend(items.size() * sizeof(Value));
  return Value::sequence(std::move(items), kind);
}

Value apply(Runtime& runtime, BinaryOperator op, const Value& left, const Value& right) {
  if (left.is_number() && right.is_number()) return arithmetic(op, left, right);
  if (op == BinaryOperator::kAdd) return add(runtime, left, right);
  if (op == BinaryOperator::kMultiply && can_repeat(left, right)) {
    return repeat(runtime, left, right);
  }
  if (op == BinaryOperator::kMultiply && can_repeat(right, left)) {
    return repeat(runtime, right, left);
  }
  if (op == BinaryOperator::kModulo && left.is_string()) {
    return text_value(runtime, percent_format(*left.traced(), right));
  }
  refuse(op, left, right);
}

Value negate(const Value& value) {
  need_defined(value);
  BEV_CHECK(value.is_number(), ErrorKind::kInput, "a ", value.type_name(), " has no negative");
  if (value.is_float()) return -value.number();
  BEV_CHECK(*value.integer() != INT64_MIN, ErrorKind::kInput, "a number has more than 64 bits");
  return -*value.integer();
}

bool contains(Runtime& runtime, const Value& container, const Value& item) {
  runtime.spend(container.extent().weight / 16);
  if (const std::string* text = container.string()) {
    BEV_CHECK(item.is_string(), ErrorKind::kInput, "'in' of a str needs a str, not ",
              item.type_name());
    return text->find(*item.string()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    BEV_CHECK(is_hashable(item), ErrorKind::kInput, "a ", item.type_name(), " is no key of a dict");
    return dict->find(item) != nullptr;
  }
  List items = items_of(runtime, container);
  return std::ranges::any_of(items, [&](const Value& one) { return equal(one, item); });
}

bool compare(Runtime& runtime, Comparison op, const Value& left, const Value& right) {
  runtime.spend(std::min(left.extent().weight, right.extent().weight) / 16);
  switch (op) {
    case Comparison::kEqual:
      return equal(left, right);
    case Comparison::kNotEqual:
      return !equal(left, right);
    case Comparison::kLess:
      return less(left, right);
    case Comparison::kGreater:
      return less(right, left);
    case Comparison::kLessEqual:
      return less(left, right) || equal(left, right);
    case Comparison::kGreaterEqual:
      return less(right, left) || equal(left, right);
    case Comparison::kIn:
      return contains(runtime, right, left);
    default:
      return !contains(runtime, right, left);
  }
}

Value attribute_of(const Value& object, std::string_view name) {
  need_defined(object);
  if (std::optional<Value> found = plain_attribute(object, name)) return *found;
  const Dict* dict = object.dict();
  const Value* found = dict ? dict->find_name(name) : nullptr;
  return found ? *found : no_element(object, name);
}

Value item_of(const Value& object, const Value& key) {
  need_defined(object);
  if (std::optional<Value> found = plain_item(object, key)) return *found;
  if (const std::string* name = key.string()) {
    if (std::optional<Value> found = plain_attribute(object, *name)) return *found;
  }
  return no_element(object, key);
}

Value slice_of(Runtime& runtime, const Value& object, const SliceBounds& bounds) {
  need_defined(object);
  if (const TracedText* text = object.traced()) {
    runtime.spend(text->size());
    return picked(*text, slice_positions(count_points(text->text()), bounds));
  }
  const Sequence* sequence = object.sequence();
  BEV_CHECK(sequence && sequence->has_items(), ErrorKind::kInput, "a ", object.type_name(),
            " has no slices");
  List taken;
  for (std::size_t at : slice_positions(sequence->items.size(), bounds)) {
    taken.push_back(sequence->items[at]);
  }
  return list_value(runtime, std::move(taken), sequence->kind);
}

List items_of(Runtime& runtime, const Value& value) {
  runtime.spend(1);
  List out;
  if (const Sequence* sequence = value.sequence()) {
    runtime.spend(sequence->items.size());
    bool again = sequence->kind == SequenceKind::kGenerator && sequence->spent;
    sequence->spent = true;
    return again ? out : sequence->items;
  }
  if (const Dict* dict = value.dict()) {
    runtime.spend(dict->items.size());
    for (const auto& [key, item] : dict->items) out.push_back(key);
    return out;
  }
  if (const TracedText* text = value.traced()) {
    runtime.spend(text->size() * sizeof(Value));
    for (std::size_t at = 0; at < text->size();) {
      std::size_t bytes = point_bytes(text->text()[at]);
      out.push_back(text->substr(at, bytes));
      at += bytes;
    }
    return out;
  }
  BEV_CHECK(value.is_undefined(), ErrorKind::kInput, "a ", value.type_name(),
            " has no items to go through");
  return out;
}

std::int64_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const std::string* text = value.string()) {
    return static_cast<std::int64_t>(count_points(*text));
  }
  if (const Dict* dict = value.dict()) return static_cast<std::int64_t>(dict->items.size());
  const Sequence* sequence = value.sequence();
  BEV_CHECK(sequence && sequence->has_length(), ErrorKind::kInput, "a ", value.type_name(),
            " has no length");
  return static_cast<std::int64_t>(sequence->items.size());
}

}  // namespace bev::jinja
