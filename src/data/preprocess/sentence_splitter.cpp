#include "data/preprocess/sentence_splitter.h"

#include <algorithm>
#include <array>
#include <string>

#include "tokenizer/text/unicode.h"

namespace bev {

namespace {

// Abbreviations that never end a sentence; lower case, sorted, without the final full stop.
constexpr std::array<std::string_view, 45> kNeverLast = {
    "adm",  "approx", "art",  "brig", "ca",  "capt", "cf",  "ch",  "cmdr", "col",  "comdr", "cpl",
    "dr",   "e.g",    "eq",   "eqs",  "fig", "figs", "fr",  "gen", "gov",  "hon",  "i.e",   "lt",
    "maj",  "messrs", "mlle", "mme",  "mr",  "mrs",  "ms",  "mt",  "pp",   "prof", "pvt",   "rep",
    "resp", "rev",    "sec",  "sen",  "sgt", "st",   "viz", "vol", "vs",
};
// Abbreviations only before a number.
constexpr std::array<std::string_view, 15> kBeforeNumber = {
    "apr", "aug", "dec", "feb", "jan", "jul", "jun",  "mar",
    "no",  "nos", "nov", "oct", "p",   "sep", "sept",
};

static_assert(std::ranges::is_sorted(kNeverLast) && std::ranges::is_sorted(kBeforeNumber));

bool is_space(CodePoint point) { return has_trait(point, trait::kSpace); }
// Full-width stops, which need no space after them.
bool is_wide_stop(CodePoint point) {
  return point == 0x3002 || point == 0xff01 || point == 0xff1f || point == 0xff61;
}
bool is_stop(CodePoint point) {
  return point == '.' || point == '!' || point == '?' || point == 0x2026 || is_wide_stop(point);
}
bool is_closing(CodePoint point) {
  if (point == '"' || point == '\'') return true;
  Category category = unicode_table().category(point);
  return category == Category::kPe || category == Category::kPf;
}
bool is_opening(CodePoint point) {
  if (point == '"' || point == '\'') return true;
  Category category = unicode_table().category(point);
  return category == Category::kPs || category == Category::kPi;
}

std::string lower(std::string_view word) {
  std::string out;
  for (std::size_t at = 0; at < word.size();) {
    DecodedPoint next = decode_point(word, at);
    append_lower(out, next.point);
    at += next.bytes;
  }
  return out;
}

class SentenceScan {
 public:
  SentenceScan(std::string_view text, SentenceSpace space) : text_(text), space_(space) {}

  std::vector<std::string_view> split() {
    while (at_ < text_.size()) {
      // Fast skip: no other byte can end a sentence.
      at_ = std::min(text_.find_first_of(".!?\n\xe2\xe3\xef", at_), text_.size());
      if (at_ == text_.size()) break;
      if (text_[at_] == '\n') {
        pass_newline();
      } else {
        pass_stop();
      }
    }
    finish(text_.size());
    return std::move(sentences_);
  }

 private:
  template <class Keep>
  std::size_t skip_while(std::size_t at, Keep keep) const {
    while (at < text_.size()) {
      DecodedPoint next = decode_point(text_, at);
      if (!keep(next.point)) break;
      at += next.bytes;
    }
    return at;
  }

  // A blank line ends a sentence in any case.
  void pass_newline() {
    std::size_t after = skip_while(at_, is_space);
    bool blank = std::ranges::count(text_.substr(at_, after - at_), '\n') > 1;
    if (blank) finish(after);
    at_ = after;
  }

  void pass_stop() {
    std::size_t first = at_;
    std::size_t end = skip_while(first, is_stop);
    if (end == first) {  // another character with the same first byte
      at_ += decode_point(text_, at_).bytes;
      return;
    }
    bool wide = is_wide_stop(decode_last_point(text_.substr(first, end - first)).point);
    std::size_t closed = skip_while(end, is_closing);
    std::size_t after = skip_while(closed, is_space);
    at_ = after;
    if (!wide && after == closed) {  // "3.14", "example.com"
      at_ = end;
      return;
    }
    bool one_dot = end == first + 1 && text_[first] == '.';
    if (wide || ends_sentence(first, after, one_dot && closed == end)) finish(after);
  }

  // True if a new sentence begins at `after`; `dot`: the only separator is a single full stop.
  bool ends_sentence(std::size_t stop, std::size_t after, bool dot) const {
    std::size_t start = skip_while(after, is_opening);
    if (start == text_.size()) return true;
    CodePoint next = decode_point(text_, start).point;
    if (has_trait(next, trait::kLower)) return false;
    return !dot || !is_abbreviation(stop, has_trait(next, trait::kNumber));
  }

  bool is_abbreviation(std::size_t stop, bool before_number) const {
    std::size_t begin = stop;
    while (begin > begin_) {
      DecodedPoint last = decode_last_point(text_.substr(0, begin));
      if (is_space(last.point) || is_opening(last.point) || last.point == '-') break;
      begin -= last.bytes;
    }
    std::string_view word = text_.substr(begin, stop - begin);
    if (word.empty()) return false;
    // Initials, "J. Smith", "U.S. Army": upper-case letters with a full stop each.
    bool letters = true;
    for (std::size_t at = 0; at < word.size() && letters;) {
      DecodedPoint next = decode_point(word, at);
      at += next.bytes;
      letters = has_trait(next.point, trait::kUpper) && (at == word.size() || word[at] == '.');
      ++at;
    }
    if (letters) return true;
    // "1. Introduction": an item number is not a sentence.
    bool number = std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
    if (number && is_blank(text_.substr(begin_, begin - begin_))) return true;
    std::string name = lower(word);
    return std::ranges::binary_search(kNeverLast, name) ||
           (before_number && std::ranges::binary_search(kBeforeNumber, name));
  }

  static bool is_blank(std::string_view text) {
    return text.find_first_not_of(" \t\r\n") == text.npos;
  }

  // Ends the current sentence at `end`, where the next one begins.
  void finish(std::size_t end) {
    std::string_view sentence = text_.substr(begin_, end - begin_);
    begin_ = end;
    if (space_ == SentenceSpace::kDropped) {
      std::size_t first = 0;
      while (first < sentence.size() && is_space(decode_point(sentence, first).point)) {
        first += decode_point(sentence, first).bytes;
      }
      sentence.remove_prefix(first);
      while (!sentence.empty() && is_space(decode_last_point(sentence).point)) {
        sentence.remove_suffix(decode_last_point(sentence).bytes);
      }
    }
    if (!sentence.empty()) sentences_.push_back(sentence);
  }

  std::string_view text_;
  SentenceSpace space_;
  std::size_t at_ = 0, begin_ = 0;
  std::vector<std::string_view> sentences_;
};

}  // namespace

std::vector<std::string_view> split_sentences(std::string_view text, SentenceSpace space) {
  return SentenceScan(text, space).split();
}

}  // namespace bev
