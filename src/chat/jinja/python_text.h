// Python's str functions on UTF-8: positions count code points, case and white space follow
// Unicode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/text/utf8.h"

namespace bev::jinja {

using Points = std::u32string;  // one element per code point

Points to_points(std::string_view text);
std::string from_points(const Points& points);

bool is_space(CodePoint point);
bool is_cased(CodePoint point);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
// First character in title case, the others in lower case.
std::string capitalize(std::string_view text);
// capitalize() for every word; words are runs of letters.
std::string title(std::string_view text);
std::string swap_case(std::string_view text);

enum class Side : std::uint8_t { kBoth, kLeft, kRight };
// Strips white space, or the characters of `characters`, from the ends.
std::string_view strip(std::string_view text, Side side,
                       std::optional<std::string_view> characters = std::nullopt);

// Split at white space, or at a non-empty separator; at most `most` splits if >= 0, from the left
// or from the right.
std::vector<std::string_view> split_words(std::string_view text, std::int64_t most, Side from);
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t most, Side from);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

// Byte offsets of the occurrences that Python's replace() finds, at most `most` of them if >= 0. An
// empty text is found before every character and at the end.
std::vector<std::size_t> places_of(std::string_view text, std::string_view wanted,
                                   std::int64_t most);

}  // namespace bev::jinja
