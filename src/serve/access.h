// Who may call what: API keys, the key of control routes, and origins of web pages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/http.h"

namespace bev {

struct AccessOptions {
  std::vector<std::string> api_keys;      // empty: everyone may call
  std::vector<std::string> control_keys;  // empty: control routes are closed
  std::vector<std::string> origins;       // of web pages elsewhere; "*": all
};

// Whether the texts are equal, in a time that depends on the second alone.
bool equal_in_constant_time(std::string_view given, std::string_view secret);
// The key of the header Authorization: "Bearer KEY", or the password of "Basic ..."; "" if there
// is none.
std::string key_of(const HttpRequest& request);
// Whether the request carries one of the keys. All of them are compared.
bool has_key(const HttpRequest& request, const std::vector<std::string>& keys);
// The value of Access-Control-Allow-Origin for a request; "" if its origin is none of them.
std::string allowed_origin(const HttpRequest& request, const std::vector<std::string>& origins);

std::string base64(std::string_view bytes);

}  // namespace bev
