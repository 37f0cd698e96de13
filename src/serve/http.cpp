#include "serve/http.h"

#include <algorithm>
#include <array>
#include <utility>

namespace bev {

namespace {
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

bool is_alphanumeric(char c) {
  return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z');
}

// The value of a hexadecimal digit; -1 for another character.
int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (lower(c) >= 'a' && lower(c) <= 'f') return lower(c) - 'a' + 10;
  return -1;
}
}  // namespace

std::string_view find_header(std::span<const HttpHeader> headers, std::string_view name) {
  auto is_it = [&](const HttpHeader& header) { return same_ignoring_case(header.name, name); };
  auto found = std::ranges::find_if(headers, is_it);
  return found == headers.end() ? std::string_view() : std::string_view(found->value);
}

std::string_view reason_of(int status) {
  using Reason = std::pair<int, std::string_view>;
  static constexpr std::array kReasons = {
      Reason{100, "Continue"},
      Reason{200, "OK"},
      Reason{201, "Created"},
      Reason{202, "Accepted"},
      Reason{204, "No Content"},
      Reason{206, "Partial Content"},
      Reason{301, "Moved Permanently"},
      Reason{302, "Found"},
      Reason{304, "Not Modified"},
      Reason{307, "Temporary Redirect"},
      Reason{308, "Permanent Redirect"},
      Reason{400, "Bad Request"},
      Reason{401, "Unauthorized"},
      Reason{403, "Forbidden"},
      Reason{404, "Not Found"},
      Reason{405, "Method Not Allowed"},
      Reason{406, "Not Acceptable"},
      Reason{408, "Request Timeout"},
      Reason{409, "Conflict"},
      Reason{413, "Content Too Large"},
      Reason{415, "Unsupported Media Type"},
      Reason{417, "Expectation Failed"},
      Reason{422, "Unprocessable Content"},
      Reason{429, "Too Many Requests"},
      Reason{431, "Request Header Fields Too Large"},
      Reason{499, "Client Closed Request"},
      Reason{500, "Internal Server Error"},
      Reason{501, "Not Implemented"},
      Reason{502, "Bad Gateway"},
      Reason{503, "Service Unavailable"},
      Reason{504, "Gateway Timeout"},
      Reason{505, "HTTP Version Not Supported"},
  };
  auto found = std::ranges::find(kReasons, status, &Reason::first);
  return found == kReasons.end() ? std::string_view("Unknown") : found->second;
}

bool same_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, lower, lower);
}

bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  auto may_stand = [&](char c) {
    return is_alphanumeric(c) || kMarks.find(c) != std::string_view::npos;
  };
  return !text.empty() && std::ranges::all_of(text, may_stand);
}

bool is_header_value(std::string_view text) {
  auto is_control = [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
  };
  return std::ranges::none_of(text, is_control);
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    int high = digit_of(text[i + 1]), low = digit_of(text[i + 2]);
    if (high < 0 || low < 0 || high + low == 0) return std::nullopt;
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return out;
}

std::string percent_encoded_path(std::string_view path) {
  constexpr std::string_view kPlain = "/-._~!$&'()*+,;=:@";
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  out.reserve(path.size());
  for (char c : path) {
    if (is_alphanumeric(c) || kPlain.find(c) != std::string_view::npos) {
      out.push_back(c);
    } else {
      auto byte = static_cast<unsigned char>(c);
      out.append({'%', kDigits[byte >> 4], kDigits[byte & 15]});
    }
  }
  return out;
}

}  // namespace bev
