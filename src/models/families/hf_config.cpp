#include "models/families/hf_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_check.h"

namespace bev {

namespace {
using Json = nlohmann::json;

constexpr int kMaxDepth = 32;
constexpr std::int64_t kMaxInteger = 1 << 28;  // keeps multiplied sizes within 64 bits

// Value as text for a message, shortened.
std::string shown(const Json& value) {
  std::string text = unmark_python_numbers(value.dump(-1, ' ', true));
  constexpr std::size_t kMost = 80;
  if (text.size() > kMost) text = text.substr(0, kMost) + "...";
  return text;
}

bool is_positive_integer(const Json& value) {
  // An integer above the signed range is stored unsigned and reads as negative.
  return value.is_number_integer() && value.get<std::int64_t>() > 0 &&
         value.get<std::int64_t>() <= kMaxInteger;
}
bool is_count(const Json& value) { return is_positive_integer(value) || value == 0; }
bool is_positive(const Json& value) { return value.is_number() && value.get<double>() > 0; }
bool is_magnitude(const Json& value) { return value.is_number() && value.get<double>() >= 0; }
bool is_flag(const Json& value) { return value.is_boolean(); }
bool is_text(const Json& value) {
  // Marked numbers of Python are strings too.
  return value.is_string() && !value.get_ref<const std::string&>().starts_with('\x01');
}
bool is_object(const Json& value) { return value.is_object(); }
bool are_positive(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_positive);
}
// Python's number, or what transformers 5 writes in its place.
bool is_infinity(const Json& value) {
  if (value.is_object()) return value == Json{{"__float__", "Infinity"}};
  return value.is_string() && value == "\x01Infinity";
}
bool are_limits(const Json& value) {
  auto is_limit = [](const Json& one) { return is_magnitude(one) || is_infinity(one); };
  return value.is_array() && std::all_of(value.begin(), value.end(), is_limit);
}
bool are_texts(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_text);
}
bool are_counts(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), is_count);
}
}  // namespace

struct HfConfig::Impl {
  Json json = Json::object();
  std::string source = "config.json";
  std::string prefix;  // of keys in messages: "rope_scaling." inside that object

  const Json* find(std::string_view key) const {
    auto found = json.find(key);
    return found == json.end() || found->is_null() ? nullptr : &*found;
  }
  std::string place(std::string_view key) const { return concat(source, ": ", prefix, key); }

  using Test = bool (*)(const Json&);
  // Returns the value if it passes the test, nullptr if the key is missing.
  const Json* get(std::string_view key, Test test, std::string_view wanted) const {
    const Json* value = find(key);
    BEV_CHECK(value == nullptr || test(*value), ErrorKind::kInput, place(key), " must be ", wanted,
              ", got ", shown(*value));
    return value;
  }
  const Json& require(std::string_view key, Test test, std::string_view wanted) const {
    const Json* value = get(key, test, wanted);
    BEV_CHECK(value != nullptr, ErrorKind::kInput, place(key), " is missing; it must be ", wanted);
    return *value;
  }
  template <class T>
  T get_or(std::string_view key, Test test, std::string_view wanted, T missing) const {
    const Json* value = get(key, test, wanted);
    return value == nullptr ? missing : value->get<T>();
  }
};

HfConfig::HfConfig() : impl_(std::make_unique<Impl>()) {}
HfConfig::HfConfig(const HfConfig& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}
HfConfig::HfConfig(HfConfig&& other) noexcept = default;
HfConfig& HfConfig::operator=(HfConfig other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}
HfConfig::~HfConfig() = default;

HfConfig HfConfig::parse(std::string_view text, std::string source) {
  const std::string json = mark_python_numbers(text);
  check_json(json, source, kMaxDepth);
  HfConfig config;
  config.impl_->json = Json::parse(json);
  config.impl_->source = std::move(source);
  BEV_CHECK(config.impl_->json.is_object(), ErrorKind::kInput, config.impl_->source,
            ": must be a JSON object, got ", shown(config.impl_->json));
  return config;
}

const std::string& HfConfig::source() const { return impl_->source; }
bool HfConfig::empty() const { return impl_->json.empty(); }
bool HfConfig::has(std::string_view key) const { return impl_->find(key) != nullptr; }
bool HfConfig::listed(std::string_view key) const { return impl_->json.contains(key); }
bool HfConfig::truthy(std::string_view key) const {
  const Json* value = impl_->find(key);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  if (value->is_number()) return value->get<double>() != 0;
  if (value->is_string()) return !value->get_ref<const std::string&>().empty();
  return !value->empty();
}
bool HfConfig::infinite(std::string_view key) const {
  const Json* value = impl_->find(key);
  return value != nullptr && shown(*value) == "Infinity";
}

