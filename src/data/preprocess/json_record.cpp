#include "data/preprocess/json_record.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/json_check.h"
#include "tokenizer/text/utf8.h"

namespace bev {

namespace {

constexpr int kMostLevels = 256;

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_surrogate(CodePoint unit) { return unit >= 0xd800 && unit < 0xe000; }

// Bytes that need no unescaping in a string.
constexpr std::array<bool, 256> plain_bytes() {
  std::array<bool, 256> plain{};
  for (std::size_t byte = 0x20; byte < plain.size(); ++byte) plain[byte] = true;
  plain['"'] = plain['\\'] = false;
  return plain;
}
constexpr std::array<bool, 256> kPlain = plain_bytes();

class RecordScan {
 public:
  RecordScan(std::string_view text, std::span<const std::string> keys) : text_(text), keys_(keys) {}

  std::vector<KeyTexts> read() {
    check_utf8();
    std::vector<Value> values(keys_.size());
    skip_space();
    if (peek() != '{') fail("the line is not a JSON object");
    ++at_;
    for (bool first = true; !ends('}', first); first = false) read_member(values);
    skip_space();
    if (at_ != text_.size()) fail("there is something behind the object");
    std::vector<KeyTexts> out;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      if (!values[i].there) fail_missing(keys_[i]);
      at_ = values[i].problem_at;
      if (!values[i].problem.empty()) fail(values[i].problem);
      out.push_back(std::move(values[i].texts));
    }
    return out;
  }

 private:
  // Value of a requested key. That it is not a text matters only if no later duplicate key replaces
  // it.
  struct Value {
    bool there = false;
    KeyTexts texts;
    std::string problem;
    std::size_t problem_at = 0;
  };

  [[noreturn]] void fail(std::string_view what) const {
    BEV_FAIL(ErrorKind::kInput, "column ", at_ + 1, ": ", what);
  }
  [[noreturn]] void fail_missing(const std::string& key) const {
    constexpr std::size_t kShown = 10;
    std::vector<std::string> names;
    for (const std::string& name : names_) {
      if (names.size() == kShown) break;
      names.push_back(quote(name, 40));
    }
    BEV_FAIL(ErrorKind::kInput, "there is no key ", quote(key), "; the object has ",
             names.empty() ? "none" : join(names, ", "), names_.size() > kShown ? ", ..." : "",
             "; ", advice_without_key(names_));
  }

  void check_utf8() {
    if (is_valid_utf8(text_)) return;
    while (first_utf8_stretch(text_.substr(at_)).valid) {
      at_ += first_utf8_stretch(text_.substr(at_)).bytes;
    }
    fail(concat("the line is not UTF-8 at ", quote(text_.substr(at_, 4))));
  }

  // Returns 0 at the end.
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }
  [[noreturn]] void fail_end() const {
    fail("the line ends inside of the object; JSON lines have a whole object on each line");
  }

  // Between elements of a list or object: consumes the end, or the comma before the next element.
  bool ends(char end, bool first) {
    skip_space();
    if (at_ == text_.size()) fail_end();
    if (peek() == end) {
      ++at_;
      return true;
    }
    if (first) return false;
    if (peek() != ',') fail(concat("',' or '", end, "' is missing"));
    ++at_;
    skip_space();
    return false;
  }

  void read_member(std::vector<Value>& values) {
    std::string name = read_key();
    auto key = std::ranges::find(keys_, name);
    if (key == keys_.end()) {
      skip_value(1);
    } else {
      values[static_cast<std::size_t>(key - keys_.begin())] = read_value(*key);
    }
    names_.push_back(std::move(name));
  }

  // Consumes the colon too.
  std::string read_key() {
    if (peek() != '"') fail("a key in quotes is missing");
    std::string name = read_string(Surrogates::kReplaced);
    skip_space();
    if (peek() != ':') fail("':' is missing");
    ++at_;
    skip_space();
    return name;
  }

  Value read_value(const std::string& key) {
    Value value;
    value.there = true;
    std::size_t begin = at_;
    auto refuse = [&](std::string_view what) {
      value.problem = concat(what, quote(key), " is not a text");
      value.problem_at = at_;
      at_ = begin;
      skip_value(1);
      return value;
    };
    if (peek() == '"') {
      value.texts.push_back(read_string(Surrogates::kRefused));
      return value;
    }
    if (peek() != '[') return refuse("the value of ");
    ++at_;
    for (bool first = true; !ends(']', first); first = false) {
      if (peek() != '"') return refuse("an entry in the list of ");
      value.texts.push_back(read_string(Surrogates::kRefused));
    }
    return value;
  }

