#include "chat/jinja/string_literal.h"

#include <charconv>

#include "base/error.h"
#include "tokenizer/text/utf8.h"

namespace bev::jinja {

namespace {

// Leading digits of a base, at most `most`.
std::string_view leading_digits(std::string_view text, std::size_t most, int base) {
  std::size_t count = 0;
  std::string_view digits =
      std::string_view("0123456789abcdefABCDEF").substr(0, base == 8 ? 8 : 22);
  while (count < std::min(most, text.size()) && digits.find(text[count]) != digits.npos) ++count;
  return text.substr(0, count);
}

CodePoint number_of(std::string_view digits, int base) {
  CodePoint value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  return value;
}

}  // namespace

std::string unescape_literal(std::string_view content, std::string& problem) {
  constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
  std::string out;
  for (std::size_t at = 0; at < content.size();) {
    if (content[at] != '\\') {
      out.push_back(content[at++]);
      continue;
    }
    char letter = content[++at];  // a literal cannot end in a lone backslash
    if (std::size_t known = kLetters.find(letter); known != kLetters.npos) {
      out.push_back(kMeanings[known]);
      ++at;
    } else if (letter == '\n') {
      ++at;
    } else if (letter >= '0' && letter <= '7') {
      std::string_view digits = leading_digits(content.substr(at), 3, 8);
      append_point(out, number_of(digits, 8));
      at += digits.size();
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
      std::size_t wanted = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
      std::string_view digits = leading_digits(content.substr(at + 1), wanted, 16);
      CodePoint point = number_of(digits, 16);
      if (digits.size() < wanted || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) {
        problem = concat("the escape \\", letter, digits, " is not a character");
        return out;
      }
      append_point(out, point);
      at += 1 + digits.size();
    } else if (letter == 'N') {
      problem = "escapes by name (\\N{...}) are not supported; write \\u and the number";
      return out;
    } else {
      out.push_back('\\');  // Python keeps unknown escapes
    }
  }
  return out;
}

}  // namespace bev::jinja
