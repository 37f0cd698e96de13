#include "tokenizer/text/named_sets.h"

#include <algorithm>
#include <array>
#include <span>

namespace bev {

namespace {

struct CategoryName {
  std::string_view name, category;
};

constexpr std::array<CategoryName, 10> kProperties = {{{"Letter", "L"},
                                                       {"Mark", "M"},
                                                       {"Number", "N"},
                                                       {"Punctuation", "P"},
                                                       {"Symbol", "S"},
                                                       {"Separator", "Z"},
                                                       {"Uppercase_Letter", "Lu"},
                                                       {"Lowercase_Letter", "Ll"},
                                                       {"digit", "Nd"},
                                                       {"Digit", "Nd"}}};
constexpr std::array<CategoryName, 4> kPosixClasses = {
    {{"digit", "Nd"}, {"alpha", "L"}, {"upper", "Lu"}, {"lower", "Ll"}}};

std::optional<CodePointSet> find_category(std::span<const CategoryName> names,
                                          std::string_view name) {
  auto found = std::ranges::find(names, name, &CategoryName::name);
  if (found == names.end()) return std::nullopt;
  return category_set(found->category);
}

// Script=Han of Unicode 16.
CodePointSet han_set() {
  constexpr CodePointRange kHan[] = {
      {0x2e80, 0x2e99},   {0x2e9b, 0x2ef3},   {0x2f00, 0x2fd5},   {0x3005, 0x3005},
      {0x3007, 0x3007},   {0x3021, 0x3029},   {0x3038, 0x303b},   {0x3400, 0x4dbf},
      {0x4e00, 0x9fff},   {0xf900, 0xfa6d},   {0xfa70, 0xfad9},   {0x16fe2, 0x16fe3},
      {0x16ff0, 0x16ff1}, {0x20000, 0x2a6df}, {0x2a700, 0x2b739}, {0x2b740, 0x2b81d},
      {0x2b820, 0x2cea1}, {0x2ceb0, 0x2ebe0}, {0x2ebf0, 0x2ee5d}, {0x2f800, 0x2fa1d},
      {0x30000, 0x3134a}, {0x31350, 0x323af}};
  CodePointSet set;
  for (CodePointRange range : kHan) set.add(range.first, range.last);
  return set;
}

}  // namespace

std::optional<CodePointSet> property_set(std::string_view name) {
  if (is_category_name(name)) return category_set(name);
  if (name == "Space" || name == "space" || name == "White_Space") return trait_set(trait::kSpace);
  if (name == "Han") return han_set();
  return find_category(kProperties, name);
}

std::optional<CodePointSet> posix_set(std::string_view name) {
  if (name == "space") return trait_set(trait::kSpace);
  if (name == "alnum") return trait_set(trait::kLetter | trait::kNumber);
  if (name == "punct") {
    CodePointSet set = trait_set(trait::kPunctuation);
    for (CodePoint sign : std::string_view("$+<=>^`|~")) set.add(sign, sign);
    return set;
  }
  return find_category(kPosixClasses, name);
}

CodePointSet hexadecimal_set() {
  CodePointSet set;
  set.add('0', '9');
  set.add('A', 'F');
  set.add('a', 'f');
  return set;
}

}  // namespace bev
