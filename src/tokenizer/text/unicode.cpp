#include "tokenizer/text/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <map>
#include <utility>

#include "base/error.h"
#include "tokenizer/text/unicode_data.h"

namespace bev {

namespace {

constexpr CodePoint kEnd = 0x110000;

std::uint16_t traits_of(Category category) {
  switch (category) {
    case Category::kLu:
    case Category::kLt:
      return trait::kUpper | trait::kWord;
    case Category::kLl:
      return trait::kLower | trait::kWord;
    case Category::kLm:
    case Category::kLo:
      return trait::kOtherLetter | trait::kWord;
    case Category::kMn:
    case Category::kMc:
    case Category::kMe:
      return trait::kMark | trait::kWord;
    case Category::kNd:
      return trait::kNumber | trait::kRustNumeric | trait::kWord;
    case Category::kNl:
    case Category::kNo:
      return trait::kNumber | trait::kRustNumeric;
    case Category::kPc:
      return trait::kPunctuation | trait::kWord;
    case Category::kPd:
    case Category::kPs:
    case Category::kPe:
    case Category::kPi:
    case Category::kPf:
    case Category::kPo:
      return trait::kPunctuation;
    case Category::kSm:
    case Category::kSc:
    case Category::kSk:
    case Category::kSo:
      return trait::kSymbol;
    case Category::kZs:
    case Category::kZl:
    case Category::kZp:
      return trait::kSpace;
    default:
      return 0;
  }
}

void add_trait(std::vector<std::uint16_t>& traits, std::span<const CodePointRange> ranges,
               std::uint16_t bit) {
  for (CodePointRange range : ranges) {
    for (CodePoint point = range.first; point <= range.last; ++point) traits[point] |= bit;
  }
}

std::vector<Category> all_categories() {
  std::vector<Category> categories(kEnd);
  for (CodePoint point = 0; point < kEnd; ++point) {
    categories[point] =
        static_cast<Category>(utf8proc_category(static_cast<utf8proc_int32_t>(point)));
  }
  for (const CategoryRange& range : newer_categories()) {
    for (CodePoint point = range.first; point <= range.last; ++point) {
      categories[point] = range.category;
    }
  }
  return categories;
}

std::vector<std::uint16_t> all_traits(const std::vector<Category>& categories) {
  std::vector<std::uint16_t> traits(kEnd);
  for (CodePoint point = 0; point < kEnd; ++point) traits[point] = traits_of(categories[point]);
  constexpr CodePointRange kControlSpaces[] = {{0x9, 0xd}, {0x85, 0x85}};
  constexpr CodePointRange kNewlines[] = {{'\n', '\n'}, {'\r', '\r'}};
  add_trait(traits, kControlSpaces, trait::kSpace);
  add_trait(traits, kNewlines, trait::kNewline);
  add_trait(traits, newer_numeric(), trait::kRustNumeric);
  add_trait(traits, bert_punctuation(), trait::kBertPunctuation);
  add_trait(traits, bert_control(), trait::kBertControl);
  add_trait(traits, bert_accents(), trait::kBertAccent);
  add_trait(traits, combining_marks(), trait::kCombiningMark);
  add_trait(traits, not_normalized(), trait::kNotNormalized);
  add_trait(traits, other_word(), trait::kWord);
  return traits;
}

}  // namespace

UnicodeTable::UnicodeTable() {
  const std::vector<Category> categories = all_categories();
  const std::vector<std::uint16_t> traits = all_traits(categories);
  using Block = std::pair<std::vector<Category>, std::vector<std::uint16_t>>;
  std::map<Block, std::uint16_t> seen;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    auto from = static_cast<std::ptrdiff_t>(i << 8), to = from + 256;
    Block block{{categories.begin() + from, categories.begin() + to},
                {traits.begin() + from, traits.begin() + to}};
    auto [found, added] = seen.try_emplace(block, static_cast<std::uint16_t>(seen.size()));
    blocks_[i] = found->second;
    if (!added) continue;
    categories_.insert(categories_.end(), block.first.begin(), block.first.end());
    traits_.insert(traits_.end(), block.second.begin(), block.second.end());
  }
}

const UnicodeTable& unicode_table() {
  static const UnicodeTable table;
  return table;
}

void append_lower(std::string& out, CodePoint point) {
  if (point < 0x80) {
    out.push_back(static_cast<char>(point >= 'A' && point <= 'Z' ? point + 32 : point));
    return;
  }
  if (point == 0x130) {  // the only lower case with two characters
    out.append("i\xcc\x87");
    return;
  }
  for (const LowerRange& range : lower_case_changes()) {
    if (point < range.first || point > range.last) continue;
    append_point(out, static_cast<CodePoint>(static_cast<std::int64_t>(point) + range.distance));
    return;
  }
  append_point(out, static_cast<CodePoint>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point))));
}

namespace {

void append_normal_form(std::string& out, std::string_view text, int options) {
  if (text.empty()) return;
  utf8proc_uint8_t* result = nullptr;
  utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()), &result,
                                       static_cast<utf8proc_option_t>(options));
  std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(result, std::free);
  BEV_CHECK(size >= 0, ErrorKind::kInternal, "normal form: ", utf8proc_errmsg(size));
  out.append(reinterpret_cast<const char*>(result), static_cast<std::size_t>(size));
}

}  // namespace

std::string normal_form(std::string_view text, NormalForm form) {
  bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  int options = UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                (compatible ? UTF8PROC_COMPAT : 0);
  // ASCII is unchanged, except that a following mark may combine with it. A character unknown to
  // the reference is a starter that is neither changed nor reordered.
  std::string out;
  out.reserve(text.size());
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    DecodedPoint next = decode_point(text, at);
    bool ascii = next.point < 0x80;
    if (ascii || has_trait(next.point, trait::kNotNormalized)) {
      bool plain = at - begin == 1 && static_cast<unsigned char>(text[begin]) < 0x80;
      if (plain) {
        out.push_back(text[begin]);
      } else {
        append_normal_form(out, text.substr(begin, at - begin), options);
      }
      begin = at;
      if (!ascii) {
        out.append(text.substr(at, next.bytes));
        begin += next.bytes;
      }
    }
    at += next.bytes;
  }
  append_normal_form(out, text.substr(begin), options);
  return out;
}

std::size_t first_grapheme(std::string_view text) {
  DecodedPoint last = decode_point(text, 0);
  std::size_t end = last.bytes;
  utf8proc_int32_t state = 0;
  while (end < text.size()) {
    DecodedPoint next = decode_point(text, end);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.point),
                                         static_cast<utf8proc_int32_t>(next.point), &state)) {
      break;
    }
    end += next.bytes;
    last = next;
  }
  return end;
}

}  // namespace bev
