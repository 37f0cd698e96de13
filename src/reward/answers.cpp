#include "reward/answers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "tokenizer/text/regex.h"

namespace bev {

namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

std::optional<double> plain_number(std::string_view text) {
  double value = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

// Removes a command with its braces and keeps what they hold.
void unwrap(std::string& text, std::string_view command) {
  for (std::size_t at = text.find(command); at != text.npos; at = text.find(command, at)) {
    std::size_t end = text.find('}', at);
    if (end == text.npos) return;
    text.erase(end, 1);
    text.erase(at, command.size());
  }
}

}  // namespace

std::optional<double> read_number(std::string_view given) {
  std::string text(trim(given));
  std::erase_if(text, [](char c) { return c == ',' || c == '$' || c == ' '; });
  bool percent = text.ends_with('%');
  if (percent) text.pop_back();
  if (std::size_t slash = text.find('/'); slash != text.npos) {
    auto above = plain_number(std::string_view(text).substr(0, slash));
    auto below = plain_number(std::string_view(text).substr(slash + 1));
    if (!above || !below || *below == 0) return std::nullopt;
    return *above / *below;
  }
  std::optional<double> value = plain_number(text);
  return value && percent ? *value / 100 : value;
}

std::optional<double> last_number(std::string_view text) {
  auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::size_t end = text.size();
  while (end > 0 && !digit(text[end - 1])) --end;
  if (end == 0) return std::nullopt;
  std::size_t begin = end;
  auto within = [&](char c) { return digit(c) || c == '.' || c == ','; };
  while (begin > 0 && within(text[begin - 1])) --begin;
  while (!digit(text[begin]) && text[begin] != '.') ++begin;
  bool minus = begin > 0 && text[begin - 1] == '-';
  // In "7-3" and "2024-05" the sign belongs to neither number.
  if (minus && (begin < 2 || !digit(text[begin - 2]))) --begin;
  return read_number(text.substr(begin, end - begin));
}

bool same_number(double a, double b, double tolerance) {
  return std::abs(a - b) <= tolerance * std::max(1.0, std::max(std::abs(a), std::abs(b)));
}

std::optional<std::string> last_boxed(std::string_view text) {
  std::size_t at = text.npos, begin = 0;
  for (std::string_view command : {"\\boxed{", "\\fbox{"}) {
    std::size_t found = text.rfind(command);
    if (found == text.npos || (at != text.npos && found < at)) continue;
    at = found;
    begin = found + command.size();
  }
  if (at == text.npos) return std::nullopt;
  int depth = 1;
  for (std::size_t end = begin; end < text.size(); ++end) {
    depth += text[end] == '{' ? 1 : text[end] == '}' ? -1 : 0;
    if (depth == 0) return std::string(text.substr(begin, end - begin));
  }
  return std::nullopt;
}

std::optional<std::string> answer_line(std::string_view text) {
  const Regex regex("(?i)Answer\\s*:\\s*([^\\n]+)", RegexDialect::kFancy);
  Regex::Matches matches(regex, text);
  std::optional<std::string> answer;
  while (matches.next()) {
    if (auto group = matches.group(1)) {
      answer = text.substr(group->begin, group->end - group->begin);
    }
  }
  return answer;
}

std::optional<std::string> marked_answer(std::string_view text) {
  const Regex regex("#### (\\-?[0-9\\.\\,]+)", RegexDialect::kFancy);
  Regex::Matches matches(regex, text);
  std::optional<std::string> answer;
  while (matches.next()) {
    if (auto group = matches.group(1)) {
      answer = text.substr(group->begin, group->end - group->begin);
    }
  }
  if (answer) std::erase_if(*answer, [](char c) { return c == ',' || c == '$'; });
  return answer;
}

std::optional<std::string> last_choice(std::string_view text) {
  auto word = [&](std::size_t i) {
    return i < text.size() && (std::isalnum(static_cast<unsigned char>(text[i])) || text[i] == '_');
  };
  for (std::size_t i = text.size(); i-- > 0;) {
    bool letter = text[i] >= 'A' && text[i] <= 'J';
    if (letter && !word(i + 1) && !(i > 0 && word(i - 1))) return std::string(1, text[i]);
  }
  return std::nullopt;
}

std::string normal_answer(std::string_view given) {
  std::string text(trim(given));
  constexpr std::array<std::pair<std::string_view, std::string_view>, 16> kReplaced = {
      {{"\\left", ""},
       {"\\right", ""},
       {"\\!", ""},
       {"\\,", ""},
       {"\\;", ""},
       {"\\ ", ""},
       {"\\$", ""},
       {"$", ""},
       {"\\%", ""},
       {"%", ""},
       {"^\\circ", ""},
       {"^{\\circ}", ""},
       {"tfrac", "frac"},
       {"dfrac", "frac"},
       {"\\cdot", "*"},
       {"\\times", "*"}}};
  for (const auto& [from, to] : kReplaced) replace_all(text, from, to);
  for (std::string_view command : {"\\text{", "\\mathrm{", "\\mbox{", "\\textbf{"}) {
    unwrap(text, command);
  }
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n' || c == '\t'; });
  while (text.ends_with('.')) text.pop_back();
  if (std::size_t equals = text.rfind('='); equals != text.npos && equals <= 2) {
    text.erase(0, equals + 1);
  }
  if (text.starts_with("0.")) text.erase(0, 1);
  return text;
}

bool same_answer(std::string_view a, std::string_view b) {
  std::string left = normal_answer(a), right = normal_answer(b);
  if (left == right) return !left.empty();
  std::optional<double> x = read_number(left), y = read_number(right);
  return x && y && same_number(*x, *y, 1e-9);
}

}  // namespace bev
