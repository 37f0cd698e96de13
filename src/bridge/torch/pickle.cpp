#include "bridge/torch/pickle.h"

#include <cmath>

#include "base/text.h"

namespace bev {

std::string_view name_of(PickleKind kind) {
  switch (kind) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return "bool";
    case PickleKind::kInt:
    case PickleKind::kBigInt:
      return "int";
    case PickleKind::kFloat:
      return "float";
    case PickleKind::kText:
      return "str";
    case PickleKind::kBytes:
      return "bytes";
    case PickleKind::kList:
      return "list";
    case PickleKind::kTuple:
      return "tuple";
    case PickleKind::kSet:
      return "set";
    case PickleKind::kDict:
      return "dict";
    case PickleKind::kGlobal:
      return "name";
    case PickleKind::kObject:
      return "object";
    case PickleKind::kPersistent:
      return "storage";
  }
  return "";
}

namespace {

constexpr double kByte = 256;

// Two's complement, little-endian.
double big_number(std::string_view bytes) {
  double value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i) {
    value = value * kByte + static_cast<unsigned char>(bytes[i - 1]);
  }
  bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80u) != 0;
  return negative ? value - std::pow(kByte, static_cast<double>(bytes.size())) : value;
}

// Where key and value pairs of a value are; nullptr: it has none.
const PickleValue* pairs_of(const PickleValue& value) {
  if (value.kind == PickleKind::kDict) return &value;
  if (value.kind != PickleKind::kObject) return nullptr;
  if (!value.items.empty()) return &value;
  if (value.state != nullptr && value.state->kind == PickleKind::kDict) return value.state;
  // OrderedDict of Python 2: its arguments are ([[key, value], ..],), which nothing writes now.
  return nullptr;
}

}  // namespace

bool PickleValue::made_by(std::string_view name) const {
  return kind == PickleKind::kObject && callable->text == name;
}

const PickleValue* PickleValue::find(std::string_view key) const {
  const PickleValue* dict = pairs_of(*this);
  if (dict == nullptr) return nullptr;
  const PickleValue* found = nullptr;  // the last of equal keys counts, as in Python
  for (std::size_t i = 0; i + 1 < dict->items.size(); i += 2) {
    if (dict->items[i]->kind == PickleKind::kText && dict->items[i]->text == key) {
      found = dict->items[i + 1];
    }
  }
  return found;
}

std::span<const PickleValue* const> PickleValue::elements() const {
  if (kind == PickleKind::kList || kind == PickleKind::kTuple || kind == PickleKind::kSet) {
    return items;
  }
  bool around_one = kind == PickleKind::kObject && arguments->items.size() == 1;
  if (!around_one) return {};
  const PickleValue& inner = *arguments->items[0];
  bool sequence = inner.kind == PickleKind::kList || inner.kind == PickleKind::kTuple;
  return sequence ? std::span<const PickleValue* const>(inner.items)
                  : std::span<const PickleValue* const>();
}

std::vector<std::pair<const PickleValue*, const PickleValue*>> PickleValue::pairs() const {
  std::vector<std::pair<const PickleValue*, const PickleValue*>> out;
  const PickleValue* dict = pairs_of(*this);
  if (dict == nullptr) return out;
  for (std::size_t i = 0; i + 1 < dict->items.size(); i += 2) {
    out.emplace_back(dict->items[i], dict->items[i + 1]);
  }
  return out;
}

std::optional<std::int64_t> PickleValue::as_int() const {
  if (kind == PickleKind::kInt || kind == PickleKind::kBool) return integer;
  return std::nullopt;
}

std::optional<double> PickleValue::as_number() const {
  if (kind == PickleKind::kInt) return static_cast<double>(integer);
  if (kind == PickleKind::kFloat) return number;
  if (kind == PickleKind::kBigInt) return big_number(text);
  return std::nullopt;
}

std::optional<std::string_view> PickleValue::as_text() const {
  return kind == PickleKind::kText ? std::optional(text) : std::nullopt;
}

namespace {

// Lists are cut, and nothing deeper than this is shown.
constexpr int kShownDepth = 3;
constexpr std::size_t kShownItems = 8, kShownLetters = 60;

void append_value(std::string& out, const PickleValue& value, int depth);

void append_items(std::string& out, std::span<const PickleValue* const> items, int depth) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    if (i == kShownItems || depth == 0) {
      out += "..";
      return;
    }
    append_value(out, *items[i], depth - 1);
  }
}

void append_value(std::string& out, const PickleValue& value, int depth) {
  switch (value.kind) {
    case PickleKind::kBool:
      out += value.integer != 0 ? "True" : "False";
      break;
    case PickleKind::kInt:
      out += concat(value.integer);
      break;
    case PickleKind::kBigInt:
    case PickleKind::kFloat:
      out += concat(*value.as_number());
      break;
    case PickleKind::kText:
      out += value.text.substr(0, kShownLetters);
      break;
    case PickleKind::kGlobal:
      out += value.text.substr(value.text.rfind('.') + 1);
      break;
    case PickleKind::kList:
    case PickleKind::kTuple:
      out += '[';
      append_items(out, value.items, depth);
      out += ']';
      break;
    case PickleKind::kObject:
      append_value(out, *value.callable, 0);
      out += '(';
      append_items(out, value.arguments->items, depth);
      out += ')';
      break;
    default:
      out += name_of(value.kind);
  }
}

}  // namespace

std::string pickle_text(const PickleValue& value) {
  std::string out;
  append_value(out, value, kShownDepth);
  return out;
}

}  // namespace bev
