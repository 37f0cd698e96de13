#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

namespace bev {

void append_text(std::string& out, std::string_view part) { out.append(part); }
void append_text(std::string& out, bool part) { out.append(part ? "true" : "false"); }
void append_text(std::string& out, double part) { out.append(fmt::format("{}", part)); }
void append_text(std::string& out, std::int64_t part) { out.append(std::to_string(part)); }
void append_text(std::string& out, std::uint64_t part) { out.append(std::to_string(part)); }

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    std::size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(parts[i]);
  }
  return out;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n\f\v";
  std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

namespace {
// Insertions, deletions, substitutions and swaps of neighbours that turn one text into the other
// (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t substitute = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substitute});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

// False if a word of one name became another word: --max-lr is not meant to be --min-lr.
bool same_words(std::string_view a, std::string_view b) {
  std::vector<std::string> ours = split(a, '-'), theirs = split(b, '-');
  if (ours.size() != theirs.size()) return true;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    std::size_t longer = std::max(ours[i].size(), theirs[i].size());
    if (2 * edit_distance(ours[i], theirs[i]) > longer) return false;
  }
  return true;
}
}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  std::string best;
  std::size_t best_distance = name.size();
  for (const std::string& candidate : candidates) {
    // Typing errors: none in names like tp, one in a short name, else one in four characters.
    auto [shorter, longer] = std::minmax({name.size(), candidate.size()});
    std::size_t most = shorter < 3 ? 0 : std::max<std::size_t>(1, longer / 4);
    std::size_t distance = edit_distance(name, candidate);
    if (distance > most || distance >= best_distance || !same_words(name, candidate)) continue;
    best_distance = distance;
    best = candidate;
  }
  return best;
}

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1024.0 && unit + 1 < kUnits.size()) {
    bytes /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string format_count(double count) {
  constexpr std::array<const char*, 6> kUnits = {"", "K", "M", "B", "T", "P"};
  std::size_t unit = 0;
  while (std::abs(count) >= 1000.0 && unit + 1 < kUnits.size()) {
    count /= 1000.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f}", count) : fmt::format("{:.4g}{}", count, kUnits[unit]);
}

std::string format_duration(double seconds) {
  auto total = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  std::int64_t hours = total / 3600, minutes = total / 60 % 60, rest = total % 60;
  if (hours > 0) return fmt::format("{}h {:02d}m {:02d}s", hours, minutes, rest);
  if (minutes > 0) return fmt::format("{}m {:02d}s", minutes, rest);
  return seconds < 10 ? fmt::format("{:.1f}s", seconds) : fmt::format("{}s", rest);
}

}  // namespace bev
