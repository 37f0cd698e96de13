#include "chat/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "base/json_check.h"
#include "chat/jinja/python_text.h"
#include "chat/jinja/string_literal.h"
#include "tokenizer/text/unicode.h"

namespace bev::jinja {

namespace {

// Normalizes line ends to "\n" and drops one at the end of the template.
std::string with_plain_lines(std::string_view source) {
  std::string out;
  for (std::size_t i = 0; i < source.size(); ++i) {
    bool carriage_return = source[i] == '\r';
    out.push_back(carriage_return ? '\n' : source[i]);
    if (carriage_return && i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_text();
    add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  char next() const { return at_ < source_.size() ? source_[at_] : '\0'; }

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    BEV_FAIL(ErrorKind::kInput, "line ", line_, ": ", parts...);
  }

  void add(TokenKind kind, std::string text, Value number = {}) {
    tokens_.push_back({kind, std::move(text), std::move(number), line_});
  }
  void advance(std::size_t bytes) {
    line_ += static_cast<int>(std::ranges::count(rest().substr(0, bytes), '\n'));
    at_ += bytes;
  }
  bool skip(std::string_view text) {
    if (!rest().starts_with(text)) return false;
    advance(text.size());
    return true;
  }
  void skip_space() { advance(rest().size() - strip(rest(), Side::kLeft).size()); }

  // Adds the text before a tag, without the white space that the tag strips.
  void add_text(std::string_view text, char sign, bool strips_line) {
    if (sign == '-') {
      text = strip(text, Side::kRight);
    } else if (sign != '+' && strips_line) {
      std::size_t line_begin = text.rfind('\n') + 1;  // 0 if there is no line end
      bool starts_line = line_begin > 0 || at_line_start_;
      if (starts_line && strip(text.substr(line_begin), Side::kLeft).empty()) {
        text = text.substr(0, line_begin);
      }
    }
    if (!text.empty()) add(TokenKind::kText, std::string(text));
  }

  // Consumes the end of a tag, if it is here: "-%}" strips all white space after it, "%}" one line
  // end.
  bool skip_tag_end(std::string_view end, bool takes_line) {
    std::string minus = concat("-", end), plus = concat("+", end);
    if (skip(minus)) {
      skip_space();
    } else if (!(takes_line && skip(plus))) {
      if (!skip(end)) return false;
      if (takes_line) skip("\n");
    }
    at_line_start_ = source_[at_ - 1] == '\n';
    return true;
  }

  void read_text() {
    std::string_view text = rest();
    std::size_t found = 0;
    for (;; ++found) {
      found = text.find('{', found);
      if (found == text.npos) break;
      if (found + 1 < text.size() && std::string_view("{%#").find(text[found + 1]) != text.npos) {
        break;
      }
    }
    if (found == text.npos) {
      add(TokenKind::kText, std::string(text));
      advance(text.size());
      return;
    }
    char tag = text[found + 1];
    char sign = found + 2 < text.size() ? text[found + 2] : '\0';
    bool has_sign = sign == '-' || sign == '+';
    add_text(text.substr(0, found), has_sign ? sign : '\0', tag != '{');
    advance(found + (has_sign ? 3 : 2));
    at_line_start_ = false;
    if (tag == '#') {
      read_comment();
    } else if (tag == '{') {
      read_tag(TokenKind::kPrintBegin, TokenKind::kPrintEnd, "}}", false);
    } else if (!read_raw()) {
      read_tag(TokenKind::kBlockBegin, TokenKind::kBlockEnd, "%}", true);
    }
  }

  void read_comment() {
    std::size_t end = rest().find("#}");
    if (end == std::string::npos) fail("the comment {# has no end #}");
    bool sign = end > 0 && (rest()[end - 1] == '-' || rest()[end - 1] == '+');
    advance(sign ? end - 1 : end);
    skip_tag_end("#}", true);
  }

  // {% raw %}: everything up to {% endraw %} is text.
  bool read_raw() {
    std::size_t begin = at_;
    int line = line_;
    auto is_tag = [&](std::string_view name) {
      skip_space();
      if (!skip(name)) return false;
      skip_space();
      return rest().starts_with("%}") || rest().starts_with("-%}") || rest().starts_with("+%}");
    };
    if (!is_tag("raw") || next() == '+') {
      at_ = begin;
      line_ = line;
      return false;
    }
    if (skip("-%}")) {
      skip_space();
    } else {
      skip("%}");
    }
    at_line_start_ = source_[at_ - 1] == '\n';
    std::string_view text = rest();
    std::size_t text_at = at_;
    for (std::size_t found = text.find("{%"); found != text.npos;
         found = text.find("{%", found + 1)) {
      at_ = text_at + found + 2;
      char sign = next() == '-' || next() == '+' ? source_[at_++] : '\0';
      if (!is_tag("endraw")) continue;
      line_ = line;
      add_text(text.substr(0, found), sign, true);
      line_ += static_cast<int>(
          std::ranges::count(std::string_view(source_).substr(begin, at_ - begin), '\n'));
      skip_tag_end("%}", true);
      return true;
    }
    line_ = line;
    fail("{% raw %} has no {% endraw %}");
  }

  void read_tag(TokenKind begin, TokenKind end, std::string_view end_text, bool takes_line) {
    add(begin, "");
    int first_line = line_;
    while (true) {
      skip_space();
      if (at_ == source_.size()) {
        line_ = first_line;
        fail("the tag has no end ", end_text);
      }
      int line = line_;
      if (open_.empty() && skip_tag_end(end_text, takes_line)) {
        add(end, "");
        tokens_.back().line = line;
        return;
      }
      read_token();
    }
  }

  void read_token() {
    char c = next();
    if (is_digit(c)) return read_number();
    if (c == '\'' || c == '"') return read_string(c);
    std::size_t bytes = name_bytes();
    if (bytes > 0) {
      add(TokenKind::kName, std::string(rest().substr(0, bytes)));
      advance(bytes);
      return;
    }
    read_operator();
  }

  std::size_t name_bytes() const {
    std::size_t bytes = 0;
    while (at_ + bytes < source_.size()) {
      auto [point, size] = decode_point(source_, at_ + bytes);
      if (point != '_' && !has_trait(point, trait::kWord)) break;
      bytes += size;
    }
    return bytes;
  }

  void read_string(char mark) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != mark) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail("the string has no end ", mark);
    std::string_view content = std::string_view(source_).substr(at_ + 1, end - at_ - 1);
    std::string problem, text = unescape_literal(content, problem);
    if (!problem.empty()) fail(problem);
    add(TokenKind::kString, std::move(text));
    advance(end + 1 - at_);
  }

