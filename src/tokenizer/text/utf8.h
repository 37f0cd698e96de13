// UTF-8 encoding, decoding and repair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bev {

using CodePoint = std::uint32_t;

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

struct DecodedPoint {
  CodePoint point = 0;
  std::uint32_t bytes = 1;
};

// Character at `at` of valid UTF-8.
inline DecodedPoint decode_point(std::string_view text, std::size_t at) {
  auto byte = [&](std::size_t i) {
    return static_cast<CodePoint>(static_cast<unsigned char>(text[at + i]));
  };
  CodePoint lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xe0) return {(lead & 0x1f) << 6 | (byte(1) & 0x3f), 2};
  if (lead < 0xf0) return {(lead & 0xf) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f), 3};
  return {(lead & 7) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f), 4};
}

// Last character of a non-empty valid text.
DecodedPoint decode_last_point(std::string_view text);

inline std::uint32_t point_bytes(char lead) {
  unsigned value = static_cast<unsigned char>(lead);
  return value < 0xc0 ? 1 : value < 0xe0 ? 2 : value < 0xf0 ? 3 : 4;
}

void append_point(std::string& text, CodePoint point);

std::size_t count_points(std::string_view text);

// First bytes of a non-empty text: a character, or the maximal prefix of an ill-formed one (Unicode
// 15, table 3-7), which Rust and Python replace by one U+FFFD.
struct Utf8Stretch {
  std::size_t bytes = 0;
  bool valid = false;
};
Utf8Stretch first_utf8_stretch(std::string_view text);

bool is_valid_utf8(std::string_view text);
// Replaces invalid sequences by U+FFFD.
std::string to_valid_utf8(std::string_view text);

}  // namespace bev
