#include "serve/body.h"

#include "base/error.h"
#include "base/json_check.h"
#include "base/text.h"
#include "chat/jinja/value_text.h"
#include "serve/api_error.h"

namespace bev {

namespace {

constexpr std::int64_t kMostId = std::int64_t{1} << 31;

std::string shown(const jinja::Value& value) {
  jinja::JsonStyle style;
  style.ensure_ascii = true;
  return quote(jinja::json_text(value, style).text(), 40);
}

}  // namespace

Body::Body(std::string_view json) {
  try {
    object_ = jinja::parse_json(json, "the body");
  } catch (const Error& error) {
    throw ApiError(400, error.what(), {}, "invalid_json");
  }
  if (!object_.is_dict()) throw ApiError(400, "the body is no JSON object", {}, "invalid_json");
}

const jinja::Value* Body::find(std::string_view name) const {
  const jinja::Value* found = object_.dict()->find_name(name);
  return found == nullptr || found->is_none() ? nullptr : found;
}

void Body::fail(std::string_view name, const std::string& message) const {
  std::string field = concat(within_, name);
  throw ApiError(400, concat(field, ": ", message), field, "invalid_value");
}

void Body::refuse(std::initializer_list<std::string_view> names, std::string_view why) const {
  for (std::string_view name : names) {
    if (!has(name)) continue;
    std::string field = concat(within_, name);
    throw ApiError(400, concat(field, ": ", why), field, "unsupported_parameter");
  }
}

std::optional<double> Body::number(std::string_view name, double least, double most) const {
  const jinja::Value* found = find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_number() || found->is_bool()) {
    fail(name, concat(shown(*found), " is no number"));
  }
  double value = found->number();
  if (!(value >= least && value <= most)) {
    fail(name, concat(shown(*found), " is not between ", least, " and ", most));
  }
  return value;
}

std::optional<std::int64_t> Body::integer(std::string_view name, std::int64_t least,
                                          std::int64_t most) const {
  const jinja::Value* found = find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_int()) fail(name, concat(shown(*found), " is no integer"));
  std::int64_t value = *found->integer();
  if (value < least || value > most) {
    fail(name, concat(value, " is not between ", least, " and ", most));
  }
  return value;
}

std::optional<bool> Body::boolean(std::string_view name) const {
  const jinja::Value* found = find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_bool()) fail(name, concat(shown(*found), " is neither true nor false"));
  return found->boolean();
}

std::optional<std::string> Body::text(std::string_view name) const {
  const jinja::Value* found = find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_string()) fail(name, concat(shown(*found), " is no text"));
  return *found->string();
}

std::vector<std::string> Body::texts(std::string_view name) const {
  const jinja::Value* found = find(name);
  if (found == nullptr) return {};
  if (found->is_string()) return {*found->string()};
  const jinja::Sequence* list = found->sequence();
  if (list == nullptr) fail(name, concat(shown(*found), " is neither a text nor a list of texts"));
  std::vector<std::string> out;
  for (const jinja::Value& each : list->items) {
    if (!each.is_string()) fail(name, concat(shown(each), " is no text"));
    out.push_back(*each.string());
  }
  return out;
}

std::vector<std::int32_t> token_ids(const jinja::Value& list, std::int64_t vocabulary,
                                    const std::string& field) {
  auto fail = [&](const std::string& message) {
    throw ApiError(400, concat(field, ": ", message), field, "invalid_value");
  };
  if (!list.is_sequence()) fail(concat(shown(list), " is no list of token ids"));
  std::vector<std::int32_t> out;
  for (const jinja::Value& each : list.sequence()->items) {
    if (!each.is_int()) fail(concat(shown(each), " is no token id"));
    std::int64_t id = *each.integer();
    if (id < 0 || id >= std::min(vocabulary, kMostId)) {
      fail(concat("token ", id, " is outside of the vocabulary of ", vocabulary));
    }
    out.push_back(static_cast<std::int32_t>(id));
  }
  return out;
}

std::vector<std::int32_t> Body::ids(std::string_view name, std::int64_t vocabulary) const {
  const jinja::Value* found = find(name);
  if (found == nullptr) return {};
  return token_ids(*found, vocabulary, concat(within_, name));
}

std::optional<Body> Body::object(std::string_view name) const {
  const jinja::Value* found = find(name);
  if (found == nullptr) return std::nullopt;
  if (!found->is_dict()) fail(name, concat(shown(*found), " is no object"));
  return Body(*found, concat(within_, name));
}

}  // namespace bev