std::int64_t HfConfig::positive_integer(std::string_view key) const {
  return impl_->require(key, is_positive_integer, "a positive integer").get<std::int64_t>();
}
std::int64_t HfConfig::positive_integer(std::string_view key, std::int64_t missing) const {
  return impl_->get_or(key, is_positive_integer, "a positive integer", missing);
}
std::int64_t HfConfig::count(std::string_view key, std::int64_t missing) const {
  return impl_->get_or(key, is_count, "an integer >= 0", missing);
}
std::int64_t HfConfig::integer(std::string_view key, std::int64_t missing) const {
  auto is_integer = [](const Json& value) { return value.is_number_integer(); };
  return impl_->get_or(key, is_integer, "an integer", missing);
}
double HfConfig::positive_number(std::string_view key) const {
  return impl_->require(key, is_positive, "a positive number").get<double>();
}
double HfConfig::positive_number(std::string_view key, double missing) const {
  return impl_->get_or(key, is_positive, "a positive number", missing);
}
double HfConfig::magnitude(std::string_view key, double missing) const {
  return impl_->get_or(key, is_magnitude, "a number >= 0", missing);
}
bool HfConfig::boolean(std::string_view key, bool missing) const {
  return impl_->get_or(key, is_flag, "true or false", missing);
}
std::string HfConfig::text(std::string_view key) const {
  return impl_->require(key, is_text, "text").get<std::string>();
}
std::string HfConfig::text(std::string_view key, std::string_view missing) const {
  return impl_->get_or(key, is_text, "text", std::string(missing));
}
std::vector<double> HfConfig::positive_numbers(std::string_view key) const {
  return impl_->require(key, are_positive, "a list of positive numbers").get<std::vector<double>>();
}
std::vector<double> HfConfig::limits(std::string_view key) const {
  const Json* value = impl_->get(key, are_limits, "a list of numbers >= 0");
  std::vector<double> numbers;
  if (value == nullptr) return numbers;
  for (const Json& one : *value) numbers.push_back(is_infinity(one) ? HUGE_VAL : one.get<double>());
  return numbers;
}
bool HfConfig::is(std::string_view key, std::string_view value) const {
  const Json* found = impl_->find(key);
  return found != nullptr && is_text(*found) && *found == value;
}
std::vector<std::string> HfConfig::texts(std::string_view key) const {
  return impl_->require(key, are_texts, "a list of texts").get<std::vector<std::string>>();
}
std::vector<std::int64_t> HfConfig::counts(std::string_view key) const {
  const Json* value = impl_->get(key, are_counts, "a list of integers >= 0");
  return value == nullptr ? std::vector<std::int64_t>() : value->get<std::vector<std::int64_t>>();
}
std::optional<HfConfig> HfConfig::object(std::string_view key) const {
  const Json* value = impl_->get(key, is_object, "an object");
  if (value == nullptr) return std::nullopt;
  HfConfig inner;
  inner.impl_->json = *value;
  inner.impl_->source = impl_->source;
  inner.impl_->prefix = concat(impl_->prefix, key, ".");
  return inner;
}

void HfConfig::reject(std::string_view key, std::string_view why) const {
  const Json* value = impl_->find(key);
  BEV_FAIL(ErrorKind::kInput, impl_->place(key), " is ", value ? shown(*value) : "missing", "; ",
           why);
}

void HfConfig::set(std::string_view key, bool value) { impl_->json[std::string(key)] = value; }
void HfConfig::set(std::string_view key, std::int64_t value) {
  impl_->json[std::string(key)] = value;
}
void HfConfig::set(std::string_view key, double value) {
  Json& to = impl_->json[std::string(key)];
  to = std::isinf(value) ? Json(value > 0 ? "\x01Infinity" : "\x01-Infinity") : Json(value);
}
void HfConfig::set(std::string_view key, std::string_view value) {
  impl_->json[std::string(key)] = value;
}
void HfConfig::set(std::string_view key, const std::vector<std::int64_t>& value) {
  impl_->json[std::string(key)] = value;
}
void HfConfig::set(std::string_view key, const std::vector<double>& value) {
  Json& to = impl_->json[std::string(key)];
  to = value;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (std::isinf(value[i])) to[i] = "\x01Infinity";
  }
}
void HfConfig::set(std::string_view key, const std::vector<std::string>& value) {
  impl_->json[std::string(key)] = value;
}
void HfConfig::set(std::string_view key, const HfConfig& value) {
  impl_->json[std::string(key)] = value.impl_->json;
}
void HfConfig::set_null(std::string_view key) { impl_->json[std::string(key)] = nullptr; }

std::string HfConfig::dump() const {
  return unmark_python_numbers(impl_->json.dump(2, ' ', true)) + "\n";
}

}  // namespace bev
