#include "tokenizer/text/code_point_set.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace bev {

namespace {

constexpr CodePoint kLast = 0x10ffff;

// In the order of Category.
constexpr std::array<std::string_view, 30> kCategoryNames = {
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

bool belongs(std::string_view category, std::string_view name) {
  if (name == "LC" || name == "L&") {
    return category == "Lu" || category == "Ll" || category == "Lt";
  }
  return category.starts_with(name);
}

template <class Predicate>
CodePointSet points_where(Predicate holds) {
  CodePointSet set;
  for (CodePoint first = 0; first <= kLast; ++first) {
    if (!holds(first)) continue;
    CodePoint last = first;
    while (last < kLast && holds(last + 1)) ++last;
    set.add(first, last);
    first = last;
  }
  return set;
}

void append_hex(std::string& out, CodePoint point) {
  std::array<char, 8> digits;
  auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), point, 16);
  out.append("\\x{").append(digits.data(), end).append("}");
}

}  // namespace

void CodePointSet::add(CodePoint first, CodePoint last) {
  // Absorbs the ranges that overlap or touch the new one.
  auto begin = std::ranges::find_if(ranges_, [&](CodePointRange r) { return r.last + 1 >= first; });
  auto end =
      std::find_if(begin, ranges_.end(), [&](CodePointRange r) { return r.first > last + 1; });
  if (begin != end) {
    first = std::min(first, begin->first);
    last = std::max(last, (end - 1)->last);
  }
  begin = ranges_.erase(begin, end);
  ranges_.insert(begin, {first, last});
}

void CodePointSet::add(const CodePointSet& other) {
  for (CodePointRange range : other.ranges_) add(range.first, range.last);
}

CodePointSet CodePointSet::complement() const {
  CodePointSet out;
  CodePoint next = 0;
  for (CodePointRange range : ranges_) {
    if (range.first > next) out.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLast) out.ranges_.push_back({next, kLast});
  return out;
}

CodePointSet CodePointSet::intersection(const CodePointSet& other) const {
  CodePointSet left = complement();
  left.add(other.complement());
  return left.complement();
}

std::string CodePointSet::regex() const {
  if (ranges_.empty()) return "(?!)";
  std::string out = "[";
  for (CodePointRange range : ranges_) {
    // PCRE2 rejects surrogates, which do not occur in valid text.
    CodePoint first = range.first >= 0xd800 && range.first <= 0xdfff ? 0xe000 : range.first;
    CodePoint last = range.last >= 0xd800 && range.last <= 0xdfff ? 0xd7ff : range.last;
    if (first > last) continue;
    append_hex(out, first);
    if (last == first) continue;
    out.push_back('-');
    append_hex(out, last);
  }
  return out + "]";
}

bool is_category_name(std::string_view name) {
  if (name.empty()) return false;
  return std::ranges::any_of(kCategoryNames,
                             [&](std::string_view category) { return belongs(category, name); });
}

CodePointSet category_set(std::string_view name) {
  std::array<bool, kCategoryNames.size()> wanted;
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = belongs(kCategoryNames[i], name);
  const UnicodeTable& table = unicode_table();
  return points_where(
      [&](CodePoint point) { return wanted[static_cast<std::size_t>(table.category(point))]; });
}

CodePointSet trait_set(std::uint16_t bits) {
  const UnicodeTable& table = unicode_table();
  return points_where([&](CodePoint point) { return (table.traits(point) & bits) != 0; });
}

}  // namespace bev