  void read_number() {
    std::string digits;
    auto take = [&](auto belongs) {
      std::size_t before = digits.size();
      while (belongs(next()) || (next() == '_' && digits.size() > before)) {
        if (next() != '_') digits.push_back(next());
        ++at_;
      }
      return digits.size() > before;
    };
    for (auto [letters, base] : {std::pair("xX", 16), std::pair("oO", 8), std::pair("bB", 2)}) {
      if (next() != '0' || at_ + 1 >= source_.size()) break;
      if (source_[at_ + 1] != letters[0] && source_[at_ + 1] != letters[1]) continue;
      at_ += 2;
      take([](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; });
      return add_integer(digits, base);
    }
    take(is_digit);
    bool after_dot = !tokens_.empty() && tokens_.back().is_operator(".");
    bool real = false;
    if (!after_dot && next() == '.' && at_ + 1 < source_.size() && is_digit(source_[at_ + 1])) {
      digits.push_back('.');
      ++at_;
      real = take(is_digit);
    }
    std::size_t exponent = at_ + 1;
    if (exponent < source_.size() && (source_[exponent] == '-' || source_[exponent] == '+')) {
      ++exponent;
    }
    if (!after_dot && (next() == 'e' || next() == 'E') && exponent < source_.size() &&
        is_digit(source_[exponent])) {
      digits += concat("e", source_[exponent - 1] == '-' ? "-" : "");
      at_ = exponent;
      real = take(is_digit);
    }
    if (!real) return add_integer(digits, 10);
    double value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    add(TokenKind::kNumber, digits, value);
  }

  void add_integer(const std::string& digits, int base) {
    std::int64_t value = 0;
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      fail("the number ", digits, " is not an int of 64 bits");
    }
    add(TokenKind::kNumber, digits, value);
  }

  void read_operator() {
    constexpr std::array<std::string_view, 6> kLong = {"//", "**", "==", "!=", ">=", "<="};
    std::string_view text = rest().substr(0, 2);
    if (std::ranges::find(kLong, text) == kLong.end()) text = text.substr(0, 1);
    if (std::string_view("+-/*%~[](){}<>=.:|,;!").find(text[0]) == std::string_view::npos ||
        text == "!") {
      fail("unexpected character ", quote(rest().substr(0, point_bytes(text[0]))));
    }
    balance(text[0]);
    add(TokenKind::kOperator, std::string(text));
    advance(text.size());
  }

  void balance(char c) {
    constexpr std::string_view kOpen = "([{", kClose = ")]}";
    if (std::size_t kind = kOpen.find(c); kind != kOpen.npos) open_.push_back(kClose[kind]);
    if (kClose.find(c) == kClose.npos) return;
    if (open_.empty()) fail("unexpected '", c, "'");
    if (open_.back() != c) fail("unexpected '", c, "'; '", open_.back(), "' is still missing");
    open_.pop_back();
  }

  std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::string open_;  // expected closing brackets
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> cut_template(std::string_view source) {
  return Lexer(with_plain_lines(source)).run();
}

}  // namespace bev::jinja
