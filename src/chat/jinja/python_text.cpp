#include "chat/jinja/python_text.h"

#include <utf8proc.h>

#include <algorithm>

#include "chat/jinja/case_data.h"
#include "tokenizer/text/unicode.h"

namespace bev::jinja {

namespace {

void append_upper(std::string& out, CodePoint point) {
  if (const LongCase* special = find_long_case(point)) {
    out += special->upper;
  } else {
    append_point(out, static_cast<CodePoint>(utf8proc_toupper(static_cast<std::int32_t>(point))));
  }
}

void append_title(std::string& out, CodePoint point) {
  if (const LongCase* special = find_long_case(point)) {
    out += special->title;
  } else {
    append_point(out, static_cast<CodePoint>(utf8proc_totitle(static_cast<std::int32_t>(point))));
  }
}

// Case-ignorable characters: marks and signs inside words, which do not end them.
bool is_case_ignorable(CodePoint point) {
  switch (unicode_table().category(point)) {
    case Category::kMn:
    case Category::kMe:
    case Category::kCf:
    case Category::kLm:
    case Category::kSk:
      return true;
    default:
      return Points(U"'.:··՟״‘’․‧︓﹒﹕＇．：").find(static_cast<char32_t>(point)) != Points::npos;
  }
}

// A capital sigma at the end of a word has its own lower-case letter.
bool is_final_sigma(const Points& text, std::size_t at) {
  std::size_t before = at;
  while (before > 0 && is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !is_cased(text[before - 1])) return false;
  std::size_t after = at + 1;
  while (after < text.size() && is_case_ignorable(text[after])) ++after;
  return after == text.size() || !is_cased(text[after]);
}

void append_lower_at(std::string& out, const Points& text, std::size_t at) {
  constexpr CodePoint kSigma = 0x3a3, kFinalSigma = 0x3c2;
  if (text[at] == kSigma && is_final_sigma(text, at)) {
    append_point(out, kFinalSigma);
  } else {
    append_lower(out, text[at]);
  }
}

bool is_line_end(CodePoint point) {
  return (point >= 0xa && point <= 0xd) || (point >= 0x1c && point <= 0x1e) || point == 0x85 ||
         point == 0x2028 || point == 0x2029;
}

}  // namespace

Points to_points(std::string_view text) {
  Points out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    auto [point, bytes] = decode_point(text, at);
    out.push_back(static_cast<char32_t>(point));
    at += bytes;
  }
  return out;
}

std::string from_points(const Points& points) {
  std::string out;
  for (char32_t point : points) append_point(out, point);
  return out;
}

bool is_space(CodePoint point) {
  return (point >= 0x9 && point <= 0xd) || (point >= 0x1c && point <= 0x20) || point == 0x85 ||
         point == 0xa0 || point == 0x1680 || (point >= 0x2000 && point <= 0x200a) ||
         point == 0x2028 || point == 0x2029 || point == 0x202f || point == 0x205f ||
         point == 0x3000;
}

bool is_cased(CodePoint point) {
  auto signed_point = static_cast<std::int32_t>(point);
  switch (unicode_table().category(point)) {
    case Category::kLu:
    case Category::kLl:
    case Category::kLt:
      return true;
    default:
      return utf8proc_toupper(signed_point) != signed_point ||
             utf8proc_tolower(signed_point) != signed_point;
  }
}

std::string to_upper(std::string_view text) {
  std::string out;
  for (char32_t point : to_points(text)) append_upper(out, point);
  return out;
}

std::string to_lower(std::string_view text) {
  std::string out;
  Points points = to_points(text);
  for (std::size_t i = 0; i < points.size(); ++i) append_lower_at(out, points, i);
  return out;
}

std::string capitalize(std::string_view text) {
  std::string out;
  Points points = to_points(text);
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (i == 0) {
      append_title(out, points[i]);
    } else {
      append_lower_at(out, points, i);
    }
  }
  return out;
}

std::string title(std::string_view text) {
  std::string out;
  Points points = to_points(text);
  bool in_word = false;
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (in_word) {
      append_lower_at(out, points, i);
    } else {
      append_title(out, points[i]);
    }
    in_word = is_cased(points[i]);
  }
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  Points points = to_points(text);
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (unicode_table().category(points[i]) == Category::kLu) {
      append_lower_at(out, points, i);
    } else {
      append_upper(out, points[i]);
    }
  }
  return out;
}

std::string_view strip(std::string_view text, Side side,
                       std::optional<std::string_view> characters) {
  Points set = characters ? to_points(*characters) : Points();
  auto belongs = [&](CodePoint point) {
    return characters ? set.find(static_cast<char32_t>(point)) != Points::npos : is_space(point);
  };
  while (side != Side::kRight && !text.empty()) {
    auto [point, bytes] = decode_point(text, 0);
    if (!belongs(point)) break;
    text.remove_prefix(bytes);
  }
  while (side != Side::kLeft && !text.empty()) {
    auto [point, bytes] = decode_last_point(text);
    if (!belongs(point)) break;
    text.remove_suffix(bytes);
  }
  return text;
}

std::vector<std::string_view> split_words(std::string_view text, std::int64_t most, Side from) {
  std::vector<std::string_view> out;
  bool right = from == Side::kRight;
  text = strip(text, right ? Side::kRight : Side::kLeft);
  while (!text.empty()) {
    if (most >= 0 && static_cast<std::int64_t>(out.size()) == most) {
      out.push_back(strip(text, right ? Side::kRight : Side::kLeft));
      break;
    }
    std::size_t bytes = 0;
    while (bytes < text.size()) {
      auto [point, size] = right ? decode_last_point(text.substr(0, text.size() - bytes))
                                 : decode_point(text, bytes);
      if (is_space(point)) break;
      bytes += size;
    }
    out.push_back(right ? text.substr(text.size() - bytes) : text.substr(0, bytes));
    text = right ? text.substr(0, text.size() - bytes) : text.substr(bytes);
    text = strip(text, right ? Side::kRight : Side::kLeft);
  }
  if (right) std::ranges::reverse(out);
  return out;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t most, Side from) {
  std::vector<std::string_view> out;
  bool right = from == Side::kRight;
  while (most < 0 || static_cast<std::int64_t>(out.size()) < most) {
    std::size_t found = right ? text.rfind(separator) : text.find(separator);
    if (found == text.npos) break;
    std::string_view before = text.substr(0, found), after = text.substr(found + separator.size());
    out.push_back(right ? after : before);
    text = right ? before : after;
  }
  out.push_back(text);
  if (right) std::ranges::reverse(out);
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    std::size_t end = 0, end_bytes = 0;
    while (end < text.size()) {
      auto [point, bytes] = decode_point(text, end);
      if (is_line_end(point)) {
        end_bytes = text.substr(end).starts_with("\r\n") ? 2 : bytes;
        break;
      }
      end += bytes;
    }
    out.push_back(text.substr(0, keep_ends ? end + end_bytes : end));
    text.remove_prefix(end + end_bytes);
  }
  return out;
}

std::vector<std::size_t> places_of(std::string_view text, std::string_view wanted,
                                   std::int64_t most) {
  std::vector<std::size_t> out;
  std::size_t at = 0;
  while (most < 0 || static_cast<std::int64_t>(out.size()) < most) {
    std::size_t found = text.find(wanted, at);
    if (found == text.npos) break;
    out.push_back(found);
    if (wanted.empty() && found == text.size()) break;
    at = found + (wanted.empty() ? point_bytes(text[found]) : wanted.size());
  }
  return out;
}

}  // namespace bev::jinja
