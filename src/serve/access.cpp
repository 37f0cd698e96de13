#include "serve/access.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/divide.h"
#include "base/text.h"

namespace bev {

namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// "" if it is not base64.
std::string from_base64(std::string_view text) {
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  while (text.ends_with('=')) text.remove_suffix(1);
  for (char c : text) {
    std::size_t value = kAlphabet.find(c);
    if (value == std::string_view::npos) return {};
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xff);
  }
  return out;
}

bool starts_with_word(std::string_view text, std::string_view word) {
  return text.size() > word.size() && text[word.size()] == ' ' &&
         same_ignoring_case(text.substr(0, word.size()), word);
}

}  // namespace

std::string base64(std::string_view bytes) {
  std::string out;
  out.reserve(ceil_div(bytes.size(), std::size_t{3}) * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::array<std::uint32_t, 3> three{};
    std::size_t count = std::min<std::size_t>(bytes.size() - i, 3);
    for (std::size_t k = 0; k < count; ++k) three[k] = static_cast<unsigned char>(bytes[i + k]);
    std::uint32_t bits = three[0] << 16 | three[1] << 8 | three[2];
    for (std::size_t k = 0; k < 4; ++k) {
      out += k <= count ? kAlphabet[bits >> (18 - 6 * k) & 63] : '=';
    }
  }
  return out;
}

bool equal_in_constant_time(std::string_view given, std::string_view secret) {
  auto different = static_cast<unsigned>(given.size() != secret.size());
  for (std::size_t i = 0; i < secret.size(); ++i) {
    auto other = i < given.size() ? static_cast<unsigned char>(given[i]) : 0u;
    different |= other ^ static_cast<unsigned char>(secret[i]);
  }
  return different == 0;
}

std::string key_of(const HttpRequest& request) {
  std::string_view value = trim(request.header("Authorization"));
  if (starts_with_word(value, "bearer")) return std::string(trim(value.substr(6)));
  if (!starts_with_word(value, "basic")) return {};
  std::string pair = from_base64(trim(value.substr(5)));
  std::size_t colon = pair.find(':');
  return colon == std::string::npos ? "" : pair.substr(colon + 1);
}

bool has_key(const HttpRequest& request, const std::vector<std::string>& keys) {
  const std::string given = key_of(request);
  bool found = false;
  for (const std::string& key : keys) found |= equal_in_constant_time(given, key);
  return found;
}

std::string allowed_origin(const HttpRequest& request, const std::vector<std::string>& origins) {
  std::string origin(request.header("Origin"));
  if (origin.empty()) return {};
  if (std::ranges::find(origins, "*") != origins.end()) return "*";
  return std::ranges::find(origins, origin) != origins.end() ? origin : "";
}

}  // namespace bev
