#include "tokenizer/text/regex_dialect.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/json_check.h"
#include "tokenizer/text/named_sets.h"

namespace bev {

namespace {

constexpr int kMaxDepth = 64;

class Translator {
 public:
  Translator(std::string_view pattern, RegexDialect dialect)
      : pattern_(pattern), ruby_(dialect == RegexDialect::kOniguruma) {}

  std::string run() {
    while (!at_end()) translate_item();
    return std::move(out_);
  }

 private:
  bool at_end() const { return at_ >= pattern_.size(); }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  bool take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  [[noreturn]] void fail(std::string_view what) const {
    BEV_FAIL(ErrorKind::kInput, "regular expression ", quote(pattern_), ": ", what, " at byte ",
             at_);
  }

  void translate_item() {
    switch (peek()) {
      case '\\':
        translate_escape();
        break;
      case '[':
        in_class_ = true;
        out_ += read_class(0).regex();
        in_class_ = false;
        break;
      case '$':
        ++at_;
        out_ += ruby_ ? "(?=\\n|\\z)" : "\\z";
        break;
      case '^':
        ++at_;
        out_ += ruby_ ? "(?:\\A|(?<=\\n)(?!\\z))" : "\\A";
        break;
      case '{':
        translate_interval();
        break;
      case '(':
        translate_group();
        break;
      default:
        out_.push_back(pattern_[at_++]);
    }
  }

  // Ruby's option m (dot matches line ends) is s in PCRE2.
  void translate_group() {
    out_ += pattern_[at_++];
    if (!ruby_ || !take("?")) return;
    out_ += '?';
    std::size_t end = std::min(pattern_.find_first_of(":)<='!>#", at_), pattern_.size());
    if (pattern_.find_first_not_of("imx-", at_) < end) fail("an option that is not known");
    for (; at_ < end; ++at_) out_ += peek() == 'm' ? 's' : peek();
  }

  // In Ruby syntax {n,m}+ repeats the interval; otherwise it is possessive, as in PCRE2.
  void translate_interval() {
    std::size_t close = pattern_.find('}', at_);
    std::string_view inside =
        close == std::string_view::npos ? "" : pattern_.substr(at_ + 1, close - at_ - 1);
    bool interval = !inside.empty() && inside.find_first_not_of("0123456789,") == inside.npos;
    if (!interval) {
      out_ += "\\{";
      ++at_;
      return;
    }
    out_.append(pattern_.substr(at_, close + 1 - at_));
    at_ = close + 1;
    if (!ruby_ || peek() != '+') return;
    ++at_;
    std::size_t atom = last_atom();
    out_.insert(atom, "(?:");
    out_ += ")+";
  }

  // Start of the atom before the interval at the end of out_.
  std::size_t last_atom() const {
    std::size_t end = out_.rfind('{');
    if (end == 0) fail("nothing to repeat");
    if (out_[end - 1] != ']' && out_[end - 1] != ')') {
      return end - (end > 1 && out_[end - 2] == '\\' ? 2 : 1);
    }
    char close = out_[end - 1], open = close == ']' ? '[' : '(';
    int depth = 0;
    for (std::size_t i = end; i-- > 0;) {
      bool escaped = i > 0 && out_[i - 1] == '\\';
      if (escaped) continue;
      if (out_[i] == close) ++depth;
      if (out_[i] == open && --depth == 0) return i;
    }
    fail("brackets do not match");
  }

  void translate_escape() {
    std::size_t start = at_;
    if (std::optional<CodePointSet> set = read_set_escape()) {
      out_ += set->regex();
      return;
    }
    at_ = start;
    if (ruby_ && pattern_.substr(at_).starts_with("\\u") && at_ + 6 <= pattern_.size()) {
      out_.append("\\x{").append(pattern_.substr(at_ + 2, 4)).append("}");
      at_ += 6;
      return;
    }
    if (at_ + 1 >= pattern_.size()) fail("a backslash at the end");
    out_.append(pattern_.substr(at_, 2));
    at_ += 2;
  }

  // Parses \s \d \w \h \p{..} and their negations; nullopt otherwise, with at_ undefined.
  std::optional<CodePointSet> read_set_escape() {
    char kind = peek(1);
    at_ += 2;
    switch (kind) {
      case 's':
        return trait_set(trait::kSpace);
      case 'S':
        return trait_set(trait::kSpace).complement();
      case 'd':
        return category_set("Nd");
      case 'D':
        return category_set("Nd").complement();
      case 'w':
        return word_set();
      case 'W':
        return word_set().complement();
      case 'h':
      case 'H':
        if (!ruby_) return std::nullopt;
        return kind == 'h' ? hexadecimal_set() : hexadecimal_set().complement();
      case 'p':
      case 'P':
        return read_property(kind == 'P');
      default:
        return std::nullopt;
    }
  }

