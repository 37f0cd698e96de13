#include "tokenizer/pipeline/splitters.h"

#include <array>

#include "tokenizer/text/unicode.h"

namespace bev {

namespace {

// Position in a text and the character there; traits are 0 at the end.
struct Cursor {
  std::string_view text;
  const UnicodeTable* table;
  std::size_t at;
  DecodedPoint next{0, 0};
  std::uint16_t traits = 0;

  Cursor(std::string_view whole, std::size_t start, const UnicodeTable& unicode)
      : text(whole), table(&unicode), at(start) {
    look();
  }

  void look() {
    if (at >= text.size()) {
      next = {0, 0};
      traits = 0;
      return;
    }
    next = decode_point(text, at);
    traits = table->traits(next.point);
  }
  bool at_end() const { return at >= text.size(); }
  bool is(std::uint16_t bits) const { return (traits & bits) != 0; }
  // True if not at the end and without any of these traits.
  bool is_other(std::uint16_t bits) const { return next.bytes != 0 && (traits & bits) == 0; }
  void step() {
    at += next.bytes;
    look();
  }
  void skip(std::uint16_t bits) {
    while (is(bits)) step();
  }
};

// End of 's 't 're 've 'm 'll 'd at an apostrophe, or 0. Case-insensitively, U+017F matches s.
std::size_t contraction_end(std::string_view text, std::size_t at, bool any_case) {
  auto letter = [&](std::size_t i) -> char {
    if (i >= text.size()) return 0;
    char c = text[i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  switch (letter(at + 1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return at + 2;
    case 'r':
    case 'v':
      return letter(at + 2) == 'e' ? at + 3 : 0;
    case 'l':
      return letter(at + 2) == 'l' ? at + 3 : 0;
    case '\xc5':
      return any_case && letter(at + 2) == '\xbf' ? at + 3 : 0;
    default:
      return 0;
  }
}

// \s*[\r\n]+|\s+(?!\S)|\s+, optionally preceded by \s+$.
std::size_t space_end(Cursor cursor, bool with_lines, bool whole_at_end) {
  std::size_t last = cursor.at, line = 0;
  while (cursor.is(trait::kSpace)) {
    last = cursor.at;
    bool newline = cursor.is(trait::kNewline);
    cursor.step();
    if (newline) line = cursor.at;
  }
  if (whole_at_end && cursor.at_end()) return cursor.at;
  if (with_lines && line != 0) return line;
  // Everything at the end of the text; otherwise the last space belongs to the next word.
  return cursor.at_end() ? cursor.at : last;
}

std::size_t gpt2_end(Cursor cursor, bool whole_at_end) {
  const std::size_t begin = cursor.at;
  if (cursor.next.point == '\'') {
    if (std::size_t end = contraction_end(cursor.text, begin, false)) return end;
  }
  Cursor start = cursor;
  if (cursor.next.point == ' ') cursor.step();
  if (cursor.is(trait::kLetter)) {
    cursor.skip(trait::kLetter);
  } else if (cursor.is(trait::kNumber)) {
    cursor.skip(trait::kNumber);
  } else if (cursor.is_other(trait::kSpace)) {
    while (cursor.is_other(trait::kSpace | trait::kLetter | trait::kNumber)) cursor.step();
  } else {
    std::size_t end = space_end(start, false, whole_at_end);
    return end > begin ? end : begin + start.next.bytes;
  }
  return cursor.at;
}

// ` ?[others]+[\r\n]*` with its suffix, or white space: the last alternatives of cl100k and o200k.
std::size_t symbols_or_space_end(Cursor cursor, std::uint16_t not_symbols, bool slash,
                                 bool whole_at_end) {
  Cursor start = cursor;
  if (cursor.next.point == ' ') cursor.step();
  if (cursor.is_other(not_symbols)) {
    while (cursor.is_other(not_symbols)) cursor.step();
    while (cursor.is(trait::kNewline) || (slash && cursor.next.point == '/')) cursor.step();
    return cursor.at;
  }
  std::size_t end = space_end(start, true, whole_at_end);
  return end > start.at ? end : start.at + start.next.bytes;
}

std::size_t digits_end(Cursor cursor, std::uint32_t most) {
  for (std::uint32_t count = 0; count < most && cursor.is(trait::kNumber); ++count) cursor.step();
  return cursor.at;
}

std::size_t cl100k_end(Cursor cursor, const Splitter& splitter) {
  const std::size_t begin = cursor.at;
  if (cursor.next.point == '\'') {
    if (std::size_t end = contraction_end(cursor.text, begin, true)) return end;
  }
  Cursor start = cursor;
  if (cursor.is_other(trait::kNewline | trait::kLetter | trait::kNumber)) cursor.step();
  if (cursor.is(trait::kLetter)) {
    cursor.skip(trait::kLetter);
    return cursor.at;
  }
  if (start.is(trait::kNumber)) return digits_end(start, splitter.most_digits);
  return symbols_or_space_end(start, trait::kSpace | trait::kLetter | trait::kNumber, false,
                              splitter.whole_space_at_end);
}

// Other letters and marks count as both upper and lower case.
constexpr std::uint16_t kBothCases = trait::kOtherLetter | trait::kMark;

// End of [upper]*[lower]+, or the start if it does not match.
std::size_t mixed_word_end(Cursor cursor) {
  std::size_t last_both = cursor.at;  // end of the last character of both cases
  while (cursor.is(trait::kUpper | kBothCases)) {
    bool both = cursor.is(kBothCases);
    cursor.step();
    if (both) last_both = cursor.at;
  }
  // Backtracking: without a lower-case letter after it, the first run gives back its pure
  // upper-case tail.
  if (!cursor.is(trait::kLower)) return last_both;
  cursor.skip(trait::kLower | kBothCases);
  return cursor.at;
}

// A word of o200k without its contraction: mixed or upper case, optionally after one character that
// is neither letter nor number. That character may be a mark, which can also be part of a word; the
// order of the four attempts is that of the expression.
std::size_t cased_word_end(Cursor start) {
  Cursor after = start;
  if (start.is_other(trait::kNewline | trait::kLetter | trait::kNumber)) after.step();
  std::size_t end = mixed_word_end(after);
  if (end != after.at) return end;
  if (after.at != start.at) {
    end = mixed_word_end(start);
    if (end != start.at) return end;
  }
  if (!after.is(trait::kUpper | kBothCases)) return start.at;
  after.skip(trait::kUpper | kBothCases);
  return after.at;
}

std::size_t o200k_end(Cursor start, const Splitter& splitter) {
  std::size_t end = cased_word_end(start);
  if (end != start.at) {
    if (end < start.text.size() && start.text[end] == '\'') {
      if (std::size_t more = contraction_end(start.text, end, true)) return more;
    }
    return end;
  }
  if (start.is(trait::kNumber)) return digits_end(start, splitter.most_digits);
  return symbols_or_space_end(start, trait::kSpace | trait::kLetter | trait::kNumber, true,
                              splitter.whole_space_at_end);
}

bool is_ascii_letter(CodePoint point) {
  return (point >= 'a' && point <= 'z') || (point >= 'A' && point <= 'Z');
}

std::size_t deepseek_end(Cursor cursor) {
  constexpr std::uint16_t kWord = trait::kLetter | trait::kMark;
  constexpr std::uint16_t kSigns = trait::kPunctuation | trait::kSymbol;
  Cursor start = cursor;
  if (cursor.next.point < 0x80 && cursor.is(kSigns)) {
    cursor.step();
    if (is_ascii_letter(cursor.next.point)) {
      while (is_ascii_letter(cursor.next.point)) cursor.step();
      return cursor.at;
    }
    cursor = start;
  }
  if (cursor.is_other(trait::kNewline | trait::kLetter | kSigns)) cursor.step();
  if (cursor.is(kWord)) {
    cursor.skip(kWord);
    return cursor.at;
  }
  if (start.is(kWord)) return cursor.at;  // a mark alone
  cursor = start;
  if (cursor.next.point == ' ') cursor.step();
  if (cursor.is(kSigns)) {
    cursor.skip(kSigns);
    cursor.skip(trait::kNewline);
    return cursor.at;
  }
  if (!start.is(trait::kSpace)) return start.at;  // not matched
  std::size_t end = space_end(start, true, false);
  return end > start.at ? end : start.at + start.next.bytes;
}

}  // namespace

std::size_t Splitter::word_end(std::string_view text, std::size_t at) const {
  Cursor cursor(text, at, unicode_table());
  switch (family) {
    case SplitterFamily::kGpt2:
      return gpt2_end(cursor, whole_space_at_end);
    case SplitterFamily::kCl100k:
      return cl100k_end(cursor, *this);
    case SplitterFamily::kO200k:
      return o200k_end(cursor, *this);
    case SplitterFamily::kDeepseek:
      break;
  }
  // Text that no alternative matches is one piece up to the next match.
  std::size_t end = deepseek_end(cursor);
  while (end == cursor.at && !cursor.at_end()) {
    cursor.step();
    if (cursor.at_end() || deepseek_end(cursor) != cursor.at) return cursor.at;
    end = cursor.at;
  }
  return end;
}

namespace {

struct KnownPattern {
  std::string_view name;  // "" if only the expression is known
  std::string_view pattern;
  Splitter splitter;
};

constexpr Splitter kGpt2Splitter{SplitterFamily::kGpt2, 0, false};
constexpr Splitter kCl100kSplitter{SplitterFamily::kCl100k, 3, false};
constexpr Splitter kQwen2Splitter{SplitterFamily::kCl100k, 1, false};
constexpr Splitter kO200kSplitter{SplitterFamily::kO200k, 3, false};

constexpr std::string_view kGpt2Fast =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)";
constexpr std::string_view kCl100kFast =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::array<KnownPattern, 13> kKnown = {{
    {"gpt2", kGpt2Fast, {SplitterFamily::kGpt2, 0, true}},
    {"r50k_base", kGpt2Fast, {SplitterFamily::kGpt2, 0, true}},
    {"p50k_base", kGpt2Fast, {SplitterFamily::kGpt2, 0, true}},
    {"p50k_edit", kGpt2Fast, {SplitterFamily::kGpt2, 0, true}},
    {"cl100k_base", kCl100kFast, {SplitterFamily::kCl100k, 3, true}},
    {"o200k_base", kO200k, kO200kSplitter},
    {"o200k_harmony", kO200k, kO200kSplitter},
    {"llama3", kLlama3, kCl100kSplitter},
    {"qwen2", kQwen2, kQwen2Splitter},
    {"", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
     kGpt2Splitter},
    {"",
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
     kCl100kSplitter},
    {"",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {SplitterFamily::kCl100k, 2, false}},
    {"",
     R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     {SplitterFamily::kDeepseek, 0, false}},
}};

}  // namespace

std::optional<Splitter> find_splitter(std::string_view pattern, RegexDialect dialect) {
  // In Oniguruma `{1,3}+` and `$` have another meaning.
  bool possessive = pattern == kGpt2Fast || pattern == kCl100kFast;
  if (possessive && dialect == RegexDialect::kOniguruma) return std::nullopt;
  for (const KnownPattern& known : kKnown) {
    if (known.pattern == pattern) return known.splitter;
  }
  return std::nullopt;
}

std::optional<std::string_view> named_pattern(std::string_view name) {
  for (const KnownPattern& known : kKnown) {
    if (!name.empty() && known.name == name) return known.pattern;
  }
  return std::nullopt;
}

}  // namespace bev
