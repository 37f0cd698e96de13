// Writes JSON into a string, value by value: for answers, of which there may be thousands a second.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace bev {

class JsonText {
 public:
  JsonText& begin_object() { return open('{'); }
  JsonText& end_object() { return close('}'); }
  JsonText& begin_list() { return open('['); }
  JsonText& end_list() { return close(']'); }
  JsonText& key(std::string_view name);

  JsonText& text(std::string_view value);  // valid UTF-8
  JsonText& number(double value);          // null for what is no number; round-trips
  JsonText& integer(std::int64_t value);
  JsonText& boolean(bool value) { return json(value ? "true" : "false"); }
  JsonText& null() { return json("null"); }
  // A value that is JSON text already.
  JsonText& json(std::string_view value);

  // A member of the object.
  JsonText& add(std::string_view name, std::string_view value) { return key(name).text(value); }
  JsonText& add(std::string_view name, const char* value) { return key(name).text(value); }
  JsonText& add(std::string_view name, std::same_as<bool> auto value) {
    return key(name).boolean(value);
  }
  JsonText& add(std::string_view name,
                std::integral auto value) requires(!std::same_as<decltype(value), bool>) {
    return key(name).integer(static_cast<std::int64_t>(value));
  }
  JsonText& add(std::string_view name, double value) { return key(name).number(value); }
  JsonText& add_null(std::string_view name) { return key(name).null(); }
  JsonText& add_json(std::string_view name, std::string_view value) {
    return key(name).json(value);
  }

  const std::string& str() const { return out_; }
  std::string take() { return std::move(out_); }

 private:
  JsonText& open(char bracket);
  JsonText& close(char bracket);
  void separate();

  std::string out_;
  bool comma_ = false;  // the next value follows another
};

// [1,2,3]
template <class Integers>
std::string json_integers(const Integers& values) {
  JsonText out;
  out.begin_list();
  for (auto value : values) out.integer(static_cast<std::int64_t>(value));
  return out.end_list().take();
}

}  // namespace bev
