// The JSON body of a request: fields by name, checked. null means absent, unknown fields are
// skipped. What does not fit is an ApiError 400 that names the field.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat/jinja/value.h"

namespace bev {

class Body {
 public:
  explicit Body(std::string_view json);
  // An object inside of a body; `within` precedes the names of its fields in messages.
  Body(jinja::Value object, std::string within)
      : object_(std::move(object)), within_(within + ".") {}

  // nullptr if it is absent or null.
  const jinja::Value* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // Whether it is there, be it null.
  bool mentions(std::string_view name) const { return object_.dict()->find_name(name) != nullptr; }

  std::optional<double> number(std::string_view name, double least, double most) const;
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t least,
                                      std::int64_t most) const;
  std::optional<bool> boolean(std::string_view name) const;
  bool flag(std::string_view name, bool otherwise) const {
    return boolean(name).value_or(otherwise);
  }
  std::optional<std::string> text(std::string_view name) const;
  // A text or a list of texts; empty if it is absent.
  std::vector<std::string> texts(std::string_view name) const;
  // A list of token ids below `vocabulary`; empty if it is absent.
  std::vector<std::int32_t> ids(std::string_view name, std::int64_t vocabulary) const;
  std::optional<Body> object(std::string_view name) const;

  // 400 "NAME: MESSAGE".
  [[noreturn]] void fail(std::string_view name, const std::string& message) const;
  // 400 for the first of these that is there.
  void refuse(std::initializer_list<std::string_view> names, std::string_view why) const;

 private:
  jinja::Value object_;
  std::string within_;
};

// Token ids of a list; fails by throwing ApiError that names `field`.
std::vector<std::int32_t> token_ids(const jinja::Value& list, std::int64_t vocabulary,
                                    const std::string& field);

}  // namespace bev
