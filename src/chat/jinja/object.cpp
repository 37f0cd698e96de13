#include "chat/jinja/object.h"

#include <algorithm>

#include "base/error.h"
#include "base/json_check.h"
#include "chat/jinja/value_text.h"

namespace bev::jinja {

void Runtime::refuse() {
  BEV_FAIL(ErrorKind::kInput, "the template does not end, or makes more text than a chat can have");
}

std::shared_ptr<Object> Runtime::make_namespace(Dict values) {
  spend(values.items.size() + 1);
  return namespaces_.emplace_back(std::make_shared<Namespace>(std::move(values)));
}

Runtime::~Runtime() {
  for (const auto& kept : namespaces_) static_cast<Namespace&>(*kept).clear();
}

Runtime::Level::Level(Runtime& runtime) : runtime_(runtime) {
  constexpr int kMostDepth = 1000;
  BEV_CHECK(runtime.depth_ < kMostDepth, ErrorKind::kInput,
            "expressions or macros nest too deep, perhaps without an end");
  ++runtime.depth_;
}

Parameters::Parameters(std::string_view function, const Arguments& arguments,
                       std::initializer_list<std::string_view> names)
    : function_(function), names_(names), values_(names.size()) {
  BEV_CHECK(arguments.positional.size() <= names.size(), ErrorKind::kInput, function, "() takes ",
            names.size(), " arguments but ", arguments.positional.size(), " were given");
  std::ranges::copy(arguments.positional, values_.begin());
  for (const auto& [name, value] : arguments.named) {
    auto found = std::ranges::find(names_, name);
    BEV_CHECK(found != names_.end(), ErrorKind::kInput, function, "() has no parameter ",
              quote(name));
    std::optional<Value>& slot = values_[static_cast<std::size_t>(found - names_.begin())];
    BEV_CHECK(!slot, ErrorKind::kInput, function, "() got ", quote(name), " twice");
    slot = value;
  }
}

const Value& Parameters::operator[](std::size_t at) const {
  BEV_CHECK(values_[at].has_value(), ErrorKind::kInput, function_, "() needs ", names_[at]);
  return *values_[at];
}

Value Parameters::get(std::size_t at, Value fallback) const {
  return values_[at] ? *values_[at] : std::move(fallback);
}

bool Parameters::flag(std::size_t at, bool fallback) const {
  return values_[at] ? values_[at]->truth() : fallback;
}

std::int64_t Parameters::integer(std::size_t at, std::int64_t fallback) const {
  if (!values_[at]) return fallback;
  std::optional<std::int64_t> value = values_[at]->integer();
  BEV_CHECK(value.has_value(), ErrorKind::kInput, function_, "(): ", names_[at], " is a ",
            values_[at]->type_name(), ", not an int");
  return *value;
}

std::string Parameters::text(std::size_t at, std::string_view fallback) const {
  return traced(at, fallback).text();
}

TracedText Parameters::traced(std::size_t at, std::string_view fallback) const {
  if (!values_[at]) return fallback;
  const TracedText* value = values_[at]->traced();
  BEV_CHECK(value != nullptr, ErrorKind::kInput, function_, "(): ", names_[at], " is a ",
            values_[at]->type_name(), ", not a str");
  return *value;
}

std::string Object::text() const { return concat("<", type_name(), ">"); }
std::optional<Value> Object::attribute(std::string_view) const { return std::nullopt; }
Value Object::call(Runtime&, const Arguments&) {
  BEV_FAIL(ErrorKind::kInput, "'", type_name(), "' object is not callable");
}

std::string Namespace::text() const { return concat("<Namespace ", python_repr(values_), ">"); }

std::optional<Value> Namespace::attribute(std::string_view name) const {
  const Value* found = values_.find_name(name);
  return found == nullptr ? std::nullopt : std::optional(*found);
}

bool Namespace::set(std::string_view name, Value value) {
  BEV_CHECK(!name.starts_with('_'), ErrorKind::kInput, "a namespace cannot have ", quote(name),
            ": the name starts with an underscore");
  values_.set(name, std::move(value));
  return true;
}

}  // namespace bev::jinja