  // Lone surrogates are refused only in requested texts.
  enum class Surrogates : std::uint8_t { kRefused, kReplaced };
  std::string read_string(Surrogates lone) {
    std::string out;
    ++at_;
    while (true) {
      std::size_t begin = at_;
      skip_plain();
      out.append(text_, begin, at_ - begin);
      if (peek() == '"') break;
      if (peek() != '\\') fail_in_string();
      read_escape(out, lone);
    }
    ++at_;
    return out;
  }

  void skip_string() {
    ++at_;
    while (true) {
      skip_plain();
      if (peek() == '"') break;
      if (peek() != '\\') fail_in_string();
      skip_escape();
    }
    ++at_;
  }

  void skip_plain() {
    while (at_ < text_.size() && kPlain[static_cast<unsigned char>(text_[at_])]) ++at_;
  }
  [[noreturn]] void fail_in_string() const {
    if (at_ == text_.size()) fail_end();
    fail(concat("a text holds the control character ", quote(text_.substr(at_, 1)),
                ", which JSON writes as \\u00.."));
  }

  char skip_escape() {
    ++at_;
    char kind = peek();
    if (at_ == text_.size()) fail_end();
    if (kind == 'u') {
      at_ += 1;
      read_unit();
    } else if (std::string_view("\"\\/bfnrt").find(kind) != text_.npos) {
      ++at_;
    } else {
      fail(concat("unknown escape \\", quote(text_.substr(at_, 1))));
    }
    return kind;
  }

  void read_escape(std::string& out, Surrogates lone) {
    std::size_t begin = at_;
    char kind = skip_escape();
    constexpr std::string_view kNames = "bfnrt", kMeanings = "\b\f\n\r\t";
    if (kind != 'u') {
      std::size_t named = kNames.find(kind);
      out.push_back(named == kNames.npos ? kind : kMeanings[named]);
      return;
    }
    at_ = begin + 2;
    CodePoint point = read_unit();
    if (point >= 0xd800 && point < 0xdc00 && text_.substr(at_).starts_with("\\u")) {
      at_ += 2;
      CodePoint low = read_unit();
      if (low >= 0xdc00 && low < 0xe000)
        point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    }
    if (!is_surrogate(point)) {
      append_point(out, point);
    } else if (lone == Surrogates::kReplaced) {
      out.append(kReplacementCharacter);
    } else {
      at_ = begin;
      fail(concat("the lone surrogate ", text_.substr(begin, 6), " is no character"));
    }
  }

  // Reads four hexadecimal digits.
  CodePoint read_unit() {
    CodePoint unit = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ == text_.size()) fail_end();
      std::size_t digit =
          std::string_view("0123456789abcdef")
              .find(static_cast<char>(is_digit(text_[at_]) ? text_[at_] : text_[at_] | 0x20));
      if (digit == text_.npos) fail("\\u needs four hexadecimal digits");
      unit = unit << 4 | static_cast<CodePoint>(digit);
    }
    return unit;
  }

  void skip_value(int level) {
    if (level > kMostLevels) fail(concat("the values nest deeper than ", kMostLevels, " levels"));
    char first = peek();
    if (first == '"') {
      skip_string();
    } else if (first == '{') {
      ++at_;
      for (bool start = true; !ends('}', start); start = false) {
        read_key();
        skip_value(level + 1);
      }
    } else if (first == '[') {
      ++at_;
      for (bool start = true; !ends(']', start); start = false) skip_value(level + 1);
    } else {
      skip_scalar();
    }
  }

  void skip_scalar() {
    // Python writes and reads the last three.
    for (std::string_view word : {"true", "false", "null", "NaN", "Infinity", "-Infinity"}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return;
      }
    }
    skip_number();
  }

  void skip_digits() {
    if (at_ == text_.size()) fail_end();
    if (!is_digit(peek())) fail("this is no value of JSON");
    while (is_digit(peek())) ++at_;
  }
  void skip_number() {
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else {
      skip_digits();
    }
    if (peek() == '.') {
      ++at_;
      skip_digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      skip_digits();
    }
  }

  std::string_view text_;
  std::span<const std::string> keys_;
  std::size_t at_ = 0;
  std::vector<std::string> names_;
};

}  // namespace

const char* advice_without_key(std::span<const std::string> names) {
  bool conversation = std::ranges::any_of(names, [](const std::string& name) {
    return name == "messages" || name == "conversations" || name == "instruction";
  });
  return conversation ? "conversations are for `train --sft-data`"
                      : "--json-keys names another (--text-key of train)";
}

std::vector<KeyTexts> read_json_record(std::string_view line, std::span<const std::string> keys) {
  return RecordScan(line, keys).read();
}

}  // namespace bev
