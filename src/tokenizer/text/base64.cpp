#include "tokenizer/text/base64.h"

#include <cstdint>

#include "base/error.h"
#include "base/json_check.h"

namespace bev {

std::string decode_base64(std::string_view text, std::string_view source) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string_view digits = text.substr(0, text.find_last_not_of('=') + 1);
  bool good = text.size() % 4 == 0 && text.size() - digits.size() <= 2;
  std::string out;
  out.reserve(text.size() / 4 * 3);
  std::uint32_t bits = 0;
  int count = 0;
  for (char digit : digits) {
    std::size_t value = kDigits.find(digit);
    good = good && value != std::string_view::npos;
    bits = bits << 6 | static_cast<std::uint32_t>(value & 63);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out.push_back(static_cast<char>(bits >> count & 0xff));
  }
  BEV_CHECK(good, ErrorKind::kInput, source, ": ", quote(text), " is not base64");
  return out;
}

}  // namespace bev
