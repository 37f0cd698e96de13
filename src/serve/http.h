// Requests and answers of HTTP/1.1 as values, for the server and the client.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bev {

struct HttpHeader {
  std::string name, value;
};

// The value of the first header with this name, whatever its case; "" if there is none.
std::string_view find_header(std::span<const HttpHeader> headers, std::string_view name);

struct HttpRequest {
  std::string method = {};
  std::string path = {};   // without the query, percent-decoded
  std::string query = {};  // what follows '?', as sent
  std::vector<HttpHeader> headers = {};
  std::string body = {};

  std::string_view header(std::string_view name) const { return find_header(headers, name); }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  // An answer to send needs no Content-Length, Transfer-Encoding, Connection, Date or Server; one
  // that was received has all its headers here, Content-Type too.
  std::vector<HttpHeader> headers = {};
  std::string body = {};

  std::string_view header(std::string_view name) const { return find_header(headers, name); }
};

// "Not Found" for 404.
std::string_view reason_of(int status);

bool same_ignoring_case(std::string_view a, std::string_view b);
// May this be a method or the name of a header, and this the value of one (no line break)?
bool is_token(std::string_view text);
bool is_header_value(std::string_view text);

// "a b" for "a%20b"; nothing if an escape is malformed or stands for NUL.
std::optional<std::string> percent_decoded(std::string_view text);
// Slashes stay.
std::string percent_encoded_path(std::string_view path);

}  // namespace bev