  std::optional<CodePointSet> read_property(bool negated) {
    std::string name;
    if (peek() == '{') {
      std::size_t close = pattern_.find('}', at_);
      if (close == std::string_view::npos) fail("a property without }");
      name = pattern_.substr(at_ + 1, close - at_ - 1);
      at_ = close + 1;
    } else if (!at_end()) {
      name = pattern_[at_++];
    }
    if (name.starts_with('^')) {
      negated = !negated;
      name.erase(0, 1);
    }
    std::optional<CodePointSet> set = property_set(name);
    if (!set) return std::nullopt;
    return negated ? set->complement() : *set;
  }

  // Oniguruma's \w excludes the joiners, and outside brackets it includes Latin-1's numbers.
  CodePointSet word_set() const {
    CodePointSet set = trait_set(trait::kWord);
    if (!ruby_) return set;
    CodePointSet joiners;
    joiners.add(0x200c, 0x200d);
    set = set.intersection(joiners.complement());
    if (!in_class_) {
      for (CodePoint number : {0xb2, 0xb3, 0xb9, 0xbc, 0xbd, 0xbe}) set.add(number, number);
    }
    return set;
  }

  // Parses a bracket class starting at [: unions, ranges, nested classes and &&.
  CodePointSet read_class(int depth) {
    if (depth > kMaxDepth) fail("classes nest too deep");
    ++at_;
    bool negated = take("^");
    CodePointSet set;
    std::optional<CodePointSet> before;  // left side of &&
    for (bool first = true;; first = false) {
      if (at_end()) fail("a class without ]");
      if (peek() == ']' && !first) break;
      if (take("&&")) {
        before = before ? before->intersection(set) : std::move(set);
        set = {};
      } else if (peek() == '[') {
        set.add(peek(1) == ':' ? read_posix_class() : read_class(depth + 1));
      } else {
        read_range(set);
      }
    }
    ++at_;
    if (before) set = before->intersection(set);
    return negated ? set.complement() : set;
  }

  CodePointSet read_posix_class() {
    std::size_t close = pattern_.find(":]", at_);
    if (close == std::string_view::npos) fail("a class without :]");
    std::string_view name = pattern_.substr(at_ + 2, close - at_ - 2);
    at_ = close + 2;
    bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    std::optional<CodePointSet> set = posix_set(name);
    if (!set) fail("an unknown class");
    return negated ? set->complement() : *set;
  }

  // Parses a character, a range or a set escape.
  void read_range(CodePointSet& set) {
    if (peek() == '\\') {
      std::size_t start = at_;
      if (std::optional<CodePointSet> escaped = read_set_escape()) {
        set.add(*escaped);
        return;
      }
      at_ = start;
    }
    CodePoint first = read_point();
    CodePoint last = first;
    if (peek() == '-' && peek(1) != ']' && at_ + 1 < pattern_.size()) {
      std::size_t dash = at_++;
      if (peek() == '[' || (peek() == '\\' && std::string_view("sSdDwWhHpP").find(peek(1)) !=
                                                  std::string_view::npos)) {
        at_ = dash;  // the dash is a literal
      } else {
        last = read_point();
      }
    }
    if (last < first) fail("a range backwards");
    set.add(first, last);
  }

  CodePoint read_point() {
    if (peek() != '\\') {
      DecodedPoint next = decode_point(pattern_, at_);
      at_ += next.bytes;
      return next.point;
    }
    char kind = peek(1);
    at_ += 2;
    switch (kind) {
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 't':
        return '\t';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        return '\a';
      case 'e':
        return 0x1b;
      case '0':
        return 0;
      case 'x':
        return peek() == '{' ? read_braced_hex() : read_hex(2);
      case 'u':
        return peek() == '{' ? read_braced_hex() : read_hex(4);
      case '\0':
        fail("a backslash at the end");
      case 'p':
      case 'P':
        fail("an unknown property");
      default: {
        --at_;
        DecodedPoint next = decode_point(pattern_, at_);
        at_ += next.bytes;
        return next.point;
      }
    }
  }

  CodePoint read_braced_hex() {
    ++at_;
    std::size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos || close - at_ > 8) fail("a number without }");
    CodePoint value = read_hex(close - at_);
    ++at_;
    return value;
  }

  CodePoint read_hex(std::size_t digits) {
    CodePoint value = 0;
    for (std::size_t i = 0; i < digits; ++i) {
      char c = peek();
      bool digit = c >= '0' && c <= '9', small = c >= 'a' && c <= 'f', big = c >= 'A' && c <= 'F';
      if (!digit && !small && !big) fail("not a hexadecimal digit");
      value = value * 16 + static_cast<CodePoint>(digit   ? c - '0'
                                                  : small ? c - 'a' + 10
                                                          : c - 'A' + 10);
      ++at_;
    }
    if (value > 0x10ffff) fail("no such character");
    return value;
  }

  std::string_view pattern_;
  bool ruby_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

std::string translate_regex(std::string_view pattern, RegexDialect dialect) {
  return Translator(pattern, dialect).run();
}

}  // namespace bev
