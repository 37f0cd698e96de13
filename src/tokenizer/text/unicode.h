// Unicode properties as the reference tokenizers see them. They come from utf8proc; unicode_data.h
// has the differences where a reference uses another Unicode version.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/text/utf8.h"

namespace bev {

// General categories, in utf8proc's order.
enum class Category : std::uint8_t {
  kCn,
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCs,
  kCo,
};

struct CodePointRange {
  CodePoint first, last;
};

// Trait bits; a character can have several.
namespace trait {
inline constexpr std::uint16_t kUpper = 1 << 0;        // Lu, Lt
inline constexpr std::uint16_t kLower = 1 << 1;        // Ll
inline constexpr std::uint16_t kOtherLetter = 1 << 2;  // Lm, Lo
inline constexpr std::uint16_t kMark = 1 << 3;
inline constexpr std::uint16_t kNumber = 1 << 4;
inline constexpr std::uint16_t kPunctuation = 1 << 5;
inline constexpr std::uint16_t kSymbol = 1 << 6;
inline constexpr std::uint16_t kSpace = 1 << 7;    // \s; the same set in every reference
inline constexpr std::uint16_t kNewline = 1 << 8;  // \r and \n
inline constexpr std::uint16_t kWord = 1 << 9;     // \w of Rust's regex crate
inline constexpr std::uint16_t kRustNumeric = 1 << 10;
inline constexpr std::uint16_t kBertPunctuation = 1 << 11;
inline constexpr std::uint16_t kBertControl = 1 << 12;
inline constexpr std::uint16_t kBertAccent = 1 << 13;
inline constexpr std::uint16_t kCombiningMark = 1 << 14;
inline constexpr std::uint16_t kNotNormalized = 1 << 15;
inline constexpr std::uint16_t kLetter = kUpper | kLower | kOtherLetter;
}  // namespace trait

// Traits and categories of all code points, as a two-level table that stores equal blocks of 256
// once.
class UnicodeTable {
 public:
  UnicodeTable();

  std::uint16_t traits(CodePoint point) const {
    return traits_[static_cast<std::size_t>(blocks_[point >> 8]) << 8 | (point & 0xff)];
  }
  Category category(CodePoint point) const {
    return categories_[static_cast<std::size_t>(blocks_[point >> 8]) << 8 | (point & 0xff)];
  }

 private:
  std::array<std::uint16_t, 0x1100> blocks_;
  std::vector<std::uint16_t> traits_;
  std::vector<Category> categories_;
};

const UnicodeTable& unicode_table();

inline bool has_trait(CodePoint point, std::uint16_t bits) {
  return (unicode_table().traits(point) & bits) != 0;
}

// Like Rust's char::to_lowercase.
void append_lower(std::string& out, CodePoint point);

enum class NormalForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };
std::string normal_form(std::string_view text, NormalForm form);

// Length of the first grapheme cluster of a non-empty valid text.
std::size_t first_grapheme(std::string_view text);

}  // namespace bev
