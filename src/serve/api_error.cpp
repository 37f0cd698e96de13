#include "serve/api_error.h"

#include "serve/json_text.h"

namespace bev {

namespace {

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "service_unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

std::string ApiError::object() const {
  auto or_null = [](JsonText& out, std::string_view name, const std::string& value) {
    value.empty() ? out.add_null(name) : out.add(name, value);
  };
  JsonText out;
  out.begin_object();
  out.add("message", message_).add("type", type_of(status_));
  or_null(out, "param", param_);
  or_null(out, "code", code_);
  return out.end_object().take();
}

std::string ApiError::body() const {
  JsonText out;
  return out.begin_object().add_json("error", object()).end_object().take();
}

}  // namespace bev
